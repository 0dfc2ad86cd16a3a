package lease

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/backend/memory"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// heatUp turns a counter hot and leaves permits in its lease.
func (f *fleet) heatUp(t testing.TB, i int, key string, l *descriptor.Limit) {
	t.Helper()
	for n := 0; n < 1000; n++ {
		f.take(i, key, l, 1)
		time.Sleep(time.Millisecond) //nolint:forbidigo // virtual time
		if f.replicas[i].permits() >= 10 {
			return
		}
	}
	t.Fatal("the counter has no lease after 1000 takes")
}

// A single replica with leases decides as the store would without them: takes of several hits, peeks, refunds, denied
// hits that count, requests with several limits. Only dormant permits and tightened limits may make it stricter. So
// this test uses window limits and intervals in which no lease ends.
func TestAloneDecidesAsTheStoreDoes(t *testing.T) {
	fixed := descriptor.Limit{Requests: 200, Window: window(1, descriptor.Minute)}
	sliding := fixed
	sliding.Algorithm = descriptor.SlidingWindow
	interval := descriptor.Limit{Requests: 100, Burst: 200, Window: window(1, descriptor.Minute), Algorithm: descriptor.TokenBucket, Interval: true}
	all := []*descriptor.Limit{leased(t, fixed), leased(t, sliding), leased(t, interval)}
	local := int64(0)
	rapid.Check(t, func(rt *rapid.T) {
		l := rapid.SampledFrom(all).Draw(rt, "limit")
		type request struct {
			pause    time.Duration
			times    int
			hits     []int64
			denied   bool
			together bool
		}
		requests := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) request {
			return request{
				pause:    time.Duration(rapid.SampledFrom([]int{0, 0, 0, 1, 5, 700, 20_000}).Draw(t, "ms")) * time.Millisecond,
				times:    rapid.IntRange(1, 30).Draw(t, "times"),
				hits:     rapid.SliceOfN(rapid.SampledFrom([]int64{1, 1, 1, 1, 2, 5, 0, -1, -3, 250}), 1, 1).Draw(t, "hits"),
				denied:   rapid.Bool().Draw(t, "count denied"),
				together: rapid.Bool().Draw(t, "together"),
			}
		}), 1, 40).Draw(rt, "requests")

		fail := ""
		synctest.Test(t, func(*testing.T) {
			f := newFleet(1, &distant{})
			central := memory.New(memory.Options{})
			for n, q := range requests {
				time.Sleep(q.pause) //nolint:forbidigo // virtual time
				for k := range q.times {
					time.Sleep(time.Millisecond) //nolint:forbidigo // virtual time
					takes := make([]backend.Take, len(q.hits))
					for i, hits := range q.hits {
						takes[i] = backend.Take{Key: []byte("k"), Limit: l, Hits: hits, CountDenied: q.denied, Member: i}
					}
					got := backend.Request{Takes: takes, Outcomes: make([]backend.Outcome, len(takes)), Together: q.together}
					want := backend.Request{Takes: takes, Outcomes: make([]backend.Outcome, len(takes)), Together: q.together}
					now := time.Now()
					if l.Algorithm != descriptor.FixedWindow && now.Sub(f.store.start) > 59*time.Second {
						return // unused permits of one window affect the next one
					}
					if err := errors.Join(backend.Await(context.Background(), f.replicas[0], now, &got), backend.Await(context.Background(), central, now, &want)); err != nil {
						fail = err.Error()
						return
					}
					for i := range takes {
						g, w := &got.Outcomes[i], &want.Outcomes[i]
						if w.Used > int64(l.Capacity()) {
							return // denied hits were counted; the permits that they void are not returned
						}
						if g.Allowed != w.Allowed || l.Algorithm == descriptor.FixedWindow && *g != *w {
							fail = fmt.Sprintf("request %d, time %d, take of %d: %+v, the store alone says %+v", n, k, takes[i].Hits, *g, *w)
							return
						}
					}
				}
			}
			local += f.replicas[0].counts.local.Load()
		})
		if fail != "" {
			rt.Fatal(fail)
		}
	})
	if local == 0 {
		t.Error("no take was answered from a lease: nothing was tested")
	}
}

// Permits that a replica holds do not make it deny a group that fits into the limit with them. A denied group leaves
// the permits in place.
func TestGroupsCountPermitsIn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(1, &distant{})
		l := leased(t, descriptor.Limit{Requests: 600, Window: window(1, descriptor.Minute)})
		none := leased(t, descriptor.Limit{Requests: 0, Window: window(1, descriptor.Minute)})
		f.heatUp(t, 0, "k", l)
		held, used := f.permits(), f.total()
		group := func(hits int64, other *descriptor.Limit) (a, b backend.Outcome) {
			r := backend.Request{Together: true, Takes: []backend.Take{
				{Key: []byte("k"), Limit: l, Hits: hits},
				{Key: []byte("other"), Limit: other, Hits: 1, Member: 1},
			}, Outcomes: make([]backend.Outcome, 2)}
			if err := backend.Await(t.Context(), f.replicas[0], time.Now(), &r); err != nil {
				t.Fatal(err)
			}
			return r.Outcomes[0], r.Outcomes[1]
		}
		if a, b := group(600-used, none); !a.Allowed || b.Allowed || a.Used != used || f.permits() != held {
			t.Errorf("all that is left, denied by another limit: %+v %+v, %d permits held of %d", a, b, f.permits(), held)
		}
		if a, _ := group(601-used, l); a.Allowed || a.Used != used || f.permits() != held {
			t.Errorf("one more than is left: %+v, %d permits held of %d", a, f.permits(), held)
		}
		if a, b := group(600-used, l); !a.Allowed || !b.Allowed || a.Before != used || a.Used != 600 || f.permits() != 0 {
			t.Errorf("all that is left: %+v %+v, %d permits held", a, b, f.permits())
		}
		if o := f.take(0, "k", l, 1); o.Allowed {
			t.Errorf("one more: %+v", o)
		}
	})
}

// Takes that arrive while permits are being fetched share that round trip.
func TestTakesWaitForOneTrip(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(1, &distant{there: time.Millisecond, back: time.Millisecond})
		l := leased(t, descriptor.Limit{Requests: 100_000, Window: window(1, descriptor.Minute)})
		for range 10 {
			f.heatUp(t, 0, "k", l)
			for f.replicas[0].permits() > 0 {
				f.take(0, "k", l, 1)
			}
		}
		before := f.store.trips.Load()
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() { f.take(0, "k", l, 1) })
		}
		wg.Wait()
		if n := f.store.trips.Load() - before; n > 3 {
			t.Errorf("20 takes at once made %d trips", n)
		}
	})
}

// A request that is cancelled stops waiting for an acquisition, its own or another's. It takes nothing from the other
// requests.
func TestCallersThatGoAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(1, &distant{})
		l := leased(t, descriptor.Limit{Requests: 100_000, Window: window(1, descriptor.Minute)})
		f.heatUp(t, 0, "k", l)
		for f.replicas[0].permits() > 0 {
			f.take(0, "k", l, 1)
		}
		f.store.there = 50 * time.Millisecond
		take := func(ctx context.Context) error {
			r := backend.Request{Takes: []backend.Take{*leasedTake(l)}, Outcomes: make([]backend.Outcome, 1)}
			err := backend.Await(ctx, f.replicas[0], time.Now(), &r)
			if r.Outcomes[0].Failed != (err != nil) {
				t.Errorf("%+v with the error %v", r.Outcomes[0], err)
			}
			return err
		}
		leading, leave := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := take(leading); err != nil {
				t.Errorf("the one who asks: %v, want the answer that came", err)
			}
		})
		synctest.Wait()
		wg.Go(func() {
			if err := take(t.Context()); err != nil {
				t.Errorf("one who waits: %v", err)
			}
		})
		wg.Go(func() {
			began := time.Now()
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
			defer cancel()
			err := take(ctx)
			if !errors.Is(err, backend.ErrUnavailable) || !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != 8*time.Millisecond {
				t.Errorf("one who has 10 ms, and leaves a fifth of it before: %v after %v", err, time.Since(began))
			}
		})
		wg.Go(func() {
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(time.Millisecond, cancel)
			if err := take(ctx); !errors.Is(err, context.Canceled) || errors.Is(err, backend.ErrUnavailable) {
				t.Errorf("one who is cancelled: %v", err)
			}
		})
		time.Sleep(5 * time.Millisecond) //nolint:forbidigo // virtual time
		leave()
		wg.Wait()
		if n := f.replicas[0].counts.failed.Load(); n != 0 {
			t.Errorf("%d acquisitions failed because a caller went away", n)
		}
	})
}

// An acquisition without an answer grants nothing. It fails immediately for all takes that share it, and is not
// repeated for a while.
func TestAcquisitionWithoutAnAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(1, &distant{there: time.Millisecond, back: time.Millisecond})
		l := leased(t, descriptor.Limit{Requests: 100_000, Window: window(1, descriptor.Minute)})
		f.heatUp(t, 0, "k", l)
		for f.replicas[0].permits() > 0 {
			f.take(0, "k", l, 1)
		}
		f.store.fail = func() (before, after bool) { return false, true }
		began, trips := time.Now(), f.store.trips.Load()
		failed := 0
		var wg sync.WaitGroup
		var mu sync.Mutex
		for range 20 {
			wg.Go(func() {
				if f.take(0, "k", l, 1).Failed {
					mu.Lock()
					failed++
					mu.Unlock()
				}
			})
		}
		wg.Wait()
		if n := f.store.trips.Load() - trips; failed != 20 || n != 1 || time.Since(began) != 2*time.Millisecond || f.permits() != 0 {
			t.Errorf("%d of 20 failed, after %d trips and %v; %d permits held", failed, n, time.Since(began), f.permits())
		}
		f.store.fail = nil
		charged := f.store.hits.Load()
		if o := f.take(0, "k", l, 1); !o.Allowed || f.store.hits.Load() != charged+1 {
			t.Errorf("the next take: %+v, %d hits charged, want its own alone", o, f.store.hits.Load()-charged)
		}
		time.Sleep(time.Second) //nolint:forbidigo // virtual time
		f.heatUp(t, 0, "k", l)
	})
}

// Denials come from the store. Until then, remaining falls with every take.
func TestOutcomesAreInOrder(t *testing.T) {
	for name, l := range limits(t, 1000, window(1, descriptor.Minute)) {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFleet(1, &distant{there: time.Microsecond})
				last := backend.Outcome{Allowed: true}
				for n := 0; ; n++ {
					o := f.take(0, "k", l, 1)
					if !o.Allowed {
						if o.RetryAfter <= 0 || o.Remaining(l.Capacity()) != 0 {
							t.Errorf("denied: %+v", o)
						}
						break
					}
					if o.Used < last.Used || o.Used != o.Before+1 || o.Used > int64(l.Capacity()) || o.ResetAfter <= 0 || o.RetryAfter != 0 {
						t.Fatalf("take %d: %+v after %+v", n, o, last)
					}
					last = o
					if n%10 == 0 {
						time.Sleep(time.Millisecond) //nolint:forbidigo // virtual time
						p := one(t, f.replicas[0], backend.Take{Key: []byte("k"), Limit: l})
						if !p.Allowed || p.Used < o.Used-1 || p.Used > o.Used {
							t.Fatalf("a peek after %+v: %+v", o, p)
						}
					}
				}
				if n := f.replicas[0].counts.local.Load(); n < int64(l.Capacity())/2 {
					t.Errorf("only %d takes were answered from leases", n)
				}
			})
		})
	}
}

// After a reload with another number, permits leased under the old limit are not used, even if the new limit is too
// small for leases.
func TestAnotherLimitIsNotServedFromTheLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(1, &distant{})
		l := leased(t, descriptor.Limit{Requests: 600, Window: window(1, descriptor.Minute)})
		f.heatUp(t, 0, "k", l)
		for f.total() < 40 {
			f.take(0, "k", l, 1)
		}
		for _, n := range []uint64{40, 39, 1} {
			lower := leased(t, descriptor.Limit{Requests: n, Window: window(1, descriptor.Minute)})
			if o := f.take(0, "k", lower, 1); o.Allowed {
				t.Errorf("41st under the new limit of %d: %+v", n, o)
			}
		}
		same := *l // reloaded without a change
		before := f.replicas[0].counts.local.Load()
		for range 20 {
			f.take(0, "k", &same, 1)
		}
		if f.replicas[0].counts.local.Load() == before {
			t.Error("a rule that was loaded again unchanged is not served from its lease")
		}
	})
}

// The memory of a limit belongs to the caller, which may reuse it for another limit after the take.
func TestLeaseOutlivesTheMemoryOfItsLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(1, &distant{})
		l := leased(t, descriptor.Limit{Requests: 600, Window: window(1, descriptor.Minute)})
		lent := *l
		f.heatUp(t, 0, "k", &lent)
		lent = descriptor.Limit{}
		before := f.replicas[0].counts.local.Load()
		f.take(0, "k", l, 1)
		if f.replicas[0].counts.local.Load() == before {
			t.Error("the lease is not used any more")
		}
	})
}

// Takes that cannot use a lease go to the store unchanged, with the full limit.
func TestWhatCannotBeLeased(t *testing.T) {
	minute := window(1, descriptor.Minute)
	for name, l := range map[string]*descriptor.Limit{
		"small":                leased(t, descriptor.Limit{Requests: 39, Window: minute}),
		"small bucket":         leased(t, descriptor.Limit{Requests: 39, Window: minute, Algorithm: descriptor.TokenBucket}),
		"queue":                leased(t, descriptor.Limit{Requests: 1000, Window: minute, Algorithm: descriptor.LeakyBucket, Burst: 1000}),
		"queue with some room": leased(t, descriptor.Limit{Requests: 1000, Window: minute, Algorithm: descriptor.LeakyBucket, Burst: 1000, NoDelay: 500}),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFleet(1, &distant{})
				allowed := 0
				for range 1100 {
					if f.take(0, "k", l, 1).Allowed {
						allowed++
					}
				}
				if f.store.trips.Load() != 1100 || allowed != int(l.Capacity()) || f.replicas[0].Len() != 0 {
					t.Errorf("%d trips for 1100 takes, %d allowed, %d counters leased", f.store.trips.Load(), allowed, f.replicas[0].Len())
				}
			})
		})
	}
	// A log that counts denied hits: each hit delays the expiry of the others.
	l := leased(t, descriptor.Limit{Requests: 1000, Window: minute, Algorithm: descriptor.SlidingLog})
	if m := termsOf(&backend.Take{Limit: l, CountDenied: true}, 1); m.Kind != backend.NoPermits {
		t.Errorf("%+v", m)
	}
}

func BenchmarkTake(b *testing.B) {
	l := leased(b, descriptor.Limit{Requests: 1 << 31, Window: window(1, descriptor.Year)})
	store := memory.New(memory.Options{})
	for name, s := range map[string]backend.Store{"leased": New(Options{Store: store}), "memory": store} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				r := backend.Request{Takes: []backend.Take{*leasedTake(l)}, Outcomes: make([]backend.Outcome, 1)}
				for pb.Next() {
					if err := backend.Await(context.Background(), s, time.Now(), &r); err != nil {
						b.Fatal(err)
					}
				}
			})
		})
	}
}

// Requests use two counters, in both orders, while permits of both are being fetched. No two requests wait for each
// other.
func TestNobodyWaitsInACircle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(1, &distant{there: time.Millisecond, back: time.Millisecond})
		l := leased(t, descriptor.Limit{Requests: 100_000, Window: window(1, descriptor.Minute)})
		keys := []string{"a", "b", "c"}
		var wg sync.WaitGroup
		for g := range 30 {
			wg.Go(func() {
				for n := range 100 {
					r := backend.Request{Outcomes: make([]backend.Outcome, 3)}
					for i := range keys {
						r.Takes = append(r.Takes, backend.Take{Key: []byte(keys[(g*(i+1)+n)%3]), Limit: l, Hits: 1, Member: i})
					}
					if err := backend.Await(t.Context(), f.replicas[0], time.Now(), &r); err != nil {
						t.Error(err)
					}
					for _, o := range r.Outcomes {
						if !o.Allowed {
							t.Errorf("%+v", o)
						}
					}
				}
			})
		}
		wg.Wait()
		used := int64(0)
		for _, key := range keys {
			used += one(t, f.replicas[0], backend.Take{Key: []byte(key), Limit: l}).Used
		}
		if used != 9000 || f.replicas[0].counts.local.Load() < 4500 {
			t.Errorf("%d hits are in use, want 9000; %d from leases", used, f.replicas[0].counts.local.Load())
		}
	})
}
