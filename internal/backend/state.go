package backend

import "github.com/ratelimitd/ratelimitd/internal/descriptor"

// State is what a counter remembers between takes. Its meaning depends on the algorithm; the zero State is an unused
// counter.
type State struct {
	Start int64 // fixed and sliding window: when the (sub-)window began, in microseconds; other algorithms explain it in their file
	Count int64 // fixed and sliding window: number of hits in it
	Prev  int64 // sliding window of precision 1: hits in the window before

	// Tail holds what has no fixed size: the hits of earlier sub-windows, newest first, or the entries of a log.
	Tail []uint32
}

// Unused reports whether the state is that of an unused counter: a store need not keep it.
func (s *State) Unused() bool { return s.Start == 0 && s.Count == 0 && s.Prev == 0 && len(s.Tail) == 0 }

// commit says when the hits of a take are added to the state.
type commit uint8

const (
	commitNever   commit = iota // only read
	commitAllowed               // if the take is allowed
	commitAlways                // also if it is refused
)

func (c commit) adds(allowed bool) bool { return c == commitAlways || c == commitAllowed && allowed }

func (t *Take) commit() commit {
	if t.CountDenied && t.Limit.Has(descriptor.SettingCountDenied) {
		return commitAlways
	}
	return commitAllowed
}
