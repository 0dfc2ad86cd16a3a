package backend

import "github.com/ratelimitd/ratelimitd/internal/descriptor"

// State is what a counter remembers between takes. Its meaning depends on the algorithm; the zero State is a counter
// that nobody has used.
type State struct {
	Start int64 // fixed and sliding window: when the (sub-)window began, in microseconds; others say in their file
	Count int64 // fixed and sliding window: hits in it
	Prev  int64 // sliding window of precision 1: hits in the window before

	// Tail holds what has no fixed size: the hits of earlier sub-windows, newest first, or the entries of a log.
	Tail []uint32
}

// Unused says whether the state is one of a counter that nobody has used: a store need not keep it.
func (s *State) Unused() bool { return s.Start == 0 && s.Count == 0 && s.Prev == 0 && len(s.Tail) == 0 }

// commit says when a take's hits enter the state.
type commit uint8

const (
	commitNever   commit = iota // look only
	commitAllowed               // if the take is allowed
	commitAlways                // also if it is refused
)

func (c commit) adds(allowed bool) bool { return c == commitAlways || c == commitAllowed && allowed }

func (t *Take) commit() commit {
	if t.CountDenied && Countable(t.Limit) {
		return commitAlways
	}
	return commitAllowed
}

// Countable says whether the limit's algorithm can count refused hits.
func Countable(l *descriptor.Limit) bool {
	return l.Algorithm == descriptor.FixedWindow || l.Algorithm == descriptor.SlidingLog
}

// apply attempts a take on a state at now.
func apply(t *Take, s *State, now int64, c commit) Outcome {
	l := t.Limit
	switch l.Algorithm {
	case descriptor.SlidingWindow:
		return applySlidingWindow(l, s, now, t.Hits, c)
	case descriptor.SlidingLog:
		return applySlidingLog(l, s, now, t.Hits, c)
	case descriptor.TokenBucket:
		if l.Interval {
			return applyInterval(l, s, now, t.Hits, c)
		}
		return applyBucket(l, s, now, t.Hits, c)
	case descriptor.LeakyBucket:
		return applyBucket(l, s, now, t.Hits, c)
	default:
		return applyFixedWindow(l, s, now, t.Hits, c)
	}
}

// Expires is when a counter in this state is as good as one that nobody has used, in microseconds.
func Expires(l *descriptor.Limit, s *State) int64 {
	a := &l.Arithmetic
	switch l.Algorithm {
	case descriptor.SlidingWindow:
		return s.Start + a.Length*(int64(max(l.Precision, 1))+1)
	case descriptor.SlidingLog:
		if len(s.Tail) == 0 {
			return 0
		}
		return (s.Start+int64(s.Tail[len(s.Tail)-1]))*a.Quantum + a.Length
	case descriptor.TokenBucket:
		if l.Interval {
			return s.Start + ceilDiv(s.Count, int64(l.Requests))*a.Length
		}
		return moment{s.Start, s.Count}.ceil()
	case descriptor.LeakyBucket:
		return moment{s.Start, s.Count}.ceil()
	default:
		_, end := fixedBounds(l, s.Start)
		return end
	}
}
