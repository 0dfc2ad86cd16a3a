package lease

import (
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/testkit/racetest"
	"github.com/ratelimitd/ratelimitd/internal/testkit/rapidtest"
)

// The store's clock jumps into another window: an operator set it, or a failover found a host with another clock. The
// dormant permits here were charged to a window that is over.
func TestStoreClockLeapsIntoAnotherWindow(t *testing.T) {
	for name, l := range limits(t, 1200, window(1, descriptor.Minute)) {
		m := termsOf(leasedTake(l), 1)
		if m.Kind != backend.PermitsOfWindow {
			continue
		}
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFleet(1, &distant{})
				f.heatUp(t, 0, "k", l)
				held := f.permits()
				time.Sleep(2 * m.tau) //nolint:forbidigo // virtual time
				f.store.skew = 70 * time.Second
				for f.take(0, "k", l, 1).Allowed {
				}
				if v := violations(l, f.admitted); v > 0 {
					t.Errorf("%d takes exceed the limit", v)
				}
				if n := f.replicas[0].counts.expired.Load(); n != held {
					t.Errorf("%d permits expired, want all %d of the window before", n, held)
				}
			})
		})
	}
}

// A take uses permits of the lease and hits of the store. If the lease has ended when the store answers, there is no
// moment at which both were valid, so the take fails.
func TestAnswerAfterTheEndOfTheLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(1, &distant{})
		l := leased(t, descriptor.Limit{Requests: 1000, Window: window(1, descriptor.Minute)})
		f.heatUp(t, 0, "k", l)
		held := f.permits()
		f.store.back = 600 * time.Millisecond
		for _, together := range []bool{false, true} {
			r := backend.Request{Together: together, Takes: []backend.Take{
				{Key: []byte("k"), Limit: l, Hits: held + 100},
				{Key: []byte("other"), Limit: l, Hits: 1, Member: 1},
			}, Outcomes: make([]backend.Outcome, 2)}
			err := backend.Await(t.Context(), f.replicas[0], time.Now(), &r)
			if !errors.Is(err, backend.ErrUnavailable) || !r.Outcomes[0].Failed || r.Outcomes[1].Failed != together {
				t.Errorf("together %v: %v %+v", together, err, r.Outcomes)
			}
			if f.permits() != held {
				t.Errorf("%d permits held, want the %d that were set aside", f.permits(), held)
			}
			f.store.back = 0
			f.heatUp(t, 0, "k", l)
			held = f.permits()
			f.store.back = 600 * time.Millisecond
		}
	})
}

// Permits set aside from a lease do not return to the next lease, which lives longer.
func TestSetAsideFromAnOlderLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(1, &distant{})
		l := leased(t, descriptor.Limit{Requests: 100, Window: window(1, descriptor.Minute), Algorithm: descriptor.TokenBucket, Burst: 1000})
		f.heatUp(t, 0, "k", l)
		held, expired := f.permits(), f.replicas[0].counts.expired.Load()
		f.store.back = 100 * time.Millisecond
		var wg sync.WaitGroup
		wg.Go(func() {
			if o := f.take(0, "k", l, 999); o.Allowed || o.Failed {
				t.Errorf("999 hits: %+v", o)
			}
		})
		synctest.Wait()
		f.store.back = 0
		f.take(0, "k", l, 1) // a new lease, while the other take waits
		held, now := f.permits(), held
		if held == 0 {
			t.Fatal("no new lease")
		}
		wg.Wait()
		if got := f.replicas[0].counts.expired.Load() - expired; f.permits() != held || got != now {
			t.Errorf("%d permits held of %d, %d expired of %d", f.permits(), held, got, now)
		}
	})
}

// A bucket refills while permits are dormant, so these permits expire. Otherwise a burst could exceed the bucket.
func TestPermitsOfABucketWearOff(t *testing.T) {
	racetest.Sequential(t)
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(1, &distant{})
		l := leased(t, descriptor.Limit{Requests: 20, Window: window(1, descriptor.Second), Algorithm: descriptor.TokenBucket, Burst: 2000})
		worn := 0
		for round := range rapidtest.Cases(24, 60) {
			for range 700 + round*7 {
				f.take(0, "k", l, 1)
				time.Sleep(200 * time.Microsecond) //nolint:forbidigo // virtual time
			}
			held := f.permits()
			if held > 20 {
				worn++
			}
			// The store refills the used and the dormant permits in this time: a little over a minute.
			time.Sleep(100 * time.Second) //nolint:forbidigo // virtual time
			for f.take(0, "k", l, 1).Allowed {
			}
			time.Sleep(100 * time.Second) //nolint:forbidigo // virtual time
		}
		if v := violations(l, f.admitted); v > 0 {
			t.Errorf("%d takes exceed the limit", v)
		}
		if worn < 10 {
			t.Errorf("only %d times many permits were asleep", worn)
		}
	})
}

// The same while some of the permits are still valid. All used permits have been returned, so the bucket refills only
// for the dormant ones.
func TestPermitsOfABucketWearOffOneByOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(2, &distant{})
		l := leased(t, descriptor.Limit{Requests: 20, Window: window(1, descriptor.Second), Algorithm: descriptor.TokenBucket, Burst: 4000})
		for f.permits() < 60 {
			f.take(0, "k", l, 1)
			time.Sleep(500 * time.Microsecond) //nolint:forbidigo // virtual time
		}
		one(t, f.replicas[1], backend.Take{Key: []byte("k"), Limit: l, Hits: -f.total()})
		f.admitted = append(f.admitted, admission{at: f.store.clock(), hits: -f.total()})
		held := f.permits()
		time.Sleep(2 * time.Second) //nolint:forbidigo // virtual time
		f.take(0, "k", l, 1)
		if lost := f.replicas[0].counts.expired.Load(); lost < 40 || lost > 43 {
			t.Errorf("%d permits of %d wore off within 2 s at 20 a second", lost, held)
		}
		for f.take(0, "k", l, 1).Allowed {
		}
		if v := violations(l, f.admitted); v > 0 {
			t.Errorf("%d takes exceed the limit", v)
		}
	})
}

// Denied hits that count void the rest of the window, including its leased permits.
func TestDeniedHitsVoidPermits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(1, &distant{})
		l := leased(t, descriptor.Limit{Requests: 600, Window: window(1, descriptor.Minute)})
		f.heatUp(t, 0, "k", l)
		if o := one(t, f.replicas[0], backend.Take{Key: []byte("k"), Limit: l, Hits: 601, CountDenied: true}); o.Allowed {
			t.Fatalf("601 of 600: %+v", o)
		}
		if o := f.take(0, "k", l, 1); o.Allowed || f.permits() != 0 {
			t.Errorf("after denied hits that count: %+v, %d permits held", o, f.permits())
		}
	})
}

// A denied lease is not a denied request: it does not count even where denied hits do. The rest of the limit is granted
// down to the last permit.
func TestDeniedLeaseDoesNotCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(2, &distant{})
		l := leased(t, descriptor.Limit{Requests: 1000, Window: window(1, descriptor.Minute)})
		take := func(i int) backend.Outcome {
			return one(t, f.replicas[i], backend.Take{Key: []byte("k"), Limit: l, Hits: 1, CountDenied: true})
		}
		for n := 0; n < 500 && f.replicas[0].permits() < 8; n++ {
			take(0)
			time.Sleep(time.Millisecond) //nolint:forbidigo // virtual time
		}
		for f.permits() > 0 {
			take(0)
		}
		for f.store.hits.Load() < 997 {
			take(1)
		}
		for f.replicas[1].permits() > 0 {
			take(1)
		}
		left := 1000 - f.store.hits.Load()
		for range left {
			if o := take(0); !o.Allowed {
				t.Errorf("one of the last %d: %+v", left, o)
			}
		}
		if n := f.replicas[0].counts.denied.Load(); n == 0 {
			t.Error("no lease was denied: nothing was tested")
		}
		if o := take(0); o.Allowed || o.Used != 1001 {
			t.Errorf("one more: %+v, want it counted and denied", o)
		}
	})
}

// If the backend panics, which the server survives, requests that wait for its answer do not hang.
func TestBackendThatPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(1, &distant{there: time.Millisecond})
		l := leased(t, descriptor.Limit{Requests: 10_000, Window: window(1, descriptor.Minute)})
		f.heatUp(t, 0, "k", l)
		for f.permits() > 0 {
			f.take(0, "k", l, 1)
		}
		f.store.fail = func() (before, after bool) {
			f.store.fail = nil
			panic("a defect")
		}
		var wg sync.WaitGroup
		wg.Go(func() {
			defer func() {
				if recover() == nil {
					t.Error("the backend did not panic")
				}
			}()
			f.take(0, "k", l, 1)
		})
		synctest.Wait()
		for range 5 {
			wg.Go(func() {
				if o := f.take(0, "k", l, 1); !o.Allowed {
					t.Errorf("one who waited: %+v", o)
				}
			})
		}
		wg.Wait()
	})
}
