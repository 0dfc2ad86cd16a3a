package redis_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/backend/redis"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	_ "github.com/ratelimitd/ratelimitd/internal/testkit/rapidtest"
	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
)

func openStore(t *testing.T, opts redis.Options) (*redis.Store, *redistest.Server) {
	t.Helper()
	server := redistest.Start(t)
	opts.Client = dial(t, server)
	if opts.Timeout == 0 {
		opts.Timeout = 10 * time.Second
	}
	s := redis.New(opts)
	if err := s.Ping(t.Context()); err != nil { // finds out that there is one server
		t.Fatal(err)
	}
	return s, server
}

// Many requests share a call, equal or not, with one take or several. The counters then hold the hits that the outcomes
// report as added, each denial had a reason, and no limit is exceeded.
func TestRequestsShareACall(t *testing.T) {
	store, _ := openStore(t, redis.Options{CallerClock: true})
	now := time.Now()
	limits := []*descriptor.Limit{
		{Requests: 7, Window: descriptor.Window{Unit: descriptor.Year}, CountDenied: descriptor.DeniedDrop},
		{Requests: 20, Window: descriptor.Window{Unit: descriptor.Year}, Algorithm: descriptor.SlidingLog},
		{Requests: 5, Window: descriptor.Window{Unit: descriptor.Year}, Algorithm: descriptor.TokenBucket, Burst: 12},
	}
	for _, l := range limits {
		if err := l.Compile(); err != nil {
			t.Fatal(err)
		}
	}
	run := 0
	rapid.Check(t, func(rt *rapid.T) {
		run++
		used := make(map[string]int64)
		for range rapid.IntRange(1, 4).Draw(rt, "flushes") {
			var requests []*backend.Request
			for n := range rapid.IntRange(1, 70).Draw(rt, "requests") {
				r := &backend.Request{Together: n%5 == 4}
				for m := range rapid.IntRange(1, 3).Draw(rt, "takes") {
					k := rapid.IntRange(0, 5).Draw(rt, "key")
					r.Takes = append(r.Takes, backend.Take{
						Key:    fmt.Appendf(nil, "run%d-%d", run, k),
						Limit:  limits[k%len(limits)],
						Hits:   rapid.Int64Range(0, 3).Draw(rt, "hits"),
						Member: m,
					})
				}
				if r.Together { // the limiter merges takes of one counter there
					r.Takes = r.Takes[:1]
				}
				r.Outcomes = make([]backend.Outcome, len(r.Takes))
				requests = append(requests, r)
			}
			if err := store.TakeAll(t.Context(), now, requests...); err != nil {
				rt.Fatal(err)
			}
			for _, r := range requests {
				for i := range r.Takes {
					take, o := &r.Takes[i], &r.Outcomes[i]
					capacity := int64(take.Limit.Capacity())
					switch {
					case o.Allowed && (o.Used != o.Before+take.Hits || o.Used > capacity):
						rt.Fatalf("%s allowed %d hits: %+v", take.Key, take.Hits, o)
					case !o.Allowed && (o.Used != o.Before || o.Before+take.Hits <= capacity):
						rt.Fatalf("%s denied %d hits: %+v", take.Key, take.Hits, o)
					case o.Allowed:
						used[string(take.Key)] += take.Hits
					}
				}
			}
		}
		for key, want := range used {
			k := int(key[len(key)-1] - '0')
			peek := &backend.Request{Takes: []backend.Take{{Key: []byte(key), Limit: limits[k%len(limits)]}}, Outcomes: make([]backend.Outcome, 1)}
			if err := store.TakeAll(t.Context(), now, peek); err != nil {
				rt.Fatal(err)
			}
			if got := peek.Outcomes[0].Used; got != want {
				rt.Fatalf("%s has %d used, want %d by the outcomes", key, got, want)
			}
		}
	})
}

// Equal requests in one call have the same outcomes and leave the same state as the same number of calls one after the
// other, with every algorithm, below and above the limit.
func TestEqualRequestsInOneCall(t *testing.T) {
	store, _ := openStore(t, redis.Options{CallerClock: true})
	year := descriptor.Window{Unit: descriptor.Year}
	limits := map[string]*descriptor.Limit{
		"fixed":     {Requests: 40, Window: year},
		"first hit": {Requests: 40, Window: year, FirstHit: true},
		"sliding":   {Requests: 40, Window: year, Algorithm: descriptor.SlidingWindow},
		"precise":   {Requests: 40, Window: year, Algorithm: descriptor.SlidingWindow, Precision: 12},
		"log":       {Requests: 40, Window: year, Algorithm: descriptor.SlidingLog},
		"bucket":    {Requests: 7, Window: year, Algorithm: descriptor.TokenBucket, Burst: 40},
		"interval":  {Requests: 7, Window: year, Algorithm: descriptor.TokenBucket, Burst: 40, Interval: true},
		"leaky":     {Requests: 7, Window: year, Algorithm: descriptor.LeakyBucket, Burst: 39, NoDelay: descriptor.NoDelayAll},
	}
	run := 0
	for name, l := range limits {
		t.Run(name, func(t *testing.T) {
			if err := l.Compile(); err != nil {
				t.Fatal(err)
			}
			rapid.Check(t, func(rt *rapid.T) {
				run++
				now := time.Now()
				for range rapid.IntRange(1, 4).Draw(rt, "calls") {
					now = now.Add(time.Duration(rapid.Int64Range(0, int64(30*24*time.Hour)).Draw(rt, "later")))
					hits := rapid.Int64Range(-2, 3).Draw(rt, "hits")
					countDenied := rapid.Bool().Draw(rt, "count denied")
					n := rapid.IntRange(1, 30).Draw(rt, "requests")
					request := func(key string) *backend.Request {
						return &backend.Request{
							Takes:    []backend.Take{{Key: fmt.Appendf(nil, "equal-%s-%d", key, run), Limit: l, Hits: hits, CountDenied: countDenied}},
							Outcomes: make([]backend.Outcome, 1),
						}
					}
					var together []*backend.Request
					for range n {
						together = append(together, request("together"))
					}
					if err := store.TakeAll(t.Context(), now, together...); err != nil {
						rt.Fatal(err)
					}
					for i := range n {
						one := request("alone")
						if err := store.TakeAll(t.Context(), now, one); err != nil {
							rt.Fatal(err)
						}
						// Their order is open. The first outcome and the number of allowed ones are not.
						if got := together[i].Outcomes[0]; i == 0 && got != one.Outcomes[0] {
							rt.Fatalf("request %d of %d with %d hits:\n%+v together,\n%+v alone", i+1, n, hits, got, one.Outcomes[0])
						}
						together = append(together, one)
					}
					allowed := [2]int{}
					for i, r := range together {
						if r.Outcomes[0].Allowed {
							allowed[i/n]++
						}
					}
					if allowed[0] != allowed[1] {
						rt.Fatalf("%d of %d with %d hits allowed together, %d alone", allowed[0], n, hits, allowed[1])
					}
					var left [2]backend.Outcome
					for i, key := range [...]string{"together", "alone"} {
						peek := request(key)
						peek.Takes[0].Hits = 0
						if err := store.TakeAll(t.Context(), now, peek); err != nil {
							rt.Fatal(err)
						}
						left[i] = peek.Outcomes[0]
					}
					if left[0] != left[1] {
						rt.Fatalf("after %d of %d hits:\n%+v together,\n%+v alone", n, hits, left[0], left[1])
					}
				}
			})
		})
	}
}

// Requests in flight together share round trips: Redis gets fewer calls than decisions are made, no request is lost,
// and the limit holds exactly.
func TestInFlightSharesTrips(t *testing.T) {
	store, server := openStore(t, redis.Options{})
	const limit, goroutines, each = 1000, 64, 60
	l := &descriptor.Limit{Requests: limit, Window: descriptor.Window{Unit: descriptor.Year}}
	var admitted atomic.Int64
	var wg sync.WaitGroup
	for g := range goroutines {
		wg.Go(func() {
			for i := range each {
				key := "hot"
				if i%2 == 1 {
					key = fmt.Sprintf("cold%d-%d", g, i)
				}
				r := &backend.Request{Takes: []backend.Take{{Key: []byte(key), Limit: l, Hits: 1}}, Outcomes: make([]backend.Outcome, 1)}
				if err := backend.Await(t.Context(), store, time.Now(), r); err != nil {
					t.Error(err)
					return
				}
				if key == "hot" && r.Outcomes[0].Allowed {
					admitted.Add(1)
				}
			}
		})
	}
	wg.Wait()
	if admitted.Load() != limit {
		t.Errorf("admitted %d, want exactly %d", admitted.Load(), limit)
	}
	if calls := server.Calls(t, "evalsha"); calls == 0 || calls > goroutines*each/2 {
		t.Errorf("%d calls for %d decisions", calls, goroutines*each)
	}
}

// A caller whose time is up while its request waits for a flush leaves immediately, and a request that was not sent is
// not counted.
func TestCallerLeavesTheQueue(t *testing.T) {
	store, server := openStore(t, redis.Options{Timeout: 10 * longest})
	l := &descriptor.Limit{Requests: 100, Window: descriptor.Window{Unit: descriptor.Year}}
	take := func(ctx context.Context, key string) (backend.Outcome, error) {
		r := &backend.Request{Takes: []backend.Take{{Key: []byte(key), Limit: l, Hits: 1}}, Outcomes: make([]backend.Outcome, 1)}
		err := backend.Await(ctx, store, time.Now(), r)
		return r.Outcomes[0], err
	}
	if _, err := take(t.Context(), "k"); err != nil {
		t.Fatal(err)
	}
	server.Pause(t)
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			start := time.Now()
			_, err := take(ctx, "k")
			if !errors.Is(err, context.DeadlineExceeded) || time.Since(start) > longest {
				t.Errorf("after %s: %v, want the caller's deadline after 50 ms", time.Since(start), err)
			}
		})
	}
	wg.Wait()
	server.Continue(t)
	o, err := take(t.Context(), "k")
	if err != nil {
		t.Fatal(err)
	}
	// The first request and this one have counted; those that had been sent may have.
	if o.Used < 2 || o.Used > 52 {
		t.Errorf("%d used", o.Used)
	}
}
