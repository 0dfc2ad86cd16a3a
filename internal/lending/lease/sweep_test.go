package lease

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/backend/memory"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/platform/metric/prom"
	"github.com/ratelimitd/ratelimitd/internal/testkit/racetest"
)

// Unused permits are returned while their window lasts, and all of them when the replica stops. A bucket gets back only
// the part that it has not refilled since.
func TestRunGivesBack(t *testing.T) {
	hour := window(1, descriptor.Hour)
	for name, l := range map[string]*descriptor.Limit{
		"fixed window":   leased(t, descriptor.Limit{Requests: 1000, Window: hour}),
		"sliding window": leased(t, descriptor.Limit{Requests: 1000, Window: hour, Algorithm: descriptor.SlidingWindow}),
		"token bucket":   leased(t, descriptor.Limit{Requests: 60, Window: hour, Algorithm: descriptor.TokenBucket, Burst: 1000}),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFleet(2, &distant{})
				r := f.replicas[0]
				ctx, stop := context.WithCancel(t.Context())
				done := make(chan error)
				go func() { done <- r.Run(ctx) }()
				f.heatUp(t, 0, "k", l)
				time.Sleep(2 * time.Second) //nolint:forbidigo // virtual time
				worn := int64(0)
				if l.Algorithm == descriptor.TokenBucket {
					worn = 1 // refilled in the time that a refund may take
				}
				if stranded := f.store.hits.Load() - f.total(); f.permits() != 0 || stranded != worn || r.counts.returned.Load() == 0 {
					t.Errorf("two seconds later %d permits are held and %d were not given back", f.permits(), stranded)
				}
				f.heatUp(t, 0, "k", l)
				time.Sleep(30 * time.Second) //nolint:forbidigo // virtual time
				if r.Len() != 0 {
					t.Errorf("%d counters are kept although nobody takes from them", r.Len())
				}
				f.heatUp(t, 0, "k", l)
				before := r.counts.returned.Load()
				stop()
				if err := <-done; err != nil {
					t.Error(err)
				}
				if f.permits() != 0 || r.counts.returned.Load() == before {
					t.Errorf("after the end %d permits are held, %d were given back", f.permits(), r.counts.returned.Load()-before)
				}
				trips := f.store.trips.Load()
				for range 50 {
					f.take(0, "k", l, 1)
				}
				if n := f.store.trips.Load() - trips; n != 50 || r.Len() != 0 {
					t.Errorf("after the end 50 takes made %d trips", n)
				}
			})
		})
	}
}

// A refund that the store carries out in the next window would remove hits of others. Near the end of a window nothing
// is returned.
func TestNothingIsGivenBackLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(1, &distant{})
		l := leased(t, descriptor.Limit{Requests: 1000, Window: window(1, descriptor.Minute)})
		log := leased(t, descriptor.Limit{Requests: 1000, Window: window(1, descriptor.Minute), Algorithm: descriptor.SlidingLog})
		time.Sleep(58 * time.Second) //nolint:forbidigo // virtual time
		f.heatUp(t, 0, "k", l)
		f.heatUp(t, 0, "log", log)
		charged := f.store.hits.Load()
		for range 5 {
			time.Sleep(500 * time.Millisecond) //nolint:forbidigo // virtual time
			f.replicas[0].Sweep(t.Context(), time.Now())
		}
		f.replicas[0].Close(t.Context(), time.Now())
		r := f.replicas[0]
		if n := charged - f.store.hits.Load(); n != 0 || f.permits() != 0 || r.counts.returned.Load() != 0 {
			t.Errorf("%d hits were given back, %d permits are held", n, f.permits())
		}
		if r.counts.leased.Load() != r.counts.used.Load()+r.counts.expired.Load() {
			t.Errorf("%d leased, %d used, %d expired", r.counts.leased.Load(), r.counts.used.Load(), r.counts.expired.Load())
		}
	})
}

// Any number of cold counters costs nothing. Hot counters are leased, up to a maximum number.
func TestColdCountersAndTheBound(t *testing.T) {
	racetest.Sequential(t)
	l := leased(t, descriptor.Limit{Requests: 1000, Window: window(1, descriptor.Minute)})
	metrics := prometheus.NewRegistry()
	r := New(Options{Store: memory.New(memory.Options{}), MaxLeases: 10, Metrics: prom.With(metrics)})
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	take := func(key string, now time.Time) {
		q := backend.Request{Takes: []backend.Take{{Key: []byte(key), Limit: l, Hits: 1}}, Outcomes: make([]backend.Outcome, 1)}
		if err := backend.Await(t.Context(), r, now, &q); err != nil {
			t.Fatal(err)
		}
	}
	for round := range 5 {
		for i := range 10_000 {
			take(fmt.Sprint("cold", i), now.Add(time.Duration(round)*time.Second+time.Duration(i)*100*time.Microsecond))
		}
	}
	if n := r.Len(); n != 0 {
		t.Errorf("%d of 10,000 cold counters are leased from", n)
	}
	for i := range 10_000 { // the most used counter is found among ten thousand others
		at := now.Add(time.Minute + time.Duration(i)*100*time.Microsecond)
		take(fmt.Sprint("cold", i), at)
		take("hot", at)
	}
	if n := r.Len(); n != 1 {
		t.Errorf("%d counters are leased from, want the hot one", n)
	}
	for i := range 100 {
		for range 50 {
			take(fmt.Sprint("hot", i), now.Add(2*time.Minute))
		}
	}
	if n := r.Len(); n > 10 {
		t.Errorf("%d counters are leased from, the bound is 10", n)
	}
	if n, err := testutil.GatherAndCount(metrics); err != nil || n != 8 {
		t.Errorf("%d metrics, %v", n, err)
	}
}

// Takes run concurrently while Run sweeps. Afterwards no goroutine runs and no permit is held.
func TestNothingIsLeft(t *testing.T) {
	before := goleak.IgnoreCurrent()
	l := leased(t, descriptor.Limit{Requests: 1_000_000, Window: window(1, descriptor.Hour)})
	r := New(Options{Store: memory.New(memory.Options{}), SweepInterval: time.Millisecond})
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- r.Run(ctx) }()
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for n := range 5000 {
				key := fmt.Sprint("k", n%3)
				one(t, r, backend.Take{Key: []byte(key), Limit: l, Hits: int64(n*i%7 - 1)})
			}
		})
	}
	wg.Wait()
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
	c := &r.counts
	if r.permits() != 0 || r.Len() != 0 || c.leased.Load() == 0 || c.leased.Load() != c.used.Load()+c.returned.Load()+c.expired.Load() {
		t.Errorf("%d permits of %d counters held; %d leased, %d used, %d returned, %d expired",
			r.permits(), r.Len(), c.leased.Load(), c.used.Load(), c.returned.Load(), c.expired.Load())
	}
	goleak.VerifyNone(t, before)
}
