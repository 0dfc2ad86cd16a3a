package backend

import (
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend/scripts"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// algorithm is one way to hold a limit: how its hits are counted, here and in Redis. Each has a file of its own. What its
// limits say is a row in package descriptor.
type algorithm interface {
	// apply attempts to add hits to a state at now, and leaves in it what a store has to keep. It writes only if it adds.
	apply(l *descriptor.Limit, s *State, now, hits int64, c commit) Outcome

	// expires is when a counter in this state is as good as an unused one.
	expires(l *descriptor.Limit, s *State) int64

	// refusedMove says whether refused hits, where they count, move the time at which the next hit passes.
	refusedMove() bool

	// entries is how many elements the Tail of a state has at most.
	entries(l *descriptor.Limit) int

	// redis is how a counter is kept in Redis.
	redis(l *descriptor.Limit) *RedisForm

	// permits says what hits are worth that were added and not used at once, and countDenied whether refused hits count.
	permits(l *descriptor.Limit, countDenied bool) Permits

	// boundary is how long, after the moment an outcome speaks of, a permit that was taken then stays in the window it was
	// charged to; never too long.
	boundary(l *descriptor.Limit, o *Outcome) time.Duration
}

// algorithms has a row for each of descriptor's constants.
var algorithms = [...]algorithm{
	descriptor.FixedWindow:   fixedWindow{},
	descriptor.SlidingWindow: slidingWindow{},
	descriptor.SlidingLog:    slidingLog{},
	descriptor.TokenBucket:   tokenBucket{},
	descriptor.LeakyBucket:   leakyBucket{},
}

// apply attempts a take on a state at now.
func apply(t *Take, s *State, now int64, c commit) Outcome {
	return algorithms[t.Limit.Algorithm].apply(t.Limit, s, now, t.Hits, c)
}

// Expires is when a counter in this state is as good as an unused one, in microseconds.
func Expires(l *descriptor.Limit, s *State) int64 { return algorithms[l.Algorithm].expires(l, s) }

// Entries is how many elements the Tail of a counter's state has at most.
func Entries(l *descriptor.Limit) int { return algorithms[l.Algorithm].entries(l) }

// RedisForm is one way to keep a counter in Redis. A file of package scripts does the same in Lua; its head says what the
// parameters are and how a state is written.
type RedisForm struct {
	Shape scripts.Shape

	// Parameters are p1 to p3 of a take at a time, where the reply has room for so many entries.
	Parameters func(l *descriptor.Limit, now int64, entries int) (p1, p2, p3 int64)

	// Room is the most that the script shows of a counter, in bytes.
	Room func(l *descriptor.Limit, entries int) int

	least  int // bytes of a state
	decode func(seen []byte, l *descriptor.Limit, now int64, tail []uint32) (State, []uint32)
}

// RedisFormOf is how the counter of a limit is kept in Redis.
func RedisFormOf(l *descriptor.Limit) *RedisForm { return algorithms[l.Algorithm].redis(l) }

// Decode reads what a script saw at now. tail has room for what has no fixed size, and is returned with what was appended.
func (f *RedisForm) Decode(seen []byte, l *descriptor.Limit, now int64, tail []uint32) (State, []uint32) {
	if len(seen) < f.least {
		return State{}, tail
	}
	return f.decode(seen, l, now, tail)
}

// windowParameters are the parameters of a form that needs the window's length alone.
func windowParameters(l *descriptor.Limit, _ int64, _ int) (p1, p2, p3 int64) {
	return l.Window.Length().Microseconds(), 0, 0
}

// textRoom is the room for a state of a few numbers in decimal digits.
func textRoom(*descriptor.Limit, int) int { return 40 }

// numberRoom is the room for a state of one number.
func numberRoom(*descriptor.Limit, int) int { return 8 }
