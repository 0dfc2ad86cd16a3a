package metric

import (
	"slices"
	"sync/atomic"
	"time"
)

// Durations counts durations in buckets.
type Durations struct {
	bounds []time.Duration // ascending upper bounds of all buckets except the last, which has none
	counts []atomic.Uint64 // number of durations in each bucket
	sum    atomic.Int64    // nanoseconds
}

// NewDurations returns Durations with these upper bounds, in ascending order. A duration that equals a bound belongs to
// its bucket.
func NewDurations(bounds []time.Duration) *Durations {
	return &Durations{bounds: bounds, counts: make([]atomic.Uint64, len(bounds)+1)}
}

// Observe counts a duration.
func (d *Durations) Observe(t time.Duration) {
	i, _ := slices.BinarySearch(d.bounds, t)
	d.counts[i].Add(1)
	d.sum.Add(int64(t))
}

// Read returns the number of durations, their sum in seconds, and for each bound in seconds the number of durations up
// to it.
func (d *Durations) Read() (count uint64, sum float64, within map[float64]uint64) {
	sum = time.Duration(d.sum.Load()).Seconds()
	within = make(map[float64]uint64, len(d.bounds))
	for i := range d.counts {
		count += d.counts[i].Load()
		if i < len(d.bounds) {
			within[d.bounds[i].Seconds()] = count
		}
	}
	return count, sum, within
}
