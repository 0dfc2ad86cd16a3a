package limiter

import (
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// Code is a verdict. Its numbers are the same as in Envoy's protocol.
type Code uint8

// The verdicts. A decision never has CodeUnknown: a request that cannot be decided gets an error.
const (
	CodeUnknown Code = iota
	OK
	OverLimit
)

func (c Code) String() string {
	switch c {
	case OK:
		return "OK"
	case OverLimit:
		return "OVER_LIMIT"
	default:
		return "UNKNOWN"
	}
}

// Decision is the answer to a request.
type Decision struct {
	Code         Code
	Statuses     []Status             // one per descriptor, in order
	Headers      []Header             // headers to add to the client's response
	Upstream     []Header             // headers to add to the request before it goes upstream
	Reservations []ReservationOutcome // one per descriptor, if the request is an operation on a reservation

	// Notices are about limits that are exceeded and not enforced, or almost exceeded. They are in the order of the
	// descriptors and of their limits.
	Notices []Notice

	// Delay is how long the request must wait for its turn: the longest Delay of the statuses that are enforced.
	Delay time.Duration

	// Metadata is the dynamic metadata, nil unless the settings ask for it. Values are string, bool, int, int64, uint64,
	// float64, nil, []any and map[string]any. It must not be modified: its parts may belong to the rules.
	Metadata map[string]any
}

// ReservationOutcome is the result of a reservation under one descriptor.
type ReservationOutcome struct {
	Some   bool // the descriptor has limits; else the other fields are zero
	Result backend.ReservationResult
	// reserve: hits that are reserved under each limit of the descriptor, before they are multiplied by their cost
	Reserved int64
	Expires  time.Time // reserve, extend: by the clock of the store
}

// Notice is a message about a limit in addition to the status of its descriptor.
type Notice struct {
	Kind       NoticeKind
	Descriptor int
	LimitIndex int // index in the rule's limits
	Name       string
	Percent    int64 // hits in use, as a percentage of the limit's capacity
}

// NoticeKind tells why a notice is sent.
type NoticeKind uint8

// The kinds. Clients see all but the first.
const (
	NoticeShadow NoticeKind = iota // the limit would have denied the hits
	NoticeSoft                     // the limit is exceeded, but does not deny
	NoticeWarn                     // usage has reached the rule's warn_at
)

// reset empties a decision and keeps the memory of its slices.
func (d *Decision) reset() {
	d.Code, d.Statuses, d.Headers, d.Reservations, d.Metadata = CodeUnknown, d.Statuses[:0], d.Headers[:0],
		d.Reservations[:0], nil
	d.Upstream, d.Delay, d.Notices = d.Upstream[:0], 0, d.Notices[:0]
}

// Reserved reports whether a reservation was made: the request passes, and its store has counted it. If on_error
// decides, nothing is reserved.
func (d *Decision) Reserved() bool {
	for i := range d.Statuses {
		if d.Statuses[i].Degraded != descriptor.OnErrorDefault {
			return false
		}
	}
	return d.Code == OK
}

// ReservedUntil is when the reservation expires, under the descriptor where that is first; the zero time if nothing is
// reserved.
func (d *Decision) ReservedUntil() (first time.Time) {
	for i := range d.Reservations {
		if e := d.Reservations[i].Expires; !e.IsZero() && (first.IsZero() || e.Before(first)) {
			first = e
		}
	}
	return first
}

// ReservationKnown reports whether the store knew the reservation that a commit or an extension is about: under any of
// its descriptors, or because nothing limits them.
func (d *Decision) ReservationKnown() bool {
	limited := false
	for i := range d.Reservations {
		if d.Reservations[i].Some && d.Reservations[i].Result == ReservationDone {
			return true
		}
		limited = limited || d.Reservations[i].Some
	}
	return !limited
}

// Status is the verdict on one descriptor.
type Status struct {
	Code Code

	// Rule is the rule that decided. It is nil if no rule matches, the request carries a limit, or another rule replaced
	// it.
	Rule *descriptor.Rule

	// LimitIndex is the index in Rule.Limits of the limit that the status describes, if there is one.
	LimitIndex int

	// FromRequest is set if the status describes a limit that the request carries. Rule and LimitIndex do not describe
	// that limit.
	FromRequest bool

	// Limited is set if a limit applied. Limit and Reset are then set too.
	Limited bool
	Limit   CurrentLimit

	Penalised bool // a penalty of the limit is active, or has just started

	Overridden bool // the numbers come from an operator's override, not from the rule

	Remaining uint64        // remaining hits; math.MaxUint32 if the rule is unlimited
	Reset     time.Duration // time until the window ends or the limit is full again, in whole seconds, rounded up

	RetryAfter time.Duration // over the limit: exact time until the same request would pass; negative if never
	Delay      time.Duration // leaky bucket: how long the request must wait for its turn
	MoreAfter  time.Duration // not over the limit, and nothing remains: time until another hit fits

	// Degraded is the choice of on_error (allow, deny or local) if the backend could not answer. Otherwise it is
	// descriptor.OnErrorDefault.
	Degraded descriptor.OnError
}

// UntilReset is the duration_until_reset of the answer. For a denied request it is the time until the same request
// would pass, in whole seconds, rounded up: Envoy makes Retry-After of it. For a request that passes, or that never
// would, it is Reset.
func (s *Status) UntilReset() time.Duration {
	if s.Code == OverLimit && s.RetryAfter > 0 {
		return ceilSeconds(s.RetryAfter)
	}
	return s.Reset
}

// CurrentLimit is the limit that a status describes.
type CurrentLimit struct {
	Name       string
	Requests   uint64
	Multiplier uint32          // window length in units; 0 means 1
	Unit       descriptor.Unit // descriptor.UnitUnknown if the protocol cannot express the window
}

// Header is one header.
type Header struct {
	Key   string
	Value string
}
