package backend

import (
	"time"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// Take is one attempt to add hits under one limit.
type Take struct {
	Key   []byte // identity of the counter; valid until the call returns, copy it to keep it
	Limit *descriptor.Limit

	// Rule says in whose share of a bounded store the counter is. Nil is a rule of its own, and so is what a domain has in
	// Overrides.
	Rule *descriptor.Rule

	// Hits is what to add, at most MaxHits; 0 peeks (nothing is written) and a negative number refunds.
	Hits int64

	Member      int  // which descriptor of the request this take is for; the takes of one descriptor are neighbours
	Vote        Vote // what a refusal means for the request
	CountDenied bool // hits count even when they are refused
}

// Vote says what the refusal of a take means for the takes that are settled with it.
type Vote uint8

// The votes.
const (
	VoteAll  Vote = iota // the request passes only if all such members pass
	VoteAny              // the request passes if any such member passes
	VoteNone             // the refusal does not concern the others
)

// Request is the takes of one request, and where the backend puts their outcomes.
type Request struct {
	Takes    []Take
	Outcomes []Outcome // as long as Takes

	// Together settles all takes as one: if the request is refused, no take adds anything but those that were refused
	// themselves and say CountDenied. Else every member is settled for itself, in order, and sees the ones before it.
	Together bool

	// PeekWhenKnown, with Together, is for the over-limit cache: if it knows that a take is refused, and the request with it, the other
	// takes are not judged by the hits that they would have added. They only read, and their outcomes say what their counters hold.
	PeekWhenKnown bool
}

// Outcome is what a backend says of one take: numbers only.
type Outcome struct {
	Allowed bool
	Cached  bool // answered by the over-limit cache; the backend was not asked
	Failed  bool // the backend could not answer: no other field means anything

	Before int64 // hits in use before the take
	Used   int64 // hits in use after it; more than the capacity when refused hits were counted

	RetryAfter time.Duration // refused: until the same take would pass; Never if it cannot. Else 0
	ResetAfter time.Duration // until nothing is in use any more, or a window ends
	Delay      time.Duration // leaky bucket: how long an allowed request is to wait for its turn
}

// Never is the RetryAfter of a take that is heavier than its limit's capacity.
const Never time.Duration = -1

// Bounds on hits and counts. A caller clamps hits; stores clamp counts. Both are far above any limit (32 bits) and far
// below what the arithmetic of any store can hold exactly.
const (
	MaxHits  = 1 << 32
	MaxCount = 1<<40 - 1
)

// Remaining is how many more hits capacity leaves after this outcome.
func (o *Outcome) Remaining(capacity uint32) uint32 {
	return uint32(max(0, int64(capacity)-o.Used))
}

// Fail marks outcomes as having no answer.
func Fail(outcomes []Outcome) {
	for i := range outcomes {
		outcomes[i] = Outcome{Failed: true}
	}
}
