package backend

import "github.com/ratelimitd/ratelimitd/internal/descriptor"

// State is the memory of a counter between takes. Its meaning depends on the algorithm; the zero State is an unused
// counter.
type State struct {
	// fixed and sliding window: start of the (sub-)window, in microseconds; other algorithms explain it in their file
	Start int64
	Count int64 // fixed and sliding window: number of hits in it
	Prev  int64 // sliding window of precision 1: hits in the window before

	// Tail holds the parts without a fixed size: the hits of earlier sub-windows, newest first, or the entries of a log.
	Tail []uint32

	ahead int64 // hits that earlier takes of the group add, while Settle judges it
}

// Unused reports whether the counter is unused: a store need not keep its state.
func (s *State) Unused() bool { return s.Start == 0 && s.Count == 0 && s.Prev == 0 && len(s.Tail) == 0 }

// move changes the start of the state, unless the take only reads.
func (s *State) move(start int64, c commit) {
	if c.changes() {
		s.Start = start
	}
}

// commit decides when the hits of a take are added to the state.
type commit uint8

const (
	commitPeek    commit = iota // change nothing
	commitNever                 // add no hits
	commitAllowed               // if the take is allowed
	commitAlways                // even if it is denied
)

// changes reports whether a state that lies too far in the future is changed. It is, even if the take is denied: else
// nobody could use its counter until then.
func (c commit) changes() bool { return c != commitPeek }

func (c commit) adds(allowed bool) bool { return c == commitAlways || c == commitAllowed && allowed }

func (t *Take) commit() commit {
	if t.CountDenied && t.Limit.Has(descriptor.SettingCountDenied) {
		return commitAlways
	}
	return commitAllowed
}
