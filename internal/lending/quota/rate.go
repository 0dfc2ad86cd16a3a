package quota

import (
	"math"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// Rate is the part of limits that a token bucket can express.
type Rate struct {
	PerSecond float64 // tokens per second; 0 denies everything
	Burst     float64 // largest number of tokens

	// Interval is the fill interval of all assignments. Envoy fills a bucket continuously, so it only determines how
	// finely the rate can be divided.
	Interval time.Duration
}

const (
	// finest is the number of parts into which a rate can be divided, if the interval allows it.
	finest = 1000

	// longest is the longest fill interval. A limit of one token a year can still be divided into 31 parts.
	longest = 1_000_000_000 * time.Second

	// least is the lowest rate in Envoy: one token a year. It fills a slower bucket at this rate.
	least = 1.0 / (365 * 24 * 60 * 60)
)

// RateOf returns the rate and burst of a limit whose requests cost this many hits each. It returns false for a limit
// without a rate: concurrency.
func RateOf(l *descriptor.Limit, cost uint64) (Rate, bool) {
	if l.Algorithm == descriptor.Concurrency {
		return Rate{}, false
	}
	c := float64(max(cost, 1))
	r := Rate{PerSecond: float64(l.Requests) / c / l.Window.Length().Seconds(), Burst: float64(l.Capacity()) / c}
	if r.Burst < 1 || r.PerSecond < least {
		r = Rate{} // not one request fits
	}
	r.Interval = intervalFor(r.PerSecond)
	return r, true
}

// Both returns the rate that satisfies both limits: the lower rate and the smaller burst.
func (r Rate) Both(other Rate) Rate {
	both := Rate{PerSecond: min(r.PerSecond, other.PerSecond), Burst: min(r.Burst, other.Burst)}
	both.Interval = intervalFor(both.PerSecond)
	return both
}

// intervalFor returns the shortest interval in which a rate has enough tokens to be divided.
func intervalFor(perSecond float64) time.Duration {
	if perSecond <= 0 {
		return time.Second
	}
	return time.Duration(min(math.Ceil(finest/perSecond), longest.Seconds())) * time.Second
}
