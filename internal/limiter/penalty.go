package limiter

import (
	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/limiter/events"
)

// A limit with `penalty` denies everything for a time after it has denied hits. It has two takes: one on the penalty,
// which guards the other one. The store's contract puts the guard directly before the take that it guards; a charge
// stores the index of both. A denial by the guard is copied to the other outcome, so that later stages see one outcome
// for each limit.

// addGuard adds the take that guards t, and returns its index. Refunds, and hits that have passed, are never denied.
func (w *work) addGuard(s *subject, c *charge, t *backend.Take) int {
	if t.Hits < 0 || w.req.Purpose == Settled || s.by == byBlock || s.changesReservation() {
		return none
	}
	shadow := w.snap.settings.Shadow || s.shadow() || s.observedOnly(c)
	start := len(w.keyBytes)
	w.keyBytes = descriptor.AppendPenaltyKey(w.keyBytes, t.Key, shadow)
	w.request.Takes = append(w.request.Takes, backend.Take{
		Key: w.keyBytes[start:len(w.keyBytes):len(w.keyBytes)], Limit: c.limit.Penalty, Rule: t.Rule, Member: t.Member,
		Vote: t.Vote, Guards: true,
		Origin: t.Origin,
	})
	w.needs |= needGuard
	return len(w.request.Takes) - 1
}

// mergeGuards copies the denials of penalties to the outcomes that they guard. Charges that share a take get the same
// denial.
func (w *work) mergeGuards() {
	for i := range w.charges {
		c := &w.charges[i]
		if c.guard == none {
			continue
		}
		penalty, o := &w.request.Outcomes[c.guard], w.outcome(c)
		if penalty.Allowed || penalty.Failed || o.Failed {
			continue
		}
		o.Allowed, o.Delay, c.penalty = false, 0, penalty.RetryAfter
		if longer(penalty.RetryAfter, o.RetryAfter) {
			o.RetryAfter = penalty.RetryAfter
		}
	}
}

// began reports whether this request started a penalty.
func began(o *backend.Outcome) bool { return !o.Failed && o.Used > o.Before }

// countPenalties counts the penalties that this request started.
func (w *work) countPenalties() {
	for i := range w.request.Takes {
		if t := &w.request.Takes[i]; t.Guards && began(&w.request.Outcomes[i]) {
			w.seriesOf(&w.subjects[t.Member]).Penalties.Add(1)
		}
	}
}

// sendPenalties sends events about the enforced penalties that this request started.
func (w *work) sendPenalties(d *Decision) {
	for i := range w.subjects {
		s := &w.subjects[i]
		for j, c := range w.binding(s) {
			if c.guard != none && !w.snap.settings.Shadow && !s.shadow() && began(&w.request.Outcomes[c.guard]) {
				w.send(events.Penalty, d, i, j, c.penalty)
			}
		}
	}
}

// addPenalties adds takes that read the penalties of the counters, each with the index of its counter as its member.
func (w *work) addPenalties(c *Counters, rule *descriptor.Rule) {
	for i := range c.List {
		k := &c.List[i]
		if k.Limit.Penalty == nil {
			continue
		}
		shadow := w.snap.settings.Shadow || rule.Shadow || k.Unenforced
		w.request.Takes = append(w.request.Takes, backend.Take{
			Key: descriptor.AppendPenaltyKey(nil, []byte(k.Key), shadow), Limit: k.Limit.Penalty, Rule: rule, Member: i,
			Origin: w.request.Takes[i].Origin,
		})
	}
}

// readPenalties fills in the active penalties, from the outcomes of the takes that follow the counters' takes.
func (c *Counters) readPenalties(r *backend.Request) {
	for i := len(c.List); i < len(r.Takes); i++ {
		o, k := &r.Outcomes[i], &c.List[r.Takes[i].Member]
		if o.Allowed || k.Inactive {
			continue
		}
		k.Penalty, k.Remaining, k.Reset = o.RetryAfter, 0, max(k.Reset, o.RetryAfter)
		if longer(o.RetryAfter, k.Wait) {
			k.Wait = o.RetryAfter
		}
	}
}
