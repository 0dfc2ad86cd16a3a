package limiter

import (
	"context"
	"iter"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/config/override"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// work is one decision on its way through the stages. When the decision is made, later ones use the same work.
type work struct {
	*parts
	state
	buffers

	lane   uint32      // lane in the hot key tracker; each work keeps the same one
	resume func(error) // called with the store's answer to a decision that Start started; allocated once
}

// parts are the components that the decisions of one limiter use, in addition to the rules.
type parts struct {
	Options
	metrics *metrics
}

// state is the state of one decision outside the buffers. Every decision starts with the zero value.
type state struct {
	question
	needs   descriptor.Needs
	tally   tally
	pending pending
}

// question is the request, with the rules and the time that decide it.
type question struct {
	req    *Request
	snap   *snapshot
	domain *descriptor.Domain // nil if the domain has no rules
	now    time.Time

	// showsAll is set where an operator looks at a descriptor's counters: limits that do not apply now are found too.
	showsAll bool
}

// tally holds counts that are exported even if the request fails later.
type tally struct {
	denied   int                          // refunds that the domain does not allow
	unusable int                          // overrides that the rules do not allow any more
	unscaled [descriptor.ScaleResults]int // numbers of entries that were not used as they are
}

// pending tells how to finish a decision that Start started.
type pending struct {
	ctx      context.Context
	decision *Decision
	done     func(error)
}

// buffers is memory that the next decision uses again. Each stage appends to different buffers.
type buffers struct {
	subjects          []subject             // one for each descriptor
	charges           []charge              // those of the first descriptor, then those of the second, ...
	limits            []descriptor.Limit    // limits that are not the rules': of requests, and with other numbers
	entries           []descriptor.Entry    // entries with grouped values, for rules that group values
	replaced          []string              // the names of limits that matching rules replace
	namedReservations []Reservation         // the reservations that entries name
	request           backend.Request       // the request to the store
	origins           []backend.Origin      // origins of the takes whose limits are counted across regions
	keyBytes          []byte                // the keys of all takes, one after the other
	reservations      []backend.Reservation // reservations of the takes, which point here
	joining           joining               // maps charges that share a counter to a single take
	countedHere       backend.SubRequest    // the takes that this replica counts because of on_error: local
	// times that clients see instead of the outcomes', by charge; only if descriptor.NeedsActive
	spans   []span
	text    headerText // the values of the headers that the domain defines
	scratch []byte     // buffer for lookup keys
}

const (
	maxKept      = 1024     // elements of the largest buffer that is kept, so that a huge request does not hold its memory
	maxKeptBytes = 64 << 10 // the same for bytes
)

// empty empties all buffers.
func (b *buffers) empty() {
	empty(&b.subjects, maxKept)
	empty(&b.charges, maxKept)
	empty(&b.limits, maxKept)
	empty(&b.entries, maxKept)
	empty(&b.replaced, maxKept)
	empty(&b.namedReservations, maxKept)
	empty(&b.request.Takes, maxKept)
	empty(&b.request.Outcomes, maxKept)
	empty(&b.origins, maxKept)
	empty(&b.keyBytes, maxKeptBytes)
	empty(&b.reservations, maxKept)
	empty(&b.joining.table, maxKeptBytes/4)
	empty(&b.joining.members, maxKept)
	if b.countedHere.Clear(); cap(b.countedHere.Takes) > maxKept {
		b.countedHere = backend.SubRequest{}
	}
	empty(&b.spans, maxKept)
	empty(&b.text.bytes, maxKeptBytes)
	empty(&b.text.ends, maxKept)
	empty(&b.scratch, maxKeptBytes)
}

// empty empties a buffer, so that the objects it pointed to can be collected. A large buffer is dropped.
func empty[T any](s *[]T, most int) {
	switch {
	case len(*s) == 0:
	case cap(*s) > most:
		*s = nil
	default:
		clear(*s)
		*s = (*s)[:0]
	}
}

// reset makes a work ready for the next decision.
func (w *work) reset() {
	w.state = state{}
	w.empty()
}

// subject is one descriptor on its way to a status.
type subject struct {
	matched *descriptor.Rule // the rule that matches it; nil if none does, or if it was not needed
	// the same rule while it applies; nil if the request's own limit applies instead, or none of the rule's limits
	rule *descriptor.Rule

	sent             []descriptor.Entry // its entries, without one that names a reservation
	counted          []descriptor.Entry // the same entries with grouped values
	namesReservation bool               // its last entry names a reservation
	reservation      *Reservation       // the reservation that this descriptor operates on; nil without one
	numbers          *override.Numbers  // the override that the descriptor carries; nil without one

	hits       int64 // hits that the descriptor adds
	admitted   int64 // hits that passed, fewer than hits if only some were reserved; set by Judge
	first, end int   // its charges are work.charges[first:end]

	by            authority
	allUnenforced bool // no limit of the descriptor is enforced for this customer

	degraded descriptor.OnError // how on_error answered; descriptor.OnErrorDefault: the store did
	deciding int                // the charge that its status describes; none: it has no take; set by Judge
}

// authority is whose numbers a descriptor is decided by.
type authority uint8

const (
	byRule    authority = iota
	byRequest           // the request carries a limit
	byNumbers           // an override gives the rule's limits other numbers
	byBlock             // an override denies everything
	byLift              // an override lifts all limits: nothing is counted
)

// overridden reports whether an override is active.
func (s *subject) overridden() bool { return s.by >= byNumbers }

// unlimited reports whether every request passes: because of the rule, or because an override lifts its limits.
func (s *subject) unlimited() bool { return s.rule != nil && s.rule.Unlimited || s.by == byLift }

// shadow reports whether nothing of the descriptor is enforced.
func (s *subject) shadow() bool { return s.allUnenforced || s.rule != nil && s.rule.Shadow }

// observedOnly reports whether a charge is counted without a vote: its limit is not enforced for this customer, while
// another limit of the descriptor is.
func (s *subject) observedOnly(c *charge) bool { return c.state&unenforced != 0 && !s.allUnenforced }

// charge is one limit of a descriptor. Every limit of its rule has one, even a limit that does not apply now: operators
// see them, and a wait may last until they apply.
type charge struct {
	limit *descriptor.Limit // the limit, with the numbers for this customer
	// the share of the limit under which only this replica has counted the take; nil if the store has counted it, under
	// the limit
	share *descriptor.Limit
	index int   // index in the rule's limits
	cost  int64 // divisor of hits for a request's own limit: the rule's cost, at least 1; 0 for a rule's limit
	take  int   // index in the request's takes; none without a take
	guard int   // index of the take on its penalty; none without a penalty
	state chargeState

	penalty time.Duration // remaining time of its penalty, set when guards are merged; 0 without an active penalty
}

const none = -1

// chargeState is the reason why a charge has no take, or a take without a vote. 0 means that the limit is enforced.
type chargeState uint8

const (
	inactive   chargeState = 1 << iota // the limit does not apply at this time
	replaced                           // a rule that matches another descriptor replaces it
	lifted                             // an override lets every request pass it
	beside                             // an override blocks the customer, and another limit of the rule carries the block
	unenforced                         // it is counted, and hits over it pass
)

// away reports whether a charge has no take.
func (s chargeState) away() bool { return s&^unenforced != 0 }

// idle reports whether the limit does not apply, regardless of overrides.
func (s chargeState) idle() bool { return s&(inactive|replaced) != 0 }

// brought reports whether the request carries the limit.
func (c *charge) brought() bool { return c.cost > 0 }

// outcome returns the answer to a charge that has a take.
func (w *work) outcome(c *charge) *backend.Outcome { return &w.request.Outcomes[c.take] }

// capacity returns how many hits fit under the limit or share that counted the charge.
func (c *charge) capacity() uint64 {
	if c.share != nil {
		return c.share.Capacity()
	}
	return c.limit.Capacity()
}

// chargesOf returns the charges of a descriptor.
func (w *work) chargesOf(s *subject) []charge { return w.charges[s.first:s.end] }

// ruleCharges returns the charges of the limits of a descriptor's rule: all but the one of a limit that the request
// carries.
func (w *work) ruleCharges(s *subject) []charge {
	return w.charges[s.first : s.first+len(s.rule.Limits)]
}

// decidingOf returns the charge that the status of a descriptor describes, or nil if the descriptor has no limits.
func (w *work) decidingOf(s *subject) *charge {
	if s.deciding == none {
		return nil
	}
	return &w.charges[s.deciding]
}

// applies reports whether a limit of a descriptor's rule applies, regardless of overrides.
func (w *work) applies(s *subject) bool {
	for _, c := range w.ruleCharges(s) {
		if !c.state.idle() {
			return true
		}
	}
	return s.rule.Unlimited
}

// dropUnused takes the rule away from a descriptor if none of the rule's limits applies. Their charges stay. A limit
// that the request carries is then the only one.
func (w *work) dropUnused(s *subject) {
	if w.applies(s) {
		return
	}
	if s.end > s.first+len(s.rule.Limits) {
		s.by = byRequest
	}
	s.rule = nil
}

// shows reports whether clients may see the limits of descriptor i.
func (w *work) shows(d *Decision, i int) bool {
	return d.Statuses[i].Limited && !w.subjects[i].shadow()
}

// taken yields the charges of a descriptor that have a take, with their positions.
func (w *work) taken(s *subject) iter.Seq2[int, *charge] {
	return func(yield func(int, *charge) bool) {
		for j := s.first; j < s.end; j++ {
			if c := &w.charges[j]; c.take != none && !yield(j, c) {
				return
			}
		}
	}
}

// binding yields the charges with a take whose limits are enforced for this customer, or all charges with a take if
// none is enforced.
func (w *work) binding(s *subject) iter.Seq2[int, *charge] {
	return func(yield func(int, *charge) bool) {
		for j := s.first; j < s.end; j++ {
			if c := &w.charges[j]; c.take != none && !s.observedOnly(c) && !yield(j, c) {
				return
			}
		}
	}
}

// counts reports whether the hits of a take count as hits of a request.
func (w *work) counts(t *backend.Take) bool {
	return w.req.Purpose == Settled || w.req.Purpose == Count &&
		(t.Reservation == nil || t.Reservation.Op == backend.OpReserve)
}

// remaining returns the remaining hits under a charge: 0 if its counter could not be read, or during a penalty.
func (w *work) remaining(c *charge) uint64 {
	if o := w.outcome(c); !o.Failed && c.penalty == 0 {
		return o.Remaining(c.capacity())
	}
	return 0
}

// span holds the times of one take for its customer: until the take would pass, until more hits fit, and until no hits
// are in use.
type span struct{ wait, more, reset time.Duration }

// spanOf returns the times of a charge's take. Nothing is free before a penalty ends. ResetAfter stays the time of the
// limit itself, which events and usage need.
func (w *work) spanOf(c *charge) span {
	o := w.outcome(c)
	s := span{o.RetryAfter, max(o.MoreAfter, c.penalty), max(o.ResetAfter, c.penalty)}
	if c.limit.Algorithm == descriptor.SlidingLog {
		// A log of an hour or more keeps a hit for some microseconds longer than its window. Rounded up to whole seconds,
		// that would be a second too many: 3,601 s for a customer that uses 60 an hour in one burst. An answer takes longer
		// than that to arrive.
		longest := max(c.limit.Window.Length(), c.penalty)
		s = span{min(s.wait, longest), min(s.more, longest), min(s.reset, longest)}
	}
	return s
}

// span returns the times of charge j: until its take would pass, which is backend.Never or 0 if it passes; until more
// hits fit; and until nothing is in use under the limit, its window ends, or it no longer applies.
func (w *work) span(j int) span {
	if len(w.spans) > 0 {
		return w.spans[j]
	}
	return w.spanOf(&w.charges[j])
}

// longer compares two waits. Nothing is longer than backend.Never.
func longer(a, b time.Duration) bool {
	if a == backend.Never || b == backend.Never {
		return a == backend.Never && b != backend.Never
	}
	return a > b
}

// headerText is the values of headers, one after the other.
type headerText struct {
	bytes []byte
	ends  []int // where each of them ends
}

// copyLimit gives a charge a copy of its limit, for other numbers.
func (w *work) copyLimit(c *charge) *descriptor.Limit {
	w.limits = append(w.limits, *c.limit)
	c.limit = &w.limits[len(w.limits)-1]
	return c.limit
}
