package backend

import (
	"time"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// Clock reads the two times that counting in memory needs. The zero Clock is not ready for use.
type Clock struct {
	began time.Time
	wall  int64 // began, in microseconds
}

// NewClock returns a clock.
func NewClock() Clock {
	now := time.Now()
	now = now.Add(-time.Duration(now.Nanosecond() % 1000)) // full microseconds; it keeps the monotonic time
	return Clock{now, now.UnixMicro()}
}

// Times are one instant in microseconds since the Unix epoch.
type Times struct {
	Wall int64 // wall clock time; it jumps when the clock is set

	// Elapsed is the wall time at which the Clock was made, plus the monotonic time since. It does not jump. For a time
	// without a monotonic reading, it is the wall time.
	Elapsed int64
}

// At are the times where one clock counts everything, as in Redis.
func At(now int64) Times { return Times{now, now} }

// Times returns the times of an instant.
func (c *Clock) Times(now time.Time) Times { return Times{now.UnixMicro(), c.Elapsed(now)} }

// Elapsed returns the elapsed time of an instant.
func (c *Clock) Elapsed(now time.Time) int64 {
	return c.wall + int64(now.Sub(c.began)/time.Microsecond)
}

// Of returns the time by which a limit is counted: the wall time if its windows lie on the clock or on a calendar, else
// the elapsed time.
func (t Times) Of(l *descriptor.Limit) int64 {
	if !l.FirstHit && (l.Algorithm == descriptor.FixedWindow || l.Algorithm == descriptor.SharedWindow || l.Interval) {
		return t.Wall
	}
	return t.Elapsed
}

// ToElapsed converts a time by which a limit is counted into an elapsed time.
func (t Times) ToElapsed(l *descriptor.Limit, at int64) int64 { return at - t.Of(l) + t.Elapsed }
