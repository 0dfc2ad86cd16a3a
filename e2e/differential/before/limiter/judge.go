package limiter

import (
	"math"
	"time"

	"github.com/ratelimitd/ratelimitd/e2e/differential/before/backend"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// judge returns the status of descriptor i, from the outcomes of its takes.
func (c *calculation) judge(i int) Status {
	r := &c.resolved[i]
	if r.first == r.end {
		s := Status{Code: OK, Rule: r.rule}
		s.Overridden = r.own.some
		if r.unlimited() {
			s.Remaining = math.MaxUint32
		}
		return s
	}
	j := c.decidingTake(i)
	r.deciding = j
	limit, o := c.limit(i, j), &c.request.Outcomes[c.index[j]]
	if o.Failed && o.Allowed {
		return Status{Code: OK, Rule: r.rule, Degraded: r.degraded} // nothing is known about the limit
	}
	s := Status{
		Code:      OK,
		Rule:      r.rule,
		Limited:   true,
		Limit:     CurrentLimit{Name: limit.Name, Requests: limit.Requests, Unit: limit.WholeUnit()},
		Remaining: o.Remaining(c.capacity(i, j)),
		Reset:     ceilSeconds(c.reset(j)),
		Degraded:  r.degraded,
	}
	for j := r.first; j < r.end; j++ { // a limit that is not the tightest may have the longest queue
		if !r.passes(j) {
			s.Delay = max(s.Delay, c.request.Outcomes[c.index[j]].Delay)
		}
	}
	s.Overridden = r.own.some
	if !r.ownLimit {
		s.LimitIndex = r.limitAt(j - r.first)
	}
	if !o.Allowed && !r.shadow() {
		s.Code = OverLimit
		s.RetryAfter, s.Delay = c.wait(j), 0
	}
	if o.Failed || o.Penalty > 0 { // on_error: deny, or nothing passes until the penalty ends
		s.Remaining = 0
	}
	s.Penalised = o.Penalty > 0
	if c.settings.HideShadow && r.shadow() {
		s.Limited, s.Limit, s.Reset = false, CurrentLimit{}, 0
	}
	return s
}

// decidingTake returns the position in index of the take that the status of descriptor i describes: the take that refuses
// for the longest time or, if none refuses, the take with the least remaining. Takes of limits that are not enforced count only if
// no limit is.
func (c *calculation) decidingTake(i int) int {
	r := &c.resolved[i]
	best := r.first
	for r.passes(best) {
		best++
	}
	for j := best + 1; j < r.end; j++ {
		a, b := &c.request.Outcomes[c.index[j]], &c.request.Outcomes[c.index[best]]
		switch {
		case r.passes(j):
		case a.Allowed != b.Allowed:
			if !a.Allowed {
				best = j
			}
		case !a.Allowed:
			if longer(c.wait(j), c.wait(best)) {
				best = j
			}
		case a.Remaining(c.capacity(i, j)) < b.Remaining(c.capacity(i, best)):
			best = j
		}
	}
	return best
}

func longer(a, b time.Duration) bool {
	if a == backend.Never || b == backend.Never {
		return a == backend.Never && b != backend.Never
	}
	return a > b
}

// limit returns descriptor i's own limit for the take at position j of index. A take that is shared with another descriptor
// may have been decided under the other descriptor's limit.
func (c *calculation) limit(i, j int) *descriptor.Limit {
	r := &c.resolved[i]
	if r.ownLimit {
		return &r.limit
	}
	return c.ruleLimit(r, r.limitAt(j-r.first))
}

// capacity returns the capacity that the take at position j was counted against. If this process counted it alone, that is
// its share of the limit.
func (c *calculation) capacity(i, j int) uint64 {
	if c.resolved[i].degraded == descriptor.OnErrorLocal && c.settings.Replicas > 1 && c.local.Has(c.index[j]) {
		return c.share(i, j).Capacity()
	}
	return c.limit(i, j).Capacity()
}

// ceilSeconds rounds up to whole seconds, so that a client that waits this long does not return too early.
func ceilSeconds(d time.Duration) time.Duration {
	return (d + time.Second - 1) / time.Second * time.Second
}

// measure counts every descriptor under its rule.
func (l *Limiter) measure(c *calculation, d *Decision) {
	byRule, matched := c.snapshot.series, false
	for i := range c.resolved {
		r := &c.resolved[i]
		matched = matched || r.rule != nil || r.ownLimit
		if r.own.some {
			l.metrics.overridden.Add(1)
		}
		if r.first < r.end {
			t := c.index[r.deciding]
			if c.request.Outcomes[t].Failed {
				continue // counted as degraded
			}
			if r.settlesEarlier() && c.req.Purpose != Charge {
				continue // counted when they were reserved
			}
			if r.hits < 0 {
				l.countDropped(c, r)
				continue // a refund is not a request
			}
			if r.rule != nil && r.rule.Varies {
				c.countLimits(i, d.Code)
			}
			l.seriesOf(c, byRule, i).count(&c.request.Takes[t], r.hits, &c.request.Outcomes[t], r.shadow(), c.settings.NearLimitRatio)
		} else if r.unlimited() && r.hits > 0 {
			add(&l.seriesOf(c, byRule, i).Unlimited, uint64(r.hits))
		}
	}
	if c.guarded {
		l.countPenalties(c)
	}
	if !matched {
		c.name = l.metrics.countUnmatched(c.req.Domain, c.name)
	}
}

// countDropped counts the limits of a refund that gave nothing back.
func (l *Limiter) countDropped(c *calculation, r *resolved) {
	for _, t := range c.index[r.first:r.end] {
		if o := &c.request.Outcomes[t]; !o.Failed && o.Used == o.Before {
			l.metrics.refunds[refundTooLarge].Add(1)
		}
	}
}

func (l *Limiter) seriesOf(c *calculation, byRule []*series, i int) *series {
	rule := c.resolved[i].rule
	var s *series
	if rule != nil {
		s = byRule[rule.Index]
	}
	if s == nil {
		c.name = appendMetricPath(c.name[:0], c.req.Domain, c.entries(i), rule)
		s = l.metrics.ofRequest(c.name, len(c.req.Domain))
	}
	if s == l.metrics.overflow {
		l.metrics.swallowed.Add(1)
	}
	return s
}
