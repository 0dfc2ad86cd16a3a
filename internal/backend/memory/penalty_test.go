package memory_test

import (
	"context"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/backend/memory"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/testkit/backendtest"
	"github.com/ratelimitd/ratelimitd/internal/testkit/racetest"
)

// penalised returns a request of one take that a penalty of an hour guards.
func penalised(key string, l *descriptor.Limit, hits int64) *backend.Request {
	return &backend.Request{Outcomes: make([]backend.Outcome, 2), Takes: []backend.Take{
		{Key: descriptor.AppendPenaltyKey(nil, []byte(key), false), Limit: descriptor.NewPenalty(time.Hour), Guards: true},
		{Key: []byte(key), Limit: l, Hits: hits},
	}}
}

// In a full store, customers who share a counter get no penalty for hits of the others. Customers with a separate
// counter get one while there is room. The store keeps no more than its bound, and a penalty uses the room of one
// counter.
func TestPenaltiesInAFullStore(t *testing.T) {
	const most = 100
	s := memory.New(memory.Options{MaxCounters: most, Shared: 4})
	l, now := backendtest.Limit("2/1d"), time.Unix(1_800_000_000, 0)
	take := func(i int, hits int64) (penalty, o backend.Outcome) {
		t.Helper()
		r := penalised(fmt.Sprint("caller ", i), l, hits)
		if err := backend.Await(t.Context(), s, now, r); err != nil {
			t.Fatal(err)
		}
		return r.Outcomes[0], r.Outcomes[1]
	}
	take(0, 2)
	if take(0, 1); s.Len() != 2 {
		t.Fatalf("%d counters, want one and its penalty", s.Len())
	}
	began := 0
	for i := range 10 * most {
		take(i, 1)
		if p, o := take(i, 2); p.Used > p.Before || o.Allowed {
			began++
		}
	}
	if s.Len() > most || began == 0 || began > most {
		t.Errorf("%d counters of %d, %d penalties began", s.Len(), most, began)
	}
	if p, _ := take(0, 1); p.Allowed {
		t.Error("the first caller has no penalty any more")
	}
	for i := 9 * most; i < 10*most; i++ {
		if p, o := take(i, 1); !p.Allowed || o.Allowed {
			t.Fatalf("a caller who shares a counter: %+v, %+v", p, o)
		}
	}
	s.Sweep(now.Add(25 * time.Hour))
	if s.Len() != 0 {
		t.Errorf("%d counters after a day", s.Len())
	}
}

// A request that is below its limit adds no counter for its penalty, and allocates nothing.
func TestPenaltyCostsNothingBelowTheLimit(t *testing.T) {
	s := memory.New(memory.Options{})
	r, now := penalised("k", backendtest.Limit("1000000/1d"), 1), time.Unix(1_800_000_000, 0)
	if n := testing.AllocsPerRun(100, func() {
		if err := backend.Await(context.Background(), s, now, r); err != nil {
			t.Fatal(err)
		}
	}); n != 0 && !racetest.On {
		t.Errorf("%v allocations", n)
	}
	if s.Len() != 1 {
		t.Errorf("%d counters", s.Len())
	}
}

// If several requests run at the same time, one of them starts the penalty.
func TestPenaltyBeginsOnce(t *testing.T) {
	s := memory.New(memory.Options{})
	l, now := backendtest.Limit("40/1d"), time.Unix(1_800_000_000, 0)
	var began, passed atomic.Int64
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			for range 10 {
				r := penalised("k", l, 1)
				if err := backend.Await(context.Background(), s, now, r); err != nil {
					t.Error(err)
					return
				}
				switch p, o := &r.Outcomes[0], &r.Outcomes[1]; {
				case p.Used > p.Before:
					began.Add(1)
				case p.Allowed && o.Allowed:
					passed.Add(1)
				}
			}
		})
	}
	wg.Wait()
	if began.Load() != 1 || passed.Load() != 40 {
		t.Errorf("%d began, %d passed", began.Load(), passed.Load())
	}
}

// A store announces a penalty only if it keeps it.
func TestNoPenaltyWithoutRoom(t *testing.T) {
	for what, c := range map[string]struct{ most, before int }{"a new counter": {1, 0}, "an existing counter": {2, 2}} {
		s := memory.New(memory.Options{MaxCounters: c.most, Shared: 4})
		l, now := backendtest.Limit("2/1m"), time.Unix(1_800_000_000, 0)
		take := func(key string, hits int64) (penalty, o backend.Outcome) {
			t.Helper()
			r := penalised(key, l, hits)
			if err := backend.Await(t.Context(), s, now, r); err != nil {
				t.Fatal(err)
			}
			return r.Outcomes[0], r.Outcomes[1]
		}
		for i := range c.before {
			if _, o := take(fmt.Sprint(i), 2); !o.Allowed {
				t.Fatalf("%s: caller %d: %+v", what, i, o)
			}
		}
		if p, o := take("0", 3); o.Allowed || p != (backend.Outcome{Allowed: true}) {
			t.Errorf("%s: %+v, penalty %+v; want denied without a penalty", what, o, p)
		}
		now = now.Add(time.Minute)
		if p, o := take("0", 1); !p.Allowed || !o.Allowed {
			t.Errorf("%s, a minute later: %+v, penalty %+v", what, o, p)
		}
	}
}

// A group of very many takes with penalties costs about as much as the same takes one after the other: its cost does
// not grow with the square of its size.
func TestCostOfManyPenalties(t *testing.T) {
	racetest.Sequential(t)
	s := memory.New(memory.Options{})
	l, now := backendtest.Limit("1000000/1d"), time.Unix(1_800_000_000, 0)
	var r backend.Request
	for i := range 16_384 {
		pair := penalised(fmt.Sprint("caller ", i), l, 1)
		pair.Takes[0].Member, pair.Takes[1].Member = i, i
		r.Takes = append(r.Takes, pair.Takes...)
	}
	r.Outcomes = make([]backend.Outcome, len(r.Takes))
	cost := func(together bool) time.Duration {
		r.Together = together
		began := time.Now()
		if err := backend.Await(t.Context(), s, now, &r); err != nil {
			t.Fatal(err)
		}
		return time.Since(began)
	}
	single, group := cost(false), time.Duration(math.MaxInt64)
	for round := 0; round < 3 || group > 8*single && round < 30; round++ { // a busy machine is not always busy
		single, group = min(single, cost(false)), min(group, cost(true))
	}
	if group > 8*single { // about 2 times; about 30 times if each take is compared with all others
		t.Errorf("%d takes cost %s, and %s in one group", len(r.Takes), single, group)
	}
}
