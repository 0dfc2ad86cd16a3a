package explain

import (
	"fmt"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/platform/terminal"
)

// State is the current state of a counter.
type State struct {
	Used      uint64 `json:"used"`
	Capacity  uint64 `json:"capacity"` // the most hits that can be in use at one instant
	Remaining uint64 `json:"remaining"`

	// the customer's class, where classes share the limit; "*" if its value has none
	Class         string `json:"class,omitempty"`
	KeptForOthers uint64 `json:"kept_for_others,omitempty"` // hits that other classes are guaranteed and have not used

	WaitSeconds float64   `json:"wait_seconds"` // time until one more hit would pass
	Never       bool      `json:"never"`        // no hit will ever pass
	Reset       float64   `json:"reset_seconds"`
	ResetAt     time.Time `json:"reset_at"` // when no hits are in use, or the window ends

	// remaining time of the limit's penalty, which denies everything
	PenaltySeconds float64 `json:"penalty_seconds,omitempty"`

	Cached bool `json:"from_over_limit_cache"` // comes from a denial in the server's denial cache, not from the store
}

// String returns the state in words.
func (s *State) String() string {
	text := fmt.Sprintf("%d of %d used, %d left", s.Used, s.Capacity, s.Remaining)
	if s.Class != "" {
		text = fmt.Sprintf("%d of %d used, %d kept for other classes, %d left", s.Used, s.Capacity, s.KeptForOthers,
			s.Remaining)
	}
	if s.PenaltySeconds > 0 {
		text += ", penalty for " + terminal.Span(seconds(s.PenaltySeconds))
	}
	switch {
	case s.Never:
		text += ", nothing ever passes"
	case s.WaitSeconds > 0:
		text += ", the next one passes in " + terminal.Span(seconds(s.WaitSeconds))
	}
	if s.Reset > 0 {
		text += ", reset in " + terminal.Span(seconds(s.Reset))
	}
	if s.Cached {
		text += " (remembered by the server's denial cache)"
	}
	return text
}

func seconds(n float64) time.Duration { return time.Duration(n * float64(time.Second)) }
