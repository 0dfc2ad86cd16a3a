package lease

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/backend/memory"
	"github.com/ratelimitd/ratelimitd/internal/backend/redis"
	"github.com/ratelimitd/ratelimitd/internal/backend/redisconn"
	"github.com/ratelimitd/ratelimitd/internal/backend/redisconn/redisconntest"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
)

// patience is the timeout of calls in tests of exactness.
const patience = 30 * time.Second

func openRedis(t testing.TB, callerClock bool) *redis.Store {
	t.Helper()
	redisconn.LogTo(slog.New(slog.DiscardHandler))
	client := redisconntest.Connect(t, redisconn.Options{URL: redistest.Start(t).Addr})
	return redis.New(redis.Options{Client: client, Timeout: patience, CallerClock: callerClock})
}

// leaping is an independent clock that jumps forward between readings.
type leaping struct {
	began  time.Time
	leaped atomic.Int64
}

func (c *leaping) now() time.Time {
	return c.began.Add(time.Since(c.began) + time.Duration(c.leaped.Load()))
}

// Six replicas use one hot counter from many goroutines, with a real Redis and with the memory store. All admitted
// takes are within the limit, and nearly all of the limit is used. Replicas crash while they hold permits.
func TestSixProcessesOnOneHotCounter(t *testing.T) {
	redisStore := openRedis(t, true)
	for name, store := range map[string]backend.Store{"memory": memory.New(memory.Options{}), "redis": redisStore} {
		for limit, l := range limits(t, 1500, window(1, descriptor.Second)) {
			t.Run(name+"/"+limit, func(t *testing.T) {
				clock := &leaping{began: time.Now().Truncate(time.Second)}
				f := newFleet(6, &distant{store: store, now: clock.now})
				for i := range f.replicas {
					f.replicas[i].opts.ReturnWithin = 100 * time.Millisecond
				}
				all := func(goroutines, takes int) {
					var wg sync.WaitGroup
					for i := range f.replicas {
						for range goroutines {
							wg.Go(func() {
								for range takes {
									f.take(i, limit, l, 1)
								}
							})
						}
					}
					wg.Wait()
				}
				leap := func(d time.Duration) { clock.leaped.Add(int64(d)) }
				for round := range 12 {
					all(2, 15)
					leap(time.Duration(30+7*round) * time.Millisecond)
					if round%4 == 1 {
						f.crash(round % 6)
					}
					for _, r := range f.replicas {
						r.Sweep(context.Background(), clock.now())
					}
					all(4, 25)
					leap(time.Duration(round%3) * 250 * time.Millisecond)
				}
				if v := violations(l, f.admitted); v > 0 {
					t.Errorf("%d of %d takes exceed the limit", v, len(f.admitted))
				}
				local := int64(0)
				for _, r := range f.replicas {
					local += r.counts.local.Load()
				}
				t.Logf("%d takes, %d admitted, %d from leases, %d trips", f.asked.Load(), f.total(), local, f.store.trips.Load())
				if local == 0 {
					t.Error("no take was answered from a lease")
				}
				for _, a := range f.admitted {
					if a.maybe {
						t.Fatal("a call to the store failed")
					}
				}
			})
		}
	}
}

// With real clocks: Redis' clock for the windows, the machine's clock for the leases.
func TestWindowsOfRedisClock(t *testing.T) {
	store := openRedis(t, false)
	l := leased(t, descriptor.Limit{Requests: 2000, Window: window(1, descriptor.Second)})
	var replicas []*Leases
	for range 6 {
		replicas = append(replicas, New(Options{Store: store, Replicas: 6}))
	}
	type span struct{ from, to time.Time }
	var mu sync.Mutex
	var admitted []span
	denied := make(map[int64]bool) // seconds in which a take was denied
	began := time.Now()
	var wg sync.WaitGroup
	for _, r := range replicas {
		for range 2 {
			wg.Go(func() {
				var own []span
				var over []int64
				for time.Since(began) < 2500*time.Millisecond {
					from := time.Now()
					if one(t, r, *leasedTake(l)).Allowed {
						own = append(own, span{from, time.Now()})
					} else if over = append(over, from.Unix()); len(over) > 1 && over[len(over)-2] == from.Unix() {
						over = over[:len(over)-1]
					}
				}
				mu.Lock()
				defer mu.Unlock()
				admitted = append(admitted, own...)
				for _, second := range over {
					denied[second] = true
				}
			})
		}
	}
	wg.Wait()

	within := make(map[int64]int) // admitted by takes that started and ended in the same window
	for _, s := range admitted {
		if s.from.Unix() == s.to.Unix() {
			within[s.from.Unix()]++
		}
	}
	for second, n := range within {
		if n > int(l.Requests) {
			t.Errorf("%d admitted in the window that began at %d, the limit is %d", n, second, l.Requests)
		}
	}
	windows := time.Now().Unix() - began.Unix() + 1
	if n := int64(len(admitted)); n > windows*int64(l.Requests) {
		t.Errorf("%d admitted in %d windows", n, windows)
	}
	complete := 0
	for second := began.Unix() + 1; second < time.Now().Unix(); second++ {
		if !denied[second] {
			continue // a busy machine may not have used up this window
		}
		complete++
		if n := within[second]; n < int(l.Requests)*(share-1)/share-2*len(replicas) {
			t.Errorf("only %d admitted in the window that began at %d, the limit is %d", n, second, l.Requests)
		}
	}
	t.Logf("%d admitted in %d windows, %d of them complete", len(admitted), windows, complete)
}

// BenchmarkHotCounterOnRedis measures the round trips of a decision on a hot counter, with real clocks.
func BenchmarkHotCounterOnRedis(b *testing.B) {
	l := leased(b, descriptor.Limit{Requests: 1 << 31, Window: window(1, descriptor.Minute)})
	d := &distant{store: openRedis(b, false)}
	for name, s := range map[string]backend.Store{"leased": New(Options{Store: d, Replicas: 4}), "plain": d} {
		b.Run(name, func(b *testing.B) {
			before := d.trips.Load()
			b.RunParallel(func(pb *testing.PB) {
				r := backend.Request{Takes: []backend.Take{*leasedTake(l)}, Outcomes: make([]backend.Outcome, 1)}
				for pb.Next() {
					if err := backend.Await(context.Background(), s, time.Now(), &r); err != nil {
						b.Fatal(err)
					}
				}
			})
			b.ReportMetric(float64(d.trips.Load()-before)/float64(b.N), "trips/op")
		})
	}
}
