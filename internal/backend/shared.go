package backend

import (
	"slices"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// A shared counter is one that a bounded store uses for several callers of one limit, when it has no room for a counter
// of each. It has to refuse whatever any one of them would be refused alone, so it can only refuse too much. A counter
// that adds up the hits of several callers does that under every algorithm whose windows and refills lie on the clock:
// its state is never better than the state of one of them. It does not where windows begin with a hit, because another
// caller's hit may begin them.

// SharedLimit is the limit that a shared counter is kept under in the place of l. Where windows begin with a hit, it
// admits at most as much in two neighbouring windows on the clock as l does in one: any window of a caller lies in two
// such windows.
func SharedLimit(l *descriptor.Limit) *descriptor.Limit {
	if !l.FirstHit {
		return l
	}
	s := *l
	s.Algorithm, s.FirstHit, s.Interval, s.Precision = descriptor.SlidingWindow, false, false, 2
	s.Requests = min(l.Requests, l.Capacity())
	length, quantum := l.Window.Length().Microseconds(), int64(1)
	for quantum < 1_000_000 && length/quantum > maxExact/max(1, int64(s.Requests)) {
		quantum *= 10
	}
	s.Arithmetic = descriptor.Arithmetic{Length: length, Quantum: quantum}
	return &s
}

// Inherit returns the state in which a counter of l begins whose caller was counted in a shared counter until now. The
// caller has used all that is used there: that is too much, and never too little.
func Inherit(l *descriptor.Limit, shared *State, now int64) State {
	if !l.FirstHit {
		s := *shared
		s.Tail = slices.Clone(s.Tail)
		return s
	}
	used := slidingWindow{}.apply(SharedLimit(l), shared, now, 0, commitNever).Used
	if used == 0 {
		return State{}
	}
	return State{Start: now, Count: min(used, int64(l.Capacity()))}
}
