package lease

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/backend/overlimit"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/testkit/racetest"
)

// load makes takes at random times, at the given rate, independent of the answers. shares returns each replica's share
// of the load.
func (f *fleet) load(l *descriptor.Limit, perSecond float64, d time.Duration, shares func(at time.Duration) []float64) {
	began := time.Now()
	var wg sync.WaitGroup
	for i := range f.replicas {
		random := rand.New(rand.NewPCG(1, uint64(i)))
		wg.Go(func() {
			for {
				share := shares(time.Since(began))[i]
				if share == 0 {
					time.Sleep(time.Millisecond) //nolint:forbidigo // virtual time
				} else {
					time.Sleep(time.Duration(random.ExpFloat64() / (perSecond * share) * float64(time.Second))) //nolint:forbidigo // virtual time
					if time.Since(began) < d {
						wg.Go(func() { f.take(i, "k", l, 1) })
					}
				}
				if time.Since(began) >= d {
					return
				}
			}
		})
	}
	run, stop := context.WithCancel(context.Background())
	var sweeps sync.WaitGroup
	for _, r := range f.replicas {
		sweeps.Go(func() { _ = r.Run(run) })
	}
	wg.Wait()
	stop()
	sweeps.Wait()
}

func even(n int) func(time.Duration) []float64 {
	s := make([]float64, n)
	for i := range s {
		s[i] = 1 / float64(n)
	}
	return func(time.Duration) []float64 { return s }
}

func zipf(n int) func(time.Duration) []float64 {
	s, sum := make([]float64, n), 0.0
	for i := range s {
		s[i] = 1 / float64(i+1)
		sum += s[i]
	}
	for i := range s {
		s[i] /= sum
	}
	return func(time.Duration) []float64 { return s }
}

// rotating sends all load to one replica, and switches the replica at intervals.
func rotating(n int, every time.Duration) func(time.Duration) []float64 {
	all := make([][]float64, n)
	for i := range all {
		all[i] = make([]float64, n)
		all[i][i] = 1
	}
	return func(at time.Duration) []float64 { return all[int(at/every)%n] }
}

// Leases save round trips and withhold little of the limit.
func TestTripsAndUse(t *testing.T) {
	second, minute := window(1, descriptor.Second), window(1, descriptor.Minute)
	for _, c := range []struct {
		name     string
		limit    descriptor.Limit
		replicas int
		load     float64 // relative to the limit
		shares   func(time.Duration) []float64
		trips    float64 // per decision, at most
		use      float64 // share of the limit that is used, at least
	}{
		{"60000 a minute, zipf, 0.95", descriptor.Limit{Requests: 60_000, Window: minute}, 4, 0.95, zipf(4), 0.02, 0.9999},
		{"10000 in 10 s, rotating, 1.5", descriptor.Limit{Requests: 10_000, Window: window(10, descriptor.Second)}, 6, 1.5, rotating(6, 300*time.Millisecond), 0.1, 0.95},
		{"5000 a second, even, 0.9", descriptor.Limit{Requests: 5000, Window: second}, 4, 0.9, even(4), 0.1, 0.99},
		{"sliding window", descriptor.Limit{Requests: 60_000, Window: minute, Algorithm: descriptor.SlidingWindow}, 4, 0.9, zipf(4), 0.03, 0.9999},
		{"sliding log", descriptor.Limit{Requests: 30_000, Window: minute, Algorithm: descriptor.SlidingLog}, 4, 0.9, zipf(4), 0.05, 0.9999},
		{"token bucket, 0.9", descriptor.Limit{Requests: 60_000, Window: minute, Algorithm: descriptor.TokenBucket}, 4, 0.9, zipf(4), 0.02, 0.9999},
		// A bucket that is nearly empty has nothing to lease: each new permit is used immediately.
		{"token bucket, rotating, 1.5", descriptor.Limit{Requests: 60_000, Window: minute, Algorithm: descriptor.TokenBucket, Burst: 6000}, 6, 1.5, rotating(6, 700*time.Millisecond), 0.9, 0.95},
		{"sliding log, 1.5", descriptor.Limit{Requests: 30_000, Window: minute, Algorithm: descriptor.SlidingLog}, 4, 1.5, zipf(4), 0.1, 0.9},
		{"sliding window, 1.5", descriptor.Limit{Requests: 10_000, Window: window(10, descriptor.Second), Algorithm: descriptor.SlidingWindow}, 4, 1.5, zipf(4), 0.9, 0.95},
		{"many times the limit", descriptor.Limit{Requests: 4000, Window: window(10, descriptor.Second)}, 4, 5, even(4), 0.01, 0.95},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if c.replicas < 6 {
				racetest.Sequential(t) // a long calculation; those with six replicas do the same concurrently
			}
			l := leased(t, c.limit)
			synctest.Test(t, func(t *testing.T) {
				f := newFleet(c.replicas, &distant{there: 250 * time.Microsecond, back: 250 * time.Microsecond})
				for i := range f.replicas {
					o := f.replicas[i].opts
					o.Store, o.ReturnWithin = overlimit.New(overlimit.Options{Store: f.store}), 0
					f.replicas[i] = New(o)
				}
				n := l.Window.Length()
				windows := max(1, int(10*time.Second/n))
				perSecond := float64(l.Requests) / n.Seconds()
				f.load(l, perSecond*c.load, n*time.Duration(windows), c.shares)

				if v := violations(l, f.admitted); v > 0 {
					t.Errorf("%d takes exceed the limit", v)
				}
				may := float64(l.Requests) * float64(windows)
				if l.Algorithm == descriptor.TokenBucket {
					may += float64(l.Burst)
				}
				may = min(may, float64(f.asked.Load()))
				trips := float64(f.store.trips.Load()) / float64(f.asked.Load())
				use := float64(f.total()) / may
				t.Logf("%d decisions, %.4f trips per decision, %.2f%% of what may be admitted", f.asked.Load(), trips, 100*use)
				if trips > c.trips {
					t.Errorf("%.4f trips per decision, want %v at most", trips, c.trips)
				}
				if use < c.use {
					t.Errorf("admitted %.3f%% of what the limit admits, want %.2f%% at least", 100*use, 100*c.use)
				}
			})
		})
	}
}

// In each window, the unused permits of replicas stay within the lease share. The worst case is a hot replica that
// becomes idle forever; a crash is no worse.
func TestStrandedPermitsAreAFewPercentOfAWindow(t *testing.T) {
	for name, l := range limits(t, 3000, window(10, descriptor.Second)) {
		m := termsOf(leasedTake(l), 6)
		if m.Kind != backend.PermitsOfWindow {
			continue
		}
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFleet(6, &distant{})
				for round := range 20 { // all replicas become hot again and again, and never use their last lease
					for i := range f.replicas {
						if round%3 == 0 && i == round%6 {
							f.crash(i)
						}
						for range 9 {
							f.take(i, "k", l, 1)
							time.Sleep(200 * time.Microsecond) //nolint:forbidigo // virtual time
						}
						if held, most := f.permits(), int64(l.Capacity())/share; held > most {
							t.Fatalf("%d permits held, want %d at most", held, most)
						}
					}
					time.Sleep(5 * time.Millisecond) //nolint:forbidigo // virtual time
				}
				lost := f.store.hits.Load() - f.total() - f.permits()
				t.Logf("%d hits charged, %d used, %d held, %d lost by %d crashes", f.store.hits.Load(), f.total(), f.permits(), lost, 7)
				if lost > 7*m.most {
					t.Errorf("%d permits lost", lost)
				}
			})
		})
	}
}

// When an idle replica resumes within the window, its permits are valid again: short leases do not use up a window.
func TestDormantPermitsAreRevived(t *testing.T) {
	for name, l := range limits(t, 2000, window(4, descriptor.Minute)) {
		m := termsOf(leasedTake(l), 2)
		if m.Kind != backend.PermitsOfWindow {
			continue
		}
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFleet(2, &distant{there: time.Millisecond})
				for range 40 {
					for range 12 {
						f.take(0, "k", l, 1)
					}
					time.Sleep(2 * m.tau) //nolint:forbidigo // virtual time
				}
				r := f.replicas[0]
				if n := f.store.hits.Load() - f.total(); n > m.most || n != r.permits() || r.counts.expired.Load() > 0 {
					t.Errorf("%d permits charged and not used, %d of them held, %d expired", n, r.permits(), r.counts.expired.Load())
				}
				if r.counts.local.Load() < 100 {
					t.Errorf("only %d takes of 480 were answered from leases", r.counts.local.Load())
				}
				for f.take(0, "k", l, 1).Allowed {
				}
				if f.total() != int64(l.Capacity()) {
					t.Errorf("%d admitted in all, want all %d: nobody else took any", f.total(), l.Capacity())
				}
			})
		})
	}
}

func one(t testing.TB, l *Leases, take backend.Take) backend.Outcome {
	t.Helper()
	r := backend.Request{Takes: []backend.Take{take}, Outcomes: make([]backend.Outcome, 1)}
	if err := backend.Await(t.Context(), l, time.Now(), &r); err != nil {
		t.Fatal(err)
	}
	return r.Outcomes[0]
}
