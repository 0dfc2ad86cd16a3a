package backend

import (
	"time"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// Take is one attempt to add hits under one limit.
type Take struct {
	Key   []byte            // identity of the counter; valid until the call returns, copy it to keep it
	Limit *descriptor.Limit // valid until the call returns, like Key: an override's limit is in the memory of the decision

	// Rule decides which share of a bounded store the counter belongs to. Nil has a separate share, as have the
	// RequestLimits of each domain.
	Rule *descriptor.Rule

	// Hits is the number of hits to add, at most MaxHits. 0 peeks (nothing is written), and a negative number refunds.
	Hits int64

	// Origin is the descriptor that led to the take. It is set for limits with Regions only.
	Origin *Origin

	// Reservation makes the take reserve its hits, or change an earlier reservation. With nil the take only adds its hits.
	Reservation *Reservation

	Member      int  // index of the descriptor that this take is for; the takes of one descriptor are neighbours
	Vote        Vote // effect of a denial on the request; takes of one member vote All or None, or Any or None
	CountDenied bool // hits count even if they are denied
	Settled     bool // its hits have passed: only the store answers, because it must count them

	// Guards marks a take on the penalty of the next take's limit (Limit.Penalty). Such a take has no hits. While the
	// penalty is active, it is denied, and the next take adds nothing. A penalty starts when the limit denies hits of the
	// next take. Both takes belong to one member, and one place has both counters.
	Guards bool
}

// Origin is a descriptor as the client sent it. It lets the home of a counter find the limit in its own rules.
type Origin struct {
	Domain  string
	Entries []descriptor.Entry
}

// Vote is the effect that the denial of a take has on the takes that are settled with it.
type Vote uint8

// The votes.
const (
	VoteAll  Vote = iota // the request passes only if all such members pass
	VoteAny              // the request passes if any such member passes
	VoteNone             // the denial does not affect the others
)

// Request holds the takes of one request, and their outcomes, which the backend fills.
type Request struct {
	Takes    []Take
	Outcomes []Outcome // has the length of Takes

	// Together settles all takes as one: if the request is denied, only takes that were denied themselves and have
	// CountDenied add their hits. Without Together, every member is settled on its own, in order, and sees the changes of
	// the members before it.
	Together bool

	// PeekWhenKnown, with Together, is for the denial cache. If the cache denies a take, and so the request, the other
	// takes only read: their outcomes contain the state of their counters, and are not judged by the hits that the takes
	// would have added.
	PeekWhenKnown bool
}

// Outcome is the answer of a backend to one take: numbers only.
type Outcome struct {
	Allowed bool
	Cached  bool // answered by the denial cache; the backend was not asked
	Failed  bool // the backend could not answer: the other fields mean nothing

	Before int64 // hits in use before the take
	Used   int64 // hits in use after it; more than the capacity when denied hits were counted
	Kept   int64 // shared window: hits that other classes are guaranteed and have not used, before the take

	RetryAfter time.Duration // denied: time until the same take would pass, or Never if it cannot pass; allowed: 0
	// time until more hits fit than now, if nothing is added; 0 if nothing is in use. It may be too long if Cached is set
	MoreAfter  time.Duration
	ResetAfter time.Duration // time until nothing is in use any more, or a window ends
	PartEnds   time.Duration // sliding window: time until the sub-window ends that hits are added to now
	Delay      time.Duration // leaky bucket: how long an allowed request has to wait for its turn

	// the limit that it was counted under, if another region has counted it with other numbers; nil for the take's limit
	Limit *descriptor.Limit
}

// Never is the RetryAfter of a take with more hits than the capacity of its limit.
const Never time.Duration = -1

// Bounds of hits and counts. Callers clamp hits; stores clamp counts. Both bounds are above any limit. Sums of two of
// them are exact in Go. In Lua such a sum may be rounded, but never to another side of a limit.
const (
	MaxHits  = descriptor.MaxRequests + 1
	MaxCount = descriptor.MaxRequests + 1
)

// Remaining is how many more hits fit in capacity after this outcome.
func (o *Outcome) Remaining(capacity uint64) uint64 {
	return uint64(max(0, int64(capacity)-o.Used-o.Kept))
}

// Fail marks outcomes as having no answer.
func Fail(outcomes []Outcome) {
	for i := range outcomes {
		outcomes[i] = Outcome{Failed: true}
	}
}
