package statsd

import (
	"math"
	"math/rand/v2"
	"sync/atomic"
)

// Timings keeps a uniform random sample of the response times of each interval, at most maxTimings. So sending them
// costs the same under any load. The zero value is ready to use.
type Timings struct {
	count atomic.Uint64 // number of times since the last take
	kept  [maxTimings]atomic.Uint64
}

// maxTimings is large enough that the p99 of an interval is among the ten slowest times sent.
const maxTimings = 1000

// Observe records a response time in seconds. It never waits.
func (t *Timings) Observe(seconds float64) {
	place := t.count.Add(1) - 1
	if place >= maxTimings {
		if place = rand.Uint64N(place + 1); place >= maxTimings {
			return
		}
	}
	t.kept[place].Store(math.Float64bits(seconds))
}

// take appends the sample to b, in seconds, returns the number of times that it represents, and starts a new interval.
// A time that is observed concurrently may be counted in one interval and appear in the next.
func (t *Timings) take(b []float64) (sample []float64, count uint64) {
	count = t.count.Swap(0)
	for i := range min(count, maxTimings) {
		if bits := t.kept[i].Swap(0); bits != 0 {
			b = append(b, math.Float64frombits(bits))
		}
	}
	return b, count
}
