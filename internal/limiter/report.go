package limiter

import (
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/limiter/events"
)

// reports returns the functions to run on every decision, in order. Metrics need the code from before the server's
// shadow mode, events the code after it.
func (p *parts) reports(s *Settings) (all []report) {
	add := func(when bool, r report) {
		if when {
			all = append(all, r)
		}
	}
	add(!p.NoMetrics, (*work).countReservations)
	add(!p.NoMetrics, (*work).countRules)
	add(p.HotKeys != nil, (*work).countUses)
	add(p.Usage != nil, (*work).recordUsage)
	add(s.Shadow, (*work).passInShadow)
	add(p.Events != nil, (*work).sendEvents)
	add(!p.NoMetrics, (*work).countCode)
	return all
}

// passInShadow lets the request pass because the whole server is in shadow mode.
func (w *work) passInShadow(d *Decision) {
	if d.Code == OverLimit {
		d.Code = OK
		w.metrics.shadowed.Add(1)
	}
}

// countCode counts the decision.
func (w *work) countCode(d *Decision) { w.metrics.decisions[d.Code].Add(1) }

// countTally exports the counts that Apply collected, even if the request fails later.
func (w *work) countTally() {
	t := &w.tally
	if *t == (tally{}) {
		return
	}
	w.metrics.refunds[refundDenied].Add(uint64(t.denied))
	w.metrics.unusable.Add(uint64(t.unusable))
	for result, n := range t.unscaled {
		w.metrics.unscaled[result].Add(uint64(n))
	}
}

// countRules counts every descriptor under its rule.
func (w *work) countRules(d *Decision) {
	switch {
	case w.req.Purpose == Look:
		return
	case w.domain == nil:
		w.metrics.unknown.Add(1)
		w.scratch = w.metrics.countDomain(w.metrics.unknownDomains, w.req.Domain, len(w.req.Descriptors), w.scratch)
		return
	}
	matched := false
	for i := range w.subjects {
		s := &w.subjects[i]
		matched = matched || s.rule != nil || s.by == byRequest
		if s.overridden() {
			w.metrics.overridden.Add(1)
		}
		w.countRule(s, d.Code)
	}
	if w.needs&needGuard != 0 {
		w.countPenalties()
	}
	if !matched {
		w.scratch = w.metrics.countDomain(w.metrics.unmatched, w.req.Domain, 1, w.scratch)
	}
}

// countRule counts one descriptor. A refund is not a request, and reserved hits were counted when they were reserved.
func (w *work) countRule(s *subject, code Code) {
	c := w.decidingOf(s)
	if c == nil {
		if s.unlimited() && s.admitted > 0 {
			add(&w.seriesOf(s).Unlimited, uint64(s.admitted))
		}
		return
	}
	o := w.outcome(c)
	switch {
	case o.Failed: // counted as degraded
	case w.alreadyDecided(s):
	case s.admitted < 0:
		w.countDropped(s)
	default:
		if s.rule != nil && s.rule.Varies() {
			w.countLimits(s, code)
		}
		if s.rule != nil && s.rule.Needs&descriptor.NeedsClass != 0 {
			w.countClasses(s)
		}
		w.seriesOf(s).count(&w.request.Takes[c.take], s.admitted, o, c.penalty > 0, s.shadow(),
			w.snap.settings.NearLimitRatio)
	}
}

// countDropped counts the limits of a refund that gave nothing back.
func (w *work) countDropped(s *subject) {
	for _, c := range w.taken(s) {
		if o := w.outcome(c); !o.Failed && o.Used == o.Before {
			w.metrics.refunds[refundTooLarge].Add(1)
		}
	}
}

// sendEvents sends events about the limits that deny this request, and about limits with a notice for clients. New
// kinds of events belong here. Peeks and later steps of a reservation have no events, and neither have answers without
// a counter.
func (w *work) sendEvents(d *Decision) {
	if d.Code == OverLimit && w.req.Purpose != Settled {
		for i := range d.Statuses {
			s := &w.subjects[i]
			if c := w.decidingOf(s); d.Statuses[i].Code == OverLimit && c != nil && !w.outcome(c).Allowed {
				w.send(events.Denial, d, i, s.deciding, w.outcome(c).ResetAfter)
			}
		}
	}
	w.sendNotices(d)
	if w.needs&needGuard != 0 && (d.Code == OverLimit || len(d.Notices) > 0) {
		w.sendPenalties(d)
	}
}
