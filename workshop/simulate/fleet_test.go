package simulate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"maps"
	"math/rand/v2"
	"sync"
	"testing/synctest"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/assembly"
	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/backend/memory"
	"github.com/ratelimitd/ratelimitd/internal/backend/overlimit"
	"github.com/ratelimitd/ratelimitd/internal/config"
	"github.com/ratelimitd/ratelimitd/internal/config/override"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/lending/lease"
	"github.com/ratelimitd/ratelimitd/internal/lending/regions"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
	"github.com/ratelimitd/ratelimitd/internal/testkit/simkit"
)

const domain, pairs = "d", "p"

// setup is a fleet at its start.
type setup struct {
	seed     uint64
	replicas int
	envoys   int           // Envoys that enforce their shares of one limit
	regions  int           // number of regions, which the replicas join in turn; 1: limits count in one store
	trip     time.Duration // the longest time of a message to or from the store
	lost     float64       // the fraction of messages to the store, and of its answers, that are lost
	drift    int64         // how much faster the store's clock runs, in parts per million
	versions []version     // limits of the rules by version; the first one applies at the start
	length   time.Duration

	// Faults that a test adds on purpose.
	weaken  func(settle settler) settler // nil: nothing
	aside   bool                         // each region counts separately, as if its rules had no `regions`
	denials int                          // regions.Options.Denials
}

// settler settles a request at a time of the store's clock.
type settler func(now time.Time, r *backend.Request) error

// step is something that happens to the fleet from outside.
type step struct {
	at      time.Duration
	what    string // request, peek, refund, reserve, commit, rules, override, kill, clock, cut, demand, stream
	replica int
	rule    int // index into rules
	caller  int
	id      byte // reservation, or class of the customer
	n       int64
}

func (s step) String() string {
	return fmt.Sprintf("%12.6f %-8s replica=%d rule=%s caller=%d id=%d n=%d", s.at.Seconds(), s.what, s.replica, rules[s.rule].key, s.caller, s.id, s.n)
}

// names are the regions.
var names = []string{"a", "b", "c"}

// fleet is the replicas of a service and their store.
type fleet struct {
	setup
	trace io.Writer // nil: nothing is written

	began  time.Time
	stores []backend.Store // store of each region, without faults
	settle []settler       // settles a request in each region's store

	mu       sync.Mutex // guards the fields below
	envoys   []*envoy
	cut      [3]time.Duration // when each region can reach the others again
	clock    simkit.Clock
	replicas []*replica
	seen     oracle
	order    int // number of the latest event
}

func (f *fleet) next() int {
	f.order++
	return f.order
}

// replica is a process of the service. It is replaced when it is killed.
type replica struct {
	f       *fleet
	index   int
	limiter *limiter.Limiter
	chain   assembly.Chain
	regions *regions.Store // nil: there is one region
	stop    func()         // stops the replica, which returns its unused permits
	kill    func()

	version   int // version of the rules
	overrides map[who]uint64
	heard     map[who]int // the order of the latest change of an override, and of the rules
}

// who is a counter: a rule and a customer.
type who struct{ rule, caller int }

// run runs a history and returns the mistakes that the oracle found. The trace has all events.
func run(s setup, steps []step, store backend.Store, trace io.Writer) []string {
	f := &fleet{setup: s, trace: trace, began: time.Now(), clock: simkit.NewClock(0, s.drift)}
	for i := range s.regions {
		own := store
		if i > 0 {
			own = memory.New(memory.Options{})
		}
		settle := settler(func(now time.Time, r *backend.Request) error { return backend.Await(context.Background(), own, now, r) })
		if s.weaken != nil {
			settle = s.weaken(settle)
		}
		f.stores, f.settle = append(f.stores, own), append(f.settle, settle)
	}
	f.mu.Lock() // the first replicas of a region ask the others immediately
	for i := range s.replicas {
		f.replicas = append(f.replicas, f.start(i, nil))
	}
	f.mu.Unlock()
	ctx, end := context.WithCancel(context.Background())
	if s.envoys > 0 {
		f.startQuota(ctx)
	}
	for _, st := range steps {
		time.Sleep(st.at - time.Since(f.began)) //nolint:forbidigo // virtual time
		f.do(st)
	}
	time.Sleep(time.Minute) //nolint:forbidigo // virtual time
	end()
	for _, r := range f.replicas {
		r.stop()
	}
	time.Sleep(10 * time.Second) //nolint:forbidigo // virtual time: until nothing is on its way
	synctest.Wait()
	return f.seen.judge(f)
}

// start starts a replica with the rules of a version.
func (f *fleet) start(index int, old *replica) *replica {
	r := &replica{f: f, index: index, overrides: make(map[who]uint64), heard: make(map[who]int)}
	if old != nil {
		r.version = old.version
		maps.Copy(r.heard, old.heard)
		maps.Copy(r.overrides, old.overrides)
	}
	ctx, end := context.WithCancelCause(context.Background())
	err := r.chain.Put(&link{r}, assembly.Layers{
		Denials: &overlimit.Options{Refunded: func(key []byte) { f.refunded(r, string(key)) }},
		Leases:  &lease.Options{Replicas: f.setup.replicas, Timeout: time.Second, ReturnWithin: 2 * time.Second},
		Regions: r.across(ctx),
	})
	if err != nil {
		panic(err)
	}
	r.limiter = limiter.New(limiter.Options{Store: r.chain.Store, NoMetrics: true})
	if r.regions != nil {
		r.regions.SetResolver(r.limiter)
	}
	r.kill, r.stop = func() { end(errKilled) }, func() { end(nil) }
	go r.sweep(ctx)
	r.load()
	return r
}

// sweep does the same as lease.Leases.Run, but can be killed: then it returns no permits.
func (r *replica) sweep(ctx context.Context) {
	tick := time.NewTicker(250 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			r.chain.Leases.Sweep(ctx, time.Now())
		case <-ctx.Done():
			if !errors.Is(context.Cause(ctx), errKilled) {
				r.chain.Leases.Close(context.WithoutCancel(ctx), time.Now())
			}
			return
		}
	}
}

// load activates the rules and overrides of the replica.
func (r *replica) load() {
	tree, errs := config.Compile(r.f.versions[r.version].files(), config.CompileOptions{})
	if len(errs) > 0 {
		panic(errs[0])
	}
	r.limiter.Swap(tree, limiter.Settings{Headers: descriptor.HeadersIETF | descriptor.HeadersRetryAfter})
	r.override()
}

func (r *replica) override() {
	set := &override.Set{}
	for rule := range rules {
		for caller := range callers {
			if n, ok := r.overrides[who{rule, caller}]; ok {
				set = set.With(set.Version+1, []override.Change{{
					Identity: override.Identity{Domain: rules[rule].domain(), Rule: rules[rule].domain() + "." + rules[rule].key, Entries: entries(rule, caller)},
					Numbers:  override.Numbers{Kind: override.Replace, Requests: n},
				}})
			}
		}
	}
	r.limiter.SetOverrides(set)
}

// number is the limit of a customer in the version that this replica has.
func (r *replica) number(w who) uint64 {
	if n, ok := r.overrides[w]; ok {
		return n
	}
	return r.f.versions[r.version][w.rule]
}

func entries(rule, caller int, more ...descriptor.Entry) []descriptor.Entry {
	return append([]descriptor.Entry{{Key: rules[rule].key, Value: fmt.Sprintf("c%d", caller)}}, more...)
}

// refunded tells the other replicas, a moment later, that a counter has room again.
func (f *fleet) refunded(from *replica, key string) {
	for i := range f.setup.replicas {
		d := f.delay("refunded", key, i)
		time.AfterFunc(d, func() {
			f.mu.Lock()
			r := f.replicas[i]
			f.mu.Unlock()
			if r != from {
				r.chain.Forget([]byte(key), false)
			}
		})
	}
}

// random returns numbers that depend on the seed, the time and the purpose, but not on the order in which goroutines
// run.
func (f *fleet) random(parts ...any) *rand.Rand {
	h := fnv.New64a()
	_, _ = fmt.Fprint(h, append(parts, time.Since(f.began))...)
	return rand.New(rand.NewPCG(f.seed, h.Sum64()))
}

// delay draws the time that a message takes.
func (f *fleet) delay(parts ...any) time.Duration {
	return 10*time.Microsecond + time.Duration(f.random(parts...).Int64N(int64(f.trip)))
}

// now returns the time of the store's clock.
func (f *fleet) now() time.Time {
	d := time.Since(f.began).Microseconds()
	return f.began.Add(time.Duration(f.clock.Read(d)) * time.Microsecond)
}

func (f *fleet) note(format string, args ...any) {
	if f.trace != nil {
		_, _ = fmt.Fprintf(f.trace, "%12.6f "+format+"\n", append([]any{time.Since(f.began).Seconds()}, args...)...)
	}
}

// do carries out a step.
func (f *fleet) do(s step) {
	f.mu.Lock()
	r := f.replicas[s.replica]
	f.mu.Unlock()
	switch s.what {
	case "kill":
		r.kill()
		f.mu.Lock()
		f.seen.changes = append(f.seen.changes, change{f.next(), time.Since(f.began), s})
		f.replicas[s.replica] = f.start(s.replica, r)
		f.mu.Unlock()
		f.note("%s", s)
	case "demand":
		f.mu.Lock()
		f.envoys[s.caller].Demand = float64(s.n)
		f.mu.Unlock()
		f.note("%s", s)
	case "stream":
		f.mu.Lock()
		f.seen.changes = append(f.seen.changes, change{f.next(), time.Since(f.began), s})
		f.envoys[s.caller].cutOff(time.Duration(s.n) * time.Second)
		f.mu.Unlock()
		f.note("%s", s)
	case "cut":
		f.mu.Lock()
		f.cut[s.replica%f.setup.regions] = time.Since(f.began) + time.Duration(s.n)*time.Second
		f.mu.Unlock()
		f.note("%s", s)
	case "clock":
		f.mu.Lock()
		f.clock.Step(time.Since(f.began).Microseconds(), s.n*1e6)
		f.seen.changes = append(f.seen.changes, change{f.next(), time.Since(f.began), s})
		f.mu.Unlock()
		f.note("%s", s)
	case "rules":
		f.change(s, func(r *replica) { r.version = int(s.n); r.load() })
	case "override":
		f.change(s, func(r *replica) {
			if s.n == 0 {
				delete(r.overrides, who{s.rule, s.caller})
			} else {
				r.overrides[who{s.rule, s.caller}] = uint64(s.n)
			}
			r.override()
		})
	default:
		go f.ask(r, s)
	}
}

// change reaches every replica within a second.
func (f *fleet) change(s step, apply func(*replica)) {
	f.note("%s", s)
	what := who{s.rule, s.caller}
	if s.what == "rules" {
		what = who{-1, -1}
	}
	f.mu.Lock()
	order := f.next()
	f.seen.changes = append(f.seen.changes, change{order, time.Since(f.began), s})
	f.mu.Unlock()
	for i := range f.setup.replicas {
		time.AfterFunc(time.Duration(f.random(s, i).Int64N(int64(time.Second))), func() {
			f.mu.Lock()
			defer f.mu.Unlock()
			if r := f.replicas[i]; r.heard[what] < order { // an older change does not replace a newer one
				r.heard[what] = order
				apply(r)
			}
		})
	}
}

// ask sends a request to a replica.
func (f *fleet) ask(r *replica, s step) {
	w := who{s.rule, s.caller}
	d := limiter.Descriptor{Entries: entries(s.rule, s.caller), HasHits: true, Hits: uint64(max(s.n, -s.n)), Refund: s.what == "refund"}
	if rules[s.rule].kind == classes {
		d.Entries = entries(s.rule, s.caller, descriptor.Entry{Key: "priority", Value: priorities[s.id]})
	}
	req := limiter.Request{Domain: rules[s.rule].domain(), Descriptors: []limiter.Descriptor{d}}
	if rules[s.rule].pair {
		d.Entries = entries(s.rule+1, s.caller)
		req.Descriptors = append(req.Descriptors, d)
	}
	switch s.what {
	case "reserve":
		req.Reservation = &limiter.Reservation{Op: limiter.Reserve, ID: limiter.ReservationID{s.id, byte(s.caller)}}
	case "commit":
		req.Reservation = &limiter.Reservation{Op: limiter.Commit, ID: limiter.ReservationID{s.id, byte(s.caller)}, Final: true}
	}
	f.mu.Lock()
	e := event{who: w, step: s, began: f.now(), started: time.Since(f.began), limits: []uint64{r.number(w)}, replica: r.index}
	if rules[s.rule].pair {
		e.limits = append(e.limits, r.number(who{s.rule + 1, s.caller}))
	}
	f.mu.Unlock()
	trip := &trip{}
	ctx, cancel := context.WithTimeout(context.WithValue(context.Background(), tripKey{}, trip), time.Second)
	defer cancel()
	var out limiter.Decision
	err := r.limiter.Decide(ctx, time.Now(), &req, &out)
	f.mu.Lock()
	defer f.mu.Unlock()
	e.at, e.ended, e.order, e.asked, e.allowed = f.now(), time.Since(f.began), f.next(), trip.order > 0, out.Code == limiter.OK
	if e.asked {
		e.at, e.ended, e.order = trip.at, trip.ended, trip.order
	}
	e.failed = err != nil || f.replicas[s.replica] != r // a killed process sends no answers
	if err == nil {
		e.statuses, e.headers = out.Statuses, out.Headers
		if len(out.Reservations) == 1 {
			e.reservation = out.Reservations[0]
		}
	}
	f.seen.events = append(f.seen.events, e)
	f.note("%s -> %v failed=%t store=%t", s, out.Code, e.failed, e.asked)
	for _, st := range e.statuses {
		f.note("  %v %d left, retry after %v", st.Code, st.Remaining, st.RetryAfter)
	}
}

// trip is the result of a request's way to the store.
type trip struct {
	at    time.Time // like the fields of event with these names
	ended time.Duration
	order int // 0: it did not reach the store
}

type tripKey struct{}

var (
	errLost   = errors.New("no answer")
	errKilled = errors.New("killed")
)

// link is the connection from a replica to the store.
type link struct{ r *replica }

func (l *link) send(ctx context.Context, r *backend.Request, settle func(now time.Time) error) error {
	f := l.r.f
	random := f.random(l.r.index, string(r.Takes[0].Key), r.Takes[0].Hits)
	there, back := time.Duration(random.Int64N(int64(f.trip))), time.Duration(random.Int64N(int64(f.trip)))
	before, after := random.Float64() < f.lost, random.Float64() < f.lost
	time.Sleep(10*time.Microsecond + there) //nolint:forbidigo // virtual time
	var err error
	if !before {
		f.mu.Lock()
		now, ended, order := f.now(), time.Since(f.began), f.next()
		err = settle(now)
		f.mu.Unlock()
		if t, ok := ctx.Value(tripKey{}).(*trip); ok {
			t.at, t.ended, t.order = now, ended, order
		}
	}
	time.Sleep(10*time.Microsecond + back) //nolint:forbidigo // virtual time
	if before || after {
		time.Sleep(50 * time.Millisecond) //nolint:forbidigo // virtual time: until the replica gives up
		backend.Fail(r.Outcomes)
		return cmp.Or(err, errLost)
	}
	return err
}

// Start implements backend.Store.
func (l *link) Start(ctx context.Context, _ time.Time, _ *backend.Batch, r *backend.Request, _ func(error)) (settled bool, err error) {
	return true, l.send(ctx, r, func(now time.Time) error { return l.r.f.settle[l.r.region()](now, r) })
}

// Peek implements backend.Store.
func (l *link) Peek(ctx context.Context, _ time.Time, r *backend.Request) error {
	return l.send(ctx, r, func(now time.Time) error { return l.r.f.stores[l.r.region()].Peek(context.Background(), now, r) })
}

// Reset implements backend.Store.
func (l *link) Reset(ctx context.Context, counters []backend.Counter) error {
	return l.r.f.stores[l.r.region()].Reset(ctx, counters)
}
