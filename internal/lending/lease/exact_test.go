package lease

import (
	"context"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/testkit/racetest"
	_ "github.com/ratelimitd/ratelimitd/internal/testkit/rapidtest"
)

// step is an action of one replica: it pauses, then makes a number of takes on several goroutines.
type step struct {
	pause time.Duration
	takes int
	hits  int64
	apart time.Duration
	wide  int
	crash bool
	sweep bool
}

// All admitted takes together stay within the limit, under any load and with any distance, clock and failures of the
// store. Replicas crash without returning their permits.
func TestNeverAdmitsTooMuch(t *testing.T) {
	all := limits(t, 300, window(1, descriptor.Second))
	for name, l := range limits(t, 1200, window(8, descriptor.Second)) {
		all[name+", 8 s"] = l
	}
	names := slices.Sorted(maps.Keys(all))
	duration := func(most time.Duration) *rapid.Generator[time.Duration] {
		return rapid.Custom(func(t *rapid.T) time.Duration {
			return time.Duration(rapid.Int64Range(0, int64(most)).Draw(t, "ns"))
		})
	}
	local := int64(0)
	rapid.Check(t, func(rt *rapid.T) {
		l := all[rapid.SampledFrom(names).Draw(rt, "limit")]
		d := &distant{
			there: duration(3*time.Millisecond).Draw(rt, "there"),
			back:  duration(3*time.Millisecond).Draw(rt, "back"),
			skew:  duration(2*time.Second).Draw(rt, "skew"),
			drift: rapid.Float64Range(-0.0009, 0.0009).Draw(rt, "drift"),
		}
		failing := rapid.SampledFrom([]int{0, 0, 0, 3, 10}).Draw(rt, "percent of calls that fail")
		n := rapid.IntRange(1, 6).Draw(rt, "replicas")
		steps := make([][]step, n)
		for i := range steps {
			steps[i] = rapid.SliceOfN(rapid.Custom(func(t *rapid.T) step {
				return step{
					pause: rapid.OneOf(duration(20*time.Millisecond), duration(time.Second)).Draw(t, "pause"),
					takes: rapid.IntRange(1, 150).Draw(t, "takes"),
					hits:  rapid.SampledFrom([]int64{1, 1, 1, 2, 7}).Draw(t, "hits"),
					apart: rapid.SampledFrom([]time.Duration{0, time.Microsecond, 100 * time.Microsecond, time.Millisecond}).Draw(t, "apart"),
					wide:  rapid.IntRange(1, 4).Draw(t, "wide"),
					crash: rapid.IntRange(0, 15).Draw(t, "crash") == 0,
					sweep: rapid.IntRange(0, 3).Draw(t, "sweep") == 0,
				}
			}), 1, 12).Draw(rt, "steps")
		}
		calls := 0
		var mu sync.Mutex
		d.fail = func() (before, after bool) {
			mu.Lock()
			defer mu.Unlock()
			calls++
			return failing > 0 && calls%(200/failing) == 0, failing > 0 && calls%(200/failing) == 1
		}

		var f *fleet
		synctest.Test(t, func(*testing.T) {
			f = newFleet(n, d)
			var wg sync.WaitGroup
			for i := range steps {
				wg.Go(func() { f.play(i, l, steps[i]) })
			}
			wg.Wait()
		})
		for _, r := range f.replicas {
			local += r.counts.local.Load()
			if got := r.counts.used.Load() + r.counts.returned.Load() + r.counts.expired.Load() + r.permits(); got != r.counts.leased.Load() {
				rt.Errorf("%d permits leased, but %d used, returned, expired or held", r.counts.leased.Load(), got)
			}
		}
		if v := violations(l, f.admitted); v > 0 {
			rt.Fatalf("%d of %d takes exceed the limit", v, len(f.admitted))
		}
	})
	if local == 0 {
		t.Error("no take was answered from a lease: nothing was tested")
	}
}

func (f *fleet) play(i int, l *descriptor.Limit, steps []step) {
	for _, s := range steps {
		time.Sleep(s.pause) //nolint:forbidigo // virtual time
		if s.crash {
			f.crash(i)
		}
		if s.sweep {
			f.replicas[i].Sweep(context.Background(), time.Now())
		}
		var wg sync.WaitGroup
		for range s.wide {
			wg.Go(func() {
				for range s.takes {
					f.take(i, "k", l, s.hits)
					time.Sleep(s.apart) //nolint:forbidigo // virtual time
				}
			})
		}
		wg.Wait()
	}
}

// This is the worst case for leases. Every replica takes a lease and holds it for its whole life. Then all use their
// permits in the same moment in which the rest is taken from the store.
func TestHoldThenStorm(t *testing.T) {
	racetest.Sequential(t)
	for name, l := range limits(t, 1200, window(1, descriptor.Second)) {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFleet(6, &distant{there: 200 * time.Microsecond, back: 200 * time.Microsecond, skew: 300 * time.Millisecond})
				m := termsOf(leasedTake(l), 6)
				for round := range 15 {
					var wg sync.WaitGroup
					for i := range f.replicas {
						if round%7 == 6 && i < 2 {
							f.crash(i)
						}
						wg.Go(func() {
							for range 8 { // acquires a lease and uses a part of it
								f.take(i, "k", l, 1)
								time.Sleep(100 * time.Microsecond) //nolint:forbidigo // virtual time
							}
						})
					}
					wg.Wait()
					// Just before the leases end. In some rounds the store's window ends in between.
					time.Sleep(m.tau*time.Duration(70+round*2)/100 - 2*time.Millisecond) //nolint:forbidigo // virtual time
					for i := range f.replicas {
						wg.Go(func() {
							for range 400 {
								f.take(i, "k", l, 1)
							}
						})
					}
					wg.Wait()
					time.Sleep(time.Duration(round%5) * 240 * time.Millisecond) //nolint:forbidigo // virtual time
				}
				if v := violations(l, f.admitted); v > 0 {
					t.Errorf("%d of %d takes exceed the limit", v, len(f.admitted))
				}
				local := int64(0)
				for _, r := range f.replicas {
					local += r.counts.local.Load()
				}
				if local < 1000 {
					t.Errorf("only %d takes were answered from leases", local)
				}
				if !m.tightens() {
					return
				}
				// This load exceeds the tightened limit. Without the tightening it would have exceeded the rule's limit.
				tight := m.tighten(l)
				v := violations(&tight, slices.Clone(f.admitted))
				t.Logf("%d of %d takes exceed the tightened limit, none the rule's", v, len(f.admitted))
				if v == 0 {
					t.Error("no take needed the tightening: this load is not the worst")
				}
			})
		})
	}
}
