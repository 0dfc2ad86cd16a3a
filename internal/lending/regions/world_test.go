package regions_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/backend/memory"
	"github.com/ratelimitd/ratelimitd/internal/backend/overlimit"
	"github.com/ratelimitd/ratelimitd/internal/config"
	"github.com/ratelimitd/ratelimitd/internal/config/override"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/lending/lease"
	"github.com/ratelimitd/ratelimitd/internal/lending/regions"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is some regions in virtual time: each has one store in memory and some replicas in front of it.
type world struct {
	t     *testing.T
	names []string
	of    map[string][]*replica
	calls atomic.Int64 // calls with queries
	trip  time.Duration

	mu   sync.Mutex
	cut  map[string]bool // regions without any connection to the others
	lost bool            // answers are lost
}

// replica is one replica of a region.
type replica struct {
	*limiter.Limiter
	w     *world
	name  string
	store *regions.Store
	stop  func() // stops the replica, and waits for that
}

// newWorld creates regions whose replicas all have the same rules. Its test must run in a bubble of synctest.
func newWorld(t *testing.T, rules string, names string, replicas int) *world {
	t.Helper()
	w := &world{t: t, names: strings.Fields(names), of: make(map[string][]*replica), cut: make(map[string]bool), trip: 80 * time.Millisecond}
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	for _, name := range w.names {
		counters := memory.New(memory.Options{})
		for range replicas {
			s, err := regions.New(regions.Options{
				Store: lease.New(lease.Options{Store: overlimit.New(overlimit.Options{Store: counters}), Replicas: replicas}), Peers: &link{w: w, from: name}, Region: name, Regions: w.names, Logger: slog.New(slog.DiscardHandler),
			})
			if err != nil {
				t.Fatal(err)
			}
			r := &replica{Limiter: limiter.New(limiter.Options{Store: s, Elsewhere: func(key []byte, l *descriptor.Limit) bool { _, elsewhere := s.HomeElsewhere(key, l); return elsewhere }}), w: w, name: name, store: s}
			s.SetResolver(r)
			r.load(rules)
			w.of[name] = append(w.of[name], r)
		}
	}
	for _, all := range w.of {
		for _, r := range all {
			ctx, end := context.WithCancel(ctx)
			stopped := make(chan struct{})
			r.stop = func() { end(); <-stopped }
			running.Go(func() {
				defer end()
				defer close(stopped)
				if err := r.store.Run(ctx); err != nil {
					t.Error(err)
				}
			})
		}
	}
	t.Cleanup(func() { stop(); running.Wait() })
	return w
}

// load activates rules.
func (r *replica) load(rules string) {
	r.w.t.Helper()
	tree, errs := config.Compile([]config.File{{Name: "rules.yaml", Data: []byte(rules)}}, config.CompileOptions{})
	for _, err := range errs {
		r.w.t.Fatal(err)
	}
	r.Swap(tree, limiter.Settings{})
}

// override sets an override for customers of a rule.
func (r *replica) override(rule string, n override.Numbers, pairs ...string) {
	id := override.Identity{Domain: "d", Rule: rule, Entries: entries(pairs...)}
	r.SetOverrides(override.NewSet(1, func(yield func(*override.Identity, override.Numbers) bool) { yield(&id, n) }))
}

// link connects the replicas of a region with the others.
type link struct {
	w    *world
	from string
	turn atomic.Int64
}

var errCut = errors.New("cut off")

// Ask implements regions.Peers. Each query has a separate answer, sent half a trip after it is known.
func (l *link) Ask(ctx context.Context, to string, queries []regions.Query, heard func(regions.State), answered func(int, *regions.Answer)) error {
	l.w.mu.Lock()
	cut, lost := l.w.cut[to] || l.w.cut[l.from], l.w.lost
	l.w.mu.Unlock()
	if cut {
		return errCut
	}
	if len(queries) > 0 {
		l.w.calls.Add(1)
	}
	time.Sleep(l.w.trip / 2) //nolint:forbidigo // virtual time
	all := l.w.of[to]
	asked := all[l.turn.Add(1)%int64(len(all))] // the replicas answer in turn
	state := asked.store.State()
	state.Replicas = (len(l.w.names) - 1) * len(all)
	answers := make([]*regions.Answer, len(queries))
	var settled sync.WaitGroup
	for i := range queries {
		settled.Add(1)
		asked.store.Answer(ctx, l.from, &queries[i], func(a *regions.Answer) { answers[i] = a; settled.Done() })
	}
	settled.Wait()
	time.Sleep(l.w.trip / 2) //nolint:forbidigo // virtual time
	if lost {
		return errors.New("the answer is lost")
	}
	heard(state)
	for i, a := range answers {
		answered(i, a)
	}
	return nil
}

// setCut cuts a region off, or reconnects it.
func (w *world) setCut(name string, cut bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cut[name] = cut
}

func (w *world) setLost(lost bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lost = lost
}

// in returns a replica of a region.
func (w *world) in(name string) *replica { return w.of[name][0] }

func entries(pairs ...string) []descriptor.Entry { return descriptor.AppendPairs(nil, split(pairs)) }

func split(pairs []string) (all []string) {
	for _, p := range pairs {
		key, value, _ := strings.Cut(p, "=")
		all = append(all, key, value)
	}
	return all
}

// ask decides a request of the given number of hits; a negative number returns hits.
func (r *replica) ask(hits int64, pairs ...string) (*limiter.Decision, error) {
	return r.within(time.Minute, hits, pairs...)
}

// within is ask with a limited time to wait.
func (r *replica) within(patience time.Duration, hits int64, pairs ...string) (*limiter.Decision, error) {
	req := &limiter.Request{Domain: "d"}
	for _, p := range pairs {
		req.Descriptors = append(req.Descriptors, limiter.Descriptor{
			Entries: entries(strings.Split(p, ",")...), Hits: uint64(max(hits, -hits)), HasHits: true, Refund: hits < 0,
		})
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	d := new(limiter.Decision)
	return d, r.Decide(ctx, time.Now(), req, d)
}

// wants asks, and compares the code and the remaining hits.
func (r *replica) wants(hits int64, pair string, code limiter.Code, remaining uint64) {
	r.w.t.Helper()
	d, err := r.ask(hits, pair)
	if err != nil {
		r.w.t.Fatal(err)
	}
	if s := d.Statuses[0]; d.Code != code || s.Remaining != remaining {
		r.w.t.Errorf("%s: %d hits of %s: %s with %d left, want %s with %d", r.name, hits, pair, d.Code, s.Remaining, code, remaining)
	}
}

// fails asks, and expects an error of the store.
func (r *replica) fails(hits int64, pair, text string) {
	r.w.t.Helper()
	if d, err := r.ask(hits, pair); !errors.Is(err, backend.ErrUnavailable) || !strings.Contains(fmt.Sprint(err), text) {
		r.w.t.Errorf("%s: %d hits of %s: %s, %v; want an error with %q", r.name, hits, pair, d.Code, err, text)
	}
}

// pass lets virtual time pass.
func pass(d time.Duration) { time.Sleep(d) } //nolint:forbidigo // virtual time

// nextMinute waits until a minute starts.
func nextMinute() { pass(time.Until(time.Now().Truncate(time.Minute).Add(time.Minute))) }
