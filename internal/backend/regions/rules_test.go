package regions_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/backend/memory"
	"github.com/ratelimitd/ratelimitd/internal/backend/region"
	"github.com/ratelimitd/ratelimitd/internal/backend/regions"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// rulings are a home of two processes and another region of one, in virtual time. Each process of the home has rules of its own.
type rulings struct {
	t     *testing.T
	homes []*regions.Store
	of    []*ruling // the home's rules
	far   *regions.Store

	mu     sync.Mutex
	random *rand.Rand
	lost   float64
	asked  int
}

// ruling is the rules of a process: the limit of all counters.
type ruling struct {
	mu      sync.Mutex
	limit   descriptor.Limit
	unknown bool
}

func (r *ruling) set(requests uint64, unknown bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.limit, r.unknown = escrow("a", descriptor.Limit{Requests: requests, Window: hour}), unknown
	if err := r.limit.Compile(); err != nil {
		panic(err)
	}
}

func (r *ruling) Resolve(_ time.Time, _ string, entries []descriptor.Entry, _ string) (backend.Counter, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	l := r.limit
	return backend.Counter{Key: keyOf(entries[0].Value), Limit: &l}, true
}

func (r *ruling) Rules(time.Time) uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.unknown {
		return 0
	}
	return r.limit.Requests
}

func newRulings(t *testing.T, seed uint64) *rulings {
	t.Helper()
	w := &rulings{t: t, random: rand.New(rand.NewPCG(seed, 1))}
	names := []string{"a", "b"}
	create := func(name string, records *memory.Records, rules regions.Resolver) *regions.Store {
		s, err := regions.New(regions.Options{
			Region: name, Regions: names, Epoch: 1, Peers: ruled{w, name}, Logger: slog.New(slog.DiscardHandler), Store: memory.New(memory.Options{}), Records: records,
		})
		if err != nil {
			t.Fatal(err)
		}
		s.SetResolver(rules)
		return s
	}
	records := memory.NewRecords(0)
	for range 2 {
		r := new(ruling)
		r.set(100_000, false)
		w.of = append(w.of, r)
		w.homes = append(w.homes, create("a", records, r))
	}
	w.far = create("b", memory.NewRecords(0), w.of[0])
	runAll(t, append(slices.Clone(w.homes), w.far))
	return w
}

// runAll runs stores until the end of the test, in virtual time, and waits until they have heard of each other.
func runAll(t *testing.T, stores []*regions.Store) {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	t.Cleanup(func() { stop(); running.Wait() })
	for _, s := range stores {
		running.Go(func() {
			if err := s.Run(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	time.Sleep(2 * time.Second) //nolint:forbidigo // virtual time
}

// ruled is how one region reaches any process of the other.
type ruled struct {
	w    *rulings
	from string
}

func (l ruled) draw() (process int, lost bool) {
	l.w.mu.Lock()
	defer l.w.mu.Unlock()
	return l.w.random.IntN(len(l.w.homes)), l.w.random.Float64() < l.w.lost
}

func (l ruled) Exchange(ctx context.Context, _ string, epoch uint64, queries []regions.Query) ([]regions.Reply, error) {
	l.w.mu.Lock()
	l.w.asked += len(queries)
	l.w.mu.Unlock()
	time.Sleep(trip) //nolint:forbidigo // virtual time
	process, lost := l.draw()
	replies, err := l.w.homes[process].Answer(ctx, l.from, epoch, queries)
	time.Sleep(trip) //nolint:forbidigo // virtual time
	if lost {
		return nil, errLost
	}
	return replies, err
}

func (l ruled) Consent(ctx context.Context, name string, e *region.Epoch) (bool, error) {
	if name == "b" {
		return l.w.far.Consent(ctx, l.from, e)
	}
	process, _ := l.draw()
	return l.w.homes[process].Consent(ctx, l.from, e)
}

// take makes a take from counter i in the other region, which believes that the limit is as it was.
func (w *rulings) take(i int) bool {
	l := escrow("a", descriptor.Limit{Requests: 100_000, Window: hour})
	if err := l.Compile(); err != nil {
		panic(err)
	}
	name := fmt.Sprint(i)
	r := &backend.Request{
		Takes:    []backend.Take{{Key: keyOf(name), Limit: &l, Hits: 1, Origin: originOf(name)}},
		Outcomes: make([]backend.Outcome, 1),
	}
	if err := backend.Await(w.t.Context(), w.far, time.Now(), r); err != nil && !errors.Is(err, backend.ErrUnavailable) {
		w.t.Error(err)
	}
	return r.Outcomes[0].Allowed
}

// use makes takes from all counters for a while. It returns how many questions were asked, and when the last take passed.
func (w *rulings) use(counters int, d time.Duration) (asked int, passed time.Duration) {
	w.mu.Lock()
	before := w.asked
	w.mu.Unlock()
	began, last := time.Now(), make([]time.Duration, counters)
	var all sync.WaitGroup
	for i := range counters {
		all.Go(func() {
			for time.Since(began) < d {
				if w.take(i) {
					last[i] = time.Since(began)
				}
				time.Sleep(100 * time.Millisecond) //nolint:forbidigo // virtual time
			}
		})
	}
	all.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.asked - before, slices.Max(last)
}

// While the home says that its rules have not changed, most accounts do not ask. When a caller is blocked there, no region admits it after a
// second and the trips: also if the processes of the home learn it one after another, do not all say by which rules they answer, or an answer is
// lost.
func TestAccountsAskWhenTheRulesChange(t *testing.T) {
	const counters = 20
	for name, c := range map[string]struct {
		unknown [2]bool // processes of the home that do not say by which rules they answer
		lost    float64
		asked   [2]int // questions in ten seconds, at least and at most
		most    time.Duration
	}{
		"all say so":        {asked: [2]int{0, 100}, most: 1400 * time.Millisecond},
		"one does not":      {unknown: [2]bool{true, false}, asked: [2]int{0, 250}, most: 1400 * time.Millisecond},
		"none does":         {unknown: [2]bool{true, true}, asked: [2]int{180, 250}, most: 1400 * time.Millisecond},
		"answers are lost":  {asked: [2]int{0, 150}, lost: 0.05, most: 3 * time.Second},
		"lost, one of them": {unknown: [2]bool{false, true}, asked: [2]int{0, 300}, lost: 0.05, most: 3 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(10) {
				synctest.Test(t, func(t *testing.T) {
					w := newRulings(t, seed)
					for i, r := range w.of {
						r.set(100_000, c.unknown[i])
					}
					w.use(counters, 3*time.Second) // permits are there now, as many as are used
					w.mu.Lock()
					w.lost = c.lost
					w.mu.Unlock()
					asked, _ := w.use(counters, 10*time.Second)
					if asked < c.asked[0] || asked > c.asked[1] {
						t.Errorf("seed %d: %d questions in 10 s about %d counters", seed, asked, counters)
					}
					w.of[seed%2].set(0, c.unknown[seed%2]) // for some time, only one process of the home knows that everybody is blocked
					w.use(counters, time.Duration(seed)*700*time.Millisecond)
					w.of[1-seed%2].set(0, c.unknown[1-seed%2])
					if _, passed := w.use(counters, 8*time.Second); passed > c.most {
						t.Errorf("seed %d: a take passed after %v", seed, passed)
					}
				})
			}
		})
	}
}

// turning is rules that change while they are used.
type turning struct {
	*ruling
	step, rules atomic.Uint64
}

func (r *turning) Rules(time.Time) uint64 { return r.rules.Add(r.step.Load()) }

// An answer says by which rules it was made, unless they have changed meanwhile.
func TestRulesOfAnAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newRulings(t, 1)
		rules := &turning{ruling: w.of[0]}
		rules.rules.Store(7)
		w.homes[0].SetResolver(rules)
		l := w.of[0].limit
		ask := func() uint64 {
			t.Helper()
			replies, err := w.homes[0].Answer(t.Context(), "b", 1, []regions.Query{{
				Domain: "test", Entries: []descriptor.Entry{{Key: "limit", Value: "x"}}, Limit: l.Tag(), Permits: &region.Question{Incarnation: 7, Number: 1, Need: 1},
			}})
			if err != nil || replies[0].Permits == nil {
				t.Fatalf("%+v, %v", replies, err)
			}
			return replies[0].Permits.Rules
		}
		if got := ask(); got != 7 {
			t.Errorf("rules %d, want 7", got)
		}
		rules.step.Store(1)
		if got := ask(); got != 0 {
			t.Errorf("rules %d, although they have changed", got)
		}
		rules.step.Store(0)
		rules.set(0, false) // everybody is blocked
		if got := ask(); got != 9 {
			t.Errorf("rules %d, want 9", got)
		}
	})
}
