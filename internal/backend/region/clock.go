package region

import "math"

// All times are in microseconds. The clocks of Redis servers show the time since the Unix epoch.
const (
	second = 1_000_000

	// drift: two clocks run apart by less than one part in this many. Each of them may be off by one in a thousand.
	drift = 400

	// unnoticed is more than the clock of a Redis can be set back without a Watch that notices: a trip to it, and the drift between
	// two readings of a replica that reads it every second.
	unnoticed = 50_000
)

// shortened is a span of another clock, on a clock that may run slower.
func shortened(d int64) int64 { return d - d/drift - 1 }

// Reading is the time at which a script runs, with what its caller knows about that clock.
type Reading struct {
	Now        int64  // what the Redis' clock shows
	Least      int64  // what it shows at least, unless it was set back: Watch.Least
	Generation uint64 // how often it was set back, as far as the caller knows

	// Rules is Answer.Rules of what the home of an account has answered last, to whomever, in the last moments. 0: not known.
	Rules uint64
}

// Watch is what a replica knows about the clock of a Redis. The replica reads it at least once a second.
//
// The clock of a Redis is set by its machine. If it is set back, permits would last longer: so the first replica that notices
// raises a number that all replicas of the region read from that Redis, the generation, and records that know a lower one give up
// what they hold. A replica notices because its own monotonic clock tells how late it must be by now.
//
// The zero Watch knows nothing: it notices no step before its first reading.
type Watch struct {
	heard int64 // on the replica's monotonic clock: when the answer with this reading arrived
	shown int64
	knows bool
}

// Saw takes in a reading whose answer arrived at heard, on the replica's monotonic clock. Of all readings the one that promises the
// latest time stays, because an answer may have been delayed.
func (w *Watch) Saw(heard, shown int64) {
	if shown > w.Least(heard) {
		w.heard, w.shown, w.knows = heard, shown, true
	}
}

// Least is the earliest time that the Redis can show to a call that is sent at sent, unless its clock was set back.
func (w *Watch) Least(sent int64) int64 {
	if !w.knows {
		return math.MinInt64
	}
	return w.shown + shortened(max(sent-w.heard, 0))
}
