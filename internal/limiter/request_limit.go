package limiter

import (
	"math/bits"

	"github.com/ratelimitd/ratelimitd/internal/config/override"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// A request may bring a limit along for a descriptor. The domain's `request_override` says whether it counts: always, unless an override
// is active; only where it admits less than the rule; or never.

// honours reports whether the limit that a request brings along counts whatever the rules say.
func (w *work) honours() bool {
	return w.domain.RequestOverride <= descriptor.RequestHonour && !w.overridable()
}

// prefersRequest reports whether the limit that a request brings along counts instead of the rule's limits, if there is a rule.
func (w *work) prefersRequest(s *subject, d *Descriptor) bool {
	if s.rule != nil && w.applies(s) && w.overrideInForce(s.rule, s.sent).Kind != 0 {
		return false
	}
	switch w.domain.RequestOverride {
	case descriptor.RequestIgnore:
		return false
	case descriptor.RequestMin:
		return s.rule == nil || s.rule.Unlimited || s.rule.Shadow || w.slowerThan(s, d)
	default:
		return true
	}
}

// slowerThan reports whether the limit that a request brings along admits no more than any enforced limit of the rule.
func (w *work) slowerThan(s *subject, d *Descriptor) bool {
	own := d.Limit.limit(&w.snap.settings)
	for _, c := range w.chargesOf(s) {
		if c.state.idle() {
			continue
		}
		limit := c.limit
		if scale := s.rule.ScaleOf(c.index); scale != nil {
			n, _ := scale.Number(s.sent)
			multiplied := *limit
			_ = multiplied.Multiply(n) // it leaves the limit as it was
			limit = &multiplied
		}
		if faster(&own, s.rule.HitCostOf(s.sent), limit) && w.enforcedFor(s.rule, s.rule.CountedEntries(s.sent), c.index) {
			return false
		}
	}
	return true
}

// faster reports whether the limit a admits more per second than b; cost is what a hit costs under b. A concurrency limit has no
// rate, so every limit counts as faster.
func faster(a *descriptor.Limit, cost uint64, b *descriptor.Limit) bool {
	if b.Algorithm == descriptor.Concurrency {
		return true
	}
	over, requests := bits.Mul64(a.Requests, cost)
	if over > 0 {
		return true // more than any limit has
	}
	ah, al := bits.Mul64(requests, uint64(b.Window.Length()))
	bh, bl := bits.Mul64(b.Requests, uint64(a.Window.Length()))
	return ah > bh || ah == bh && al > bl
}

// chargeRequestLimit makes the limit that a request brings along the only charge of its descriptor.
func (w *work) chargeRequestLimit(s *subject, d *Descriptor) {
	w.limits = append(w.limits, d.Limit.limit(&w.snap.settings))
	w.charges = append(w.charges[:s.first], charge{limit: &w.limits[len(w.limits)-1], take: none, guard: none})
	s.rule, s.end = nil, len(w.charges)
}

// limit returns the limit as a rule would have it.
func (o *RequestLimit) limit(s *Settings) descriptor.Limit {
	l := descriptor.Limit{Requests: uint64(o.Requests), Window: descriptor.Window{Unit: descriptor.Unit(o.Unit), Multiplier: o.Multiplier}}
	if s.CalendarMonths {
		l.Window.CalendarMonth()
	}
	return l
}

// overrideInForce returns the override of a rule, or of the first of its limits that has one.
// It has no Kind if none is active.
func (w *work) overrideInForce(rule *descriptor.Rule, sent []descriptor.Entry) override.Numbers {
	if !rule.Overridable() {
		return override.Numbers{}
	}
	who := caller{rule.CountedEntries(sent), sent}
	n := w.overrideOfRule(rule, who)
	for j := 0; n.Kind == 0 && len(rule.Limits) > 1 && j < len(rule.Limits); j++ {
		n = w.overrideOf(rule, rule.Limits[j].Name, who)
	}
	return n
}
