package backend

import (
	"math"
	"slices"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// A shared counter is a counter that a bounded store uses for several customers of one limit, when it has no room for a
// counter for each. It must deny every request that a separate counter would deny to any of these customers. So it may
// deny too much, but it never allows too much. A counter that adds up the hits of several customers meets this
// condition under every algorithm whose windows and refills lie on the clock: its state never leaves more room than the
// separate state of one of them. Where windows start with a hit, it does not meet the condition, because the hit of
// another customer may start them.

// SharedLimit is the limit that a shared counter uses instead of l. Where windows start with a hit, the shared limit
// allows at most as much in two neighbouring windows on the clock as l allows in one window: any window of a customer
// lies within two such windows.
func SharedLimit(l *descriptor.Limit) *descriptor.Limit {
	if !l.FirstHit {
		return l
	}
	s := *l
	s.Algorithm, s.FirstHit, s.Interval, s.Precision = descriptor.SlidingWindow, false, false, 2
	s.Requests = min(l.Requests, l.Capacity(), math.MaxUint32) // its sub-windows have 32 bits
	length, quantum := l.Window.Length().Microseconds(), int64(1)
	for quantum < 1_000_000 && length/quantum > maxExact/max(1, int64(s.Requests)) {
		quantum *= 10
	}
	s.Arithmetic = descriptor.Arithmetic{Length: length, Quantum: quantum}
	return &s
}

// Inherit returns the first state of a new counter of l, for a customer who was counted in a shared counter until now.
// It charges all hits of the shared counter to the customer: this may be too much, but never too little.
func Inherit(l *descriptor.Limit, shared *State, now int64) State {
	if !l.FirstHit {
		s := *shared
		s.Tail = slices.Clone(s.Tail)
		return s
	}
	used := slidingWindow{}.apply(SharedLimit(l), shared, now, 0, commitPeek).Used
	if used == 0 {
		return State{}
	}
	return State{Start: now, Count: min(used, int64(l.Capacity()))}
}
