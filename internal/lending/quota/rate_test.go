package quota_test

import (
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/lending/quota"
)

// The rate and burst of limits of each algorithm.
func TestRateOf(t *testing.T) {
	window := func(n uint32, u descriptor.Unit) descriptor.Window { return descriptor.Window{Unit: u, Multiplier: n} }
	for _, c := range []struct {
		name      string
		limit     descriptor.Limit
		cost      uint64
		perSecond float64
		burst     float64
		interval  time.Duration
	}{
		{"fixed window", descriptor.Limit{Requests: 100, Window: window(1, descriptor.Second)}, 1, 100, 100, 10 * time.Second},
		{"a large one", descriptor.Limit{Requests: 1_000_000, Window: window(1, descriptor.Second)}, 1, 1e6, 1e6, time.Second},
		{"cost", descriptor.Limit{Requests: 100, Window: window(1, descriptor.Second)}, 5, 20, 20, 50 * time.Second},
		{"no cost", descriptor.Limit{Requests: 100, Window: window(1, descriptor.Second)}, 0, 100, 100, 10 * time.Second},
		{"cost above the limit", descriptor.Limit{Requests: 4, Window: window(1, descriptor.Second)}, 5, 0, 0, time.Second},
		{"several units", descriptor.Limit{Requests: 30, Window: window(5, descriptor.Minute), Algorithm: descriptor.SlidingLog}, 1, 0.1, 30, 10_000 * time.Second},
		{"token bucket", descriptor.Limit{Requests: 10, Burst: 500, Window: window(1, descriptor.Second), Algorithm: descriptor.TokenBucket}, 1, 10, 500, 100 * time.Second},
		{"leaky bucket", descriptor.Limit{Requests: 10, Burst: 5, Window: window(1, descriptor.Second), Algorithm: descriptor.LeakyBucket}, 1, 10, 6, 100 * time.Second},
		{"none", descriptor.Limit{Window: window(1, descriptor.Second)}, 1, 0, 0, time.Second},
		{"one a year", descriptor.Limit{Requests: 1, Window: window(1, descriptor.Year)}, 1, 1.0 / (365 * 24 * 3600), 1, 1_000_000_000 * time.Second},
		{"a little slower than Envoy", descriptor.Limit{Requests: 1, Window: window(365*24*60*60+1, descriptor.Second)}, 1, 0, 0, time.Second},
		{"slower than Envoy", descriptor.Limit{Requests: 1, Window: window(2, descriptor.Year)}, 1, 0, 0, time.Second},
	} {
		r, ok := quota.RateOf(&c.limit, c.cost)
		if !ok || r.PerSecond != c.perSecond || r.Burst != c.burst || r.Interval != c.interval {
			t.Errorf("%s: %+v %v, want %g per second, %g at once, %s", c.name, r, ok, c.perSecond, c.burst, c.interval)
		}
	}
	if r, ok := quota.RateOf(&descriptor.Limit{Requests: 5, Algorithm: descriptor.Concurrency, Window: window(1, descriptor.Minute)}, 1); ok {
		t.Errorf("places have the rate %+v", r)
	}
	x, y := quota.Rate{PerSecond: 10, Burst: 5}, quota.Rate{PerSecond: 2, Burst: 50}
	for _, both := range []quota.Rate{x.Both(y), y.Both(x)} {
		if both != (quota.Rate{PerSecond: 2, Burst: 5, Interval: 500 * time.Second}) {
			t.Errorf("both limits are %+v", both)
		}
	}
}
