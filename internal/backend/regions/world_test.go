package regions_test

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/backend/memory"
	"github.com/ratelimitd/ratelimitd/internal/backend/redis"
	"github.com/ratelimitd/ratelimitd/internal/backend/redisconn"
	"github.com/ratelimitd/ratelimitd/internal/backend/region"
	"github.com/ratelimitd/ratelimitd/internal/backend/regions"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
	"github.com/ratelimitd/ratelimitd/internal/testkit/servicetest"
)

// patience is how long calls may take in tests of exactness.
const patience = 10 * time.Second

// world is some regions, each with a Redis of its own and some processes.
type world struct {
	t     testing.TB
	names []string
	of    map[string][]*process
	redis map[string]*redistest.Server // nil: the region counts in memory

	setClock func(ahead time.Duration) // of the Redis of setup.clock

	mu     sync.Mutex
	cut    map[string]bool // regions that nobody reaches
	lost   float64         // of the messages
	twice  float64         // of the messages are carried out twice
	limits map[string]*descriptor.Limit
	every  *descriptor.Limit // of entries that name no other
	rules  []*descriptor.Rule

	unknown bool // answers do not say by which rules they were made, as those of earlier versions
}

// process is one process of a region.
type process struct {
	*regions.Store
	stop func()
}

type setup struct {
	regions, processes int
	memory             string // the regions that have no Redis
	clock              string // the region whose Redis' clock can be set
}

// newWorld starts regions named a, b, c, ...
func newWorld(t testing.TB, s setup) *world {
	t.Helper()
	w := &world{t: t, of: make(map[string][]*process), redis: make(map[string]*redistest.Server), cut: make(map[string]bool), limits: make(map[string]*descriptor.Limit)}
	for i := range s.regions {
		w.names = append(w.names, string(rune('a'+i)))
	}
	for _, name := range w.names {
		var mem *memory.Records
		switch {
		case strings.Contains(s.memory, name):
			mem = memory.NewRecords(0)
		case name == s.clock:
			w.redis[name], w.setClock = redistest.StartWithClock(t)
		default:
			w.redis[name] = redistest.Start(t)
		}
		for range s.processes {
			w.start(name, mem)
		}
	}
	w.awaitHomes()
	return w
}

// start starts a process of a region. Its options may be changed before.
func (w *world) start(name string, mem *memory.Records, changes ...func(*regions.Options)) *process {
	w.t.Helper()
	opts := regions.Options{
		Region: name, Regions: w.names, Epoch: 1, Peers: &link{w, name}, Timeout: patience, Logger: slog.New(slog.DiscardHandler),
	}
	if mem != nil {
		opts.Store, opts.Records = memory.New(memory.Options{}), mem
	} else {
		client := w.client(name)
		store := redis.New(redis.Options{Client: client, Timeout: patience})
		w.t.Cleanup(func() { _ = store.Close() })
		opts.Store, opts.Records = store, redis.NewRecords(store)
	}
	for _, change := range changes {
		change(&opts)
	}
	s, err := regions.New(opts)
	if err != nil {
		w.t.Fatal(err)
	}
	s.SetResolver(w)
	s.SetRules(w.rules)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := s.Run(ctx); err != nil {
			w.t.Error(err)
		}
	}()
	p := &process{Store: s, stop: sync.OnceFunc(func() { cancel(); <-ended })}
	w.t.Cleanup(p.stop)
	w.mu.Lock()
	w.of[name] = append(w.of[name], p)
	w.mu.Unlock()
	return p
}

func (w *world) client(name string) goredis.UniversalClient {
	return servicetest.Connect(w.t, redisconn.Options{URL: w.redis[name].Addr})
}

// awaitHomes waits until every region may act as a home.
func (w *world) awaitHomes() {
	w.t.Helper()
	redistest.Eventually(w.t, "all homes act", func(context.Context) error {
		for _, name := range w.names {
			for _, p := range w.of[name] {
				if st := p.Status(); !st.Acts {
					return fmt.Errorf("%s does not: %+v", name, st)
				}
			}
		}
		return nil
	})
}

// limit adds a rule.
func (w *world) limit(name string, l descriptor.Limit) *descriptor.Limit {
	w.t.Helper()
	if err := l.Compile(); err != nil {
		w.t.Fatal(err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.limits[name] = &l
	return &l
}

// rule adds or changes a rule like limit, and tells all processes of it.
func (w *world) rule(name string, l descriptor.Limit) *descriptor.Limit {
	w.t.Helper()
	of := *l.Regions
	of.Rule = uint64(name[0])
	l.Regions = &of
	w.mu.Lock()
	w.rules = slices.DeleteFunc(w.rules, func(r *descriptor.Rule) bool { return r.Path == "test.limit_"+name })
	w.rules = append(w.rules, &descriptor.Rule{Path: "test.limit_" + name, Limits: []descriptor.Limit{l}})
	all := slices.Concat(slices.Collect(maps.Values(w.of))...)
	w.mu.Unlock()
	for _, p := range all {
		p.SetRules(w.rules)
	}
	return w.limit(name, l)
}

// Resolve implements regions.Resolver: the first entry names the limit.
func (w *world) Resolve(_ time.Time, _ string, entries []descriptor.Entry, tag string) (backend.Counter, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	l := w.limits[entries[0].Value]
	if l == nil {
		l = w.every
	}
	if l == nil || l.Tag() != tag {
		return backend.Counter{}, false
	}
	return backend.Counter{Key: keyOf(entries[0].Value), Limit: l}, true
}

// Rules implements regions.Resolver.
func (w *world) Rules(time.Time) uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.unknown {
		return 0
	}
	sum := uint64(1)
	for name, l := range w.limits {
		h := fnv.New64a()
		_, _ = fmt.Fprint(h, name, " ", l.Requests)
		sum += h.Sum64()
	}
	return sum
}

func keyOf(name string) []byte { return fmt.Appendf(nil, "test|limit=%s|x", name) }

func originOf(name string) *backend.Origin {
	return &backend.Origin{Domain: "test", Entries: []descriptor.Entry{{Key: "limit", Value: name}}}
}

// take makes a take, and returns its outcome.
func (w *world) take(p *process, name string, hits int64, within time.Duration) (backend.Outcome, error) {
	w.mu.Lock()
	l := w.limits[name]
	w.mu.Unlock()
	return w.takeUnder(p, name, l, hits, within)
}

// takeUnder makes a take under the limit that a process knows.
func (w *world) takeUnder(p *process, name string, l *descriptor.Limit, hits int64, within time.Duration) (backend.Outcome, error) {
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	own := *l
	r := &backend.Request{
		Takes:    []backend.Take{{Key: keyOf(name), Limit: &own, Hits: hits, Origin: originOf(name)}},
		Outcomes: make([]backend.Outcome, 1),
	}
	err := backend.Await(ctx, p.Store, time.Now(), r)
	own = descriptor.Limit{} // as the limiter does with the limit of an override
	return r.Outcomes[0], err
}

// link is how the processes of one region reach the others: without a network, by a call of their methods. Messages are lost or repeated as
// the world says.
type link struct {
	w    *world
	from string
}

var errLost = errors.New("lost")

func (l *link) to(region string) (*process, bool, error) {
	w := l.w
	w.mu.Lock()
	defer w.mu.Unlock()
	all := w.of[region]
	if w.cut[region] || w.cut[l.from] || len(all) == 0 || rand.Float64() < w.lost {
		return nil, false, errLost
	}
	return all[rand.IntN(len(all))], rand.Float64() < w.twice, nil
}

func (l *link) answerIsLost() bool {
	l.w.mu.Lock()
	defer l.w.mu.Unlock()
	return rand.Float64() < l.w.lost
}

func (l *link) Exchange(ctx context.Context, home string, epoch uint64, queries []regions.Query) ([]regions.Reply, error) {
	p, twice, err := l.to(home)
	if err != nil {
		return nil, err
	}
	replies, err := p.Answer(ctx, l.from, epoch, queries)
	if twice && err == nil {
		if again, _, err := l.to(home); err == nil {
			replies, err = again.Answer(ctx, l.from, epoch, queries)
			if err != nil {
				return nil, err
			}
		}
	}
	if l.answerIsLost() {
		return nil, errLost
	}
	return replies, err
}

func (l *link) Consent(ctx context.Context, name string, e *region.Epoch) (bool, error) {
	p, _, err := l.to(name)
	if err != nil {
		return false, err
	}
	return p.Consent(ctx, l.from, e)
}

func escrow(home string, l descriptor.Limit) descriptor.Limit {
	l.Regions = &descriptor.Regions{Mode: descriptor.InEscrow, Home: home}
	return l
}

func atHome(home string, l descriptor.Limit) descriptor.Limit {
	l.Regions = &descriptor.Regions{Mode: descriptor.AtHome, Home: home}
	return l
}

var (
	hour = descriptor.Window{Unit: descriptor.Hour}
	day  = descriptor.Window{Unit: descriptor.Day}
)
