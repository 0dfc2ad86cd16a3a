package limiter

import (
	"math"
	"math/bits"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// judge turns outcomes into a decision: the outcomes of a descriptor's charges into its status, and the statuses into
// the code. It calls no store and counts nothing.
func (w *work) judge(d *Decision) {
	if len(w.origins) > 0 {
		w.adoptNumbers()
	}
	if w.needs&needGuard != 0 {
		w.mergeGuards()
	}
	if w.needs&descriptor.NeedsActive != 0 {
		w.shorten()
	}
	for i := range w.subjects {
		d.Statuses = append(d.Statuses, w.status(&w.subjects[i]))
	}
	d.Code = w.code(d.Statuses)
	if w.needs&descriptor.NeedsVary != 0 {
		w.notice(d)
	}
	if w.req.Reservation != nil {
		w.reservationOutcomes(d)
	}
	if d.Code == OK || w.snap.settings.Shadow {
		d.Delay = w.delay(d)
	}
}

// status returns the status of a descriptor.
func (w *work) status(s *subject) Status {
	st := Status{Code: OK, Rule: s.rule, Overridden: s.overridden()}
	s.admitted = s.hits
	j := w.decidingCharge(s)
	if s.deciding = j; j == none {
		if s.unlimited() {
			st.Remaining = math.MaxUint32
		}
		return st
	}
	c := &w.charges[j]
	o := w.outcome(c)
	st.Degraded = s.degraded
	if o.Failed && o.Allowed { // nothing is known about the limit
		st.Overridden = false
		return st
	}
	span := w.span(j)
	st.LimitIndex, st.Limited, st.FromRequest = c.index, true, c.brought()
	st.Limit = CurrentLimit{Name: c.limit.Name, Requests: c.limit.Requests}
	st.Limit.Unit, st.Limit.Multiplier = c.limit.OnWire()
	st.Remaining, st.Reset = w.remaining(c), ceilSeconds(span.reset)
	st.Penalised = c.penalty > 0
	if !o.Allowed && !s.shadow() {
		st.Code, st.RetryAfter = OverLimit, span.wait
	} else {
		st.Delay = w.longestDelay(s)
		if st.Remaining == 0 {
			st.MoreAfter = span.more
		}
	}
	return st
}

// longestDelay returns the delay of a descriptor. A limit that is not the tightest may have the longest queue.
func (w *work) longestDelay(s *subject) (longest time.Duration) {
	for _, c := range w.binding(s) {
		longest = max(longest, w.outcome(c).Delay)
	}
	return longest
}

// decidingCharge returns the charge that the status of a descriptor describes, or none: the charge whose take is denied
// for the longest time or, if none is denied, the one with the fewest remaining hits. Limits that are not enforced
// count only if no limit is.
func (w *work) decidingCharge(s *subject) int {
	best := none
	for j := range w.binding(s) {
		if best == none || w.tighter(j, best) {
			best = j
		}
	}
	return best
}

// tighter reports whether the status describes charge j rather than charge best.
func (w *work) tighter(j, best int) bool {
	c, than := &w.charges[j], &w.charges[best]
	a, b := w.outcome(c), w.outcome(than)
	switch {
	case a.Allowed != b.Allowed:
		return !a.Allowed
	case !a.Allowed:
		return longer(w.span(j).wait, w.span(best).wait)
	default:
		return w.left(c) < w.left(than)
	}
}

// left returns the remaining hits under a charge that is not denied. For a limit that the request carries, they are
// converted to their cost under the rule, so that both can be compared.
func (w *work) left(c *charge) uint64 {
	n := w.outcome(c).Remaining(c.capacity())
	if c.cost > 1 {
		if over, n := bits.Mul64(n, uint64(c.cost)); over == 0 {
			return n
		}
		return math.MaxUint64
	}
	return n
}

// delay returns how long the request must wait for its turn.
func (w *work) delay(d *Decision) time.Duration {
	longest := time.Duration(0)
	for i := range d.Statuses {
		if w.shows(d, i) {
			longest = max(longest, d.Statuses[i].Delay)
		}
	}
	return longest
}

// adoptNumbers gives charges that another region has counted the numbers of that region: its rules and overrides count.
func (w *work) adoptNumbers() {
	for i := range w.charges {
		if c := &w.charges[i]; c.take != none {
			if l := w.outcome(c).Limit; l != nil {
				c.limit = l
			}
		}
	}
}
