package backend

import (
	"encoding/binary"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend/scripts"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// penalties denies every take while a penalty is active. Only Settle starts one: see Take.Guards.
//
// State: Start is when the penalty ends. An outcome shows an active penalty as one hit in use.
type penalties struct{}

// A penalty that ends too late is from before the clock was set back, or from before the rule was changed. It is
// shortened to one that starts now.
func (penalties) apply(l *descriptor.Limit, s *State, now, _ int64, c commit) Outcome {
	ends, latest := s.Start, now+l.Window.Length().Microseconds()
	if ends > latest+slack {
		ends = latest
		s.move(ends, c)
	}
	if ends <= now {
		return Outcome{Allowed: true}
	}
	left := micros(ends - now)
	return Outcome{Before: 1, Used: 1, RetryAfter: left, MoreAfter: left, ResetAfter: left}
}

// begin starts a penalty, unless one is active.
func (t *Take) begin(s *State, now int64) Outcome {
	before := apply(t, s, now, commitAllowed)
	if !before.Allowed {
		return before
	}
	s.Start = now + t.Limit.Window.Length().Microseconds()
	o := apply(t, s, now, commitAllowed)
	o.Before = 0
	return o
}

// offends reports whether the limit of a take has denied it, so that a penalty starts.
func offends(t *Take, o *Outcome) bool { return t.Hits > 0 && !o.Allowed }

func (penalties) adjust(*descriptor.Limit, *State, int64, int64, int64) {}

func (penalties) expires(_ *descriptor.Limit, s *State) int64 { return s.Start }

func (penalties) rejectedMove() bool { return false }

func (penalties) entries(*descriptor.Limit) int { return 0 }

func (penalties) permits(*descriptor.Limit, bool) Permits { return Permits{} }

func (penalties) boundary(*descriptor.Limit, *Outcome) time.Duration { return 0 }

func (penalties) redis(*descriptor.Limit) *RedisForm { return &penaltyForm }

var penaltyForm = RedisForm{
	Shape: scripts.Penalty, Parameters: windowParameters, Room: numberRoom, least: 8,
	decode: func(seen []byte, _ *descriptor.Limit, _ int64, tail []uint32) (State, []uint32) {
		return State{Start: int64(binary.LittleEndian.Uint64(seen))}, tail
	},
}
