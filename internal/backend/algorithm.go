package backend

import (
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend/scripts"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// algorithm is one way to enforce a limit: it counts hits in memory and in Redis. Each algorithm has its own file. The
// properties of its limits are a row in package descriptor.
type algorithm interface {
	// apply attempts to add hits to a state at now. Afterwards s is the state for the store to keep. apply changes the
	// state if it adds hits, or if the state lies too far in the future: see slack.
	apply(l *descriptor.Limit, s *State, now, hits int64, c commit) Outcome

	// adjust adds delta hits, which may be negative, to the window in which hits were added at the time mark, whether or
	// not the limit allows them. The used hits of that window never fall below zero. If that window is over, nothing
	// changes.
	adjust(l *descriptor.Limit, s *State, now, mark, delta int64)

	// expires is the time from which a counter in this state is equivalent to an unused one.
	expires(l *descriptor.Limit, s *State) int64

	// rejectedMove reports whether denied hits that count postpone the time at which the next hit passes.
	rejectedMove() bool

	// entries is the maximum length of the Tail of a state.
	entries(l *descriptor.Limit) int

	// redis describes how a counter is kept in Redis.
	redis(l *descriptor.Limit) *RedisForm

	// permits describes how long leased permits of this limit stay valid: hits that are added now and used later.
	// countDenied is true if denied hits count.
	permits(l *descriptor.Limit, countDenied bool) Permits

	// boundary is how long a permit that is taken at the time of an outcome stays in the window it is charged to, counted
	// from that time.
	boundary(l *descriptor.Limit, o *Outcome) time.Duration
}

// algorithms has one row for each algorithm constant of package descriptor.
var algorithms = [...]algorithm{
	descriptor.FixedWindow:   fixedWindow{},
	descriptor.SlidingWindow: slidingWindow{},
	descriptor.SlidingLog:    slidingLog{},
	descriptor.TokenBucket:   tokenBucket{},
	descriptor.LeakyBucket:   leakyBucket{},
	descriptor.Concurrency:   concurrency{},
	descriptor.Penalties:     penalties{},
	descriptor.SharedWindow:  sharedWindow{},
}

// apply attempts a take on a state at now.
func apply(t *Take, s *State, now int64, c commit) Outcome {
	return algorithms[t.Limit.Algorithm].apply(t.Limit, s, now, t.Hits, c)
}

// slack is how far in the future a state may lie, in microseconds, if its algorithm counts time from the hits. The
// times of takes are not quite in order, and the clocks of replicas differ a little. A state that lies further in the
// future was written before a clock was set back: it is moved to the present, with the same usage. So a step of the
// clock costs at most one window, or one drain of a bucket.
//
// A state whose windows lie on the clock may be one window ahead. So no window is opened twice if the clock is set back
// by less than a window. A bucket's state may lie as far ahead as if the bucket were twice as large, because another
// replica may use a larger one.
const slack = 1_000_000

// refundable returns the hits of a take in a window with used hits. It returns 0 for a refund of more hits than that.
// Those were taken in an earlier window, so even a part of the refund would give back hits of others. Example: a refund
// of 5 in a window with 3 used hits changes nothing. Buckets do not call it, because they have no windows: such a
// refund fills them.
func refundable(hits, used int64) int64 {
	if hits < 0 && used+hits < 0 {
		return 0
	}
	return hits
}

// Expires is the time, in microseconds, from which a counter in this state is equivalent to an unused one.
func Expires(l *descriptor.Limit, s *State) int64 { return algorithms[l.Algorithm].expires(l, s) }

// ExpiresAfter returns the result of Expires for the state after a take at now with the outcome o. If the limit counts
// in windows, the outcome contains the end of the window, so its bounds need not be computed again.
func ExpiresAfter(l *descriptor.Limit, s *State, o *Outcome, now int64) int64 {
	if o.Used > 0 && l.WindowEnds() {
		return now + o.ResetAfter.Microseconds()
	}
	return Expires(l, s)
}

// Entries is the maximum length of the Tail of a counter's state.
func Entries(l *descriptor.Limit) int { return algorithms[l.Algorithm].entries(l) }

// RedisForm is one way to keep a counter in Redis. A file of package scripts does the same in Lua; its head explains
// the parameters and the format of a state.
type RedisForm struct {
	Shape scripts.Shape

	// Parameters returns p1 to p3 of a take at now. entries is the number of entries that the reply has room for.
	Parameters func(l *descriptor.Limit, now int64, entries int) (p1, p2, p3 int64)

	// Room is the maximum number of bytes that the script returns about a counter.
	Room func(l *descriptor.Limit, entries int) int

	least  int // minimum length of a state, in bytes
	decode func(seen []byte, l *descriptor.Limit, now int64, tail []uint32) (State, []uint32)
}

// RedisFormOf describes how the counter of a limit is kept in Redis.
func RedisFormOf(l *descriptor.Limit) *RedisForm { return algorithms[l.Algorithm].redis(l) }

// Decode reads the state that a script saw at now. It appends the parts without a fixed size to tail, and returns tail.
func (f *RedisForm) Decode(seen []byte, l *descriptor.Limit, now int64, tail []uint32) (State, []uint32) {
	if len(seen) < f.least {
		return State{}, tail
	}
	return f.decode(seen, l, now, tail)
}

// windowParameters returns the parameters of a form that needs only the length of the window.
func windowParameters(l *descriptor.Limit, _ int64, _ int) (p1, p2, p3 int64) {
	return l.Window.Length().Microseconds(), 0, 0
}

// textRoom is the room for a state that is a few numbers in decimal digits.
func textRoom(*descriptor.Limit, int) int { return 40 }

// numberRoom is the room for a state of one number.
func numberRoom(*descriptor.Limit, int) int { return 8 }
