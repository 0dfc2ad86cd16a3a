package statsd

import (
	"math"
	"math/rand/v2"
	"sync/atomic"
)

// Timings keeps a sample of response times: as many as maxTimings of each interval, every one of them as likely as the
// others. So sending them costs the same whatever the load. The zero value is ready.
type Timings struct {
	count atomic.Uint64 // since they were last taken
	kept  [maxTimings]atomic.Uint64
}

// maxTimings is enough for the 99th percentile of an interval to be one of the ten slowest that were sent.
const maxTimings = 1000

// Observe notes a response time in seconds. It waits for nobody.
func (t *Timings) Observe(seconds float64) {
	place := t.count.Add(1) - 1
	if place >= maxTimings {
		if place = rand.Uint64N(place + 1); place >= maxTimings {
			return
		}
	}
	t.kept[place].Store(math.Float64bits(seconds))
}

// take appends the sample to b, in seconds, and returns how many times it stands for. It begins a new interval. A time
// that is just being noted may count in the one and be found in the next.
func (t *Timings) take(b []float64) (sample []float64, count uint64) {
	count = t.count.Swap(0)
	for i := range min(count, maxTimings) {
		if bits := t.kept[i].Swap(0); bits != 0 {
			b = append(b, math.Float64frombits(bits))
		}
	}
	return b, count
}
