package limiter

import (
	"math"

	"github.com/ratelimitd/ratelimitd/internal/config/override"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// A request may carry a limit for a descriptor. The domain's `request_override` decides how it is used: it counts
// instead of the rule's limits (honour), or in addition to them (min), unless an override is active; or it never counts
// (ignore).
//
// With min both count, because the lower of two numbers would not bound the hits: each window that a request asks for
// has a separate counter. A client that asks for 3 per hour, then for 3 per 2 hours, and so on, would get 3 hits from
// each.

// honours reports whether the limit that a request carries counts under every rule.
func (w *work) honours() bool {
	return w.domain.RequestOverride <= descriptor.RequestHonour && !w.overridable()
}

// requestLimit decides how the limit that a request carries and the rule's limits combine.
func (w *work) requestLimit(s *subject, d *Descriptor) {
	inForce := s.rule != nil && w.applies(s)
	if inForce && w.overrideInForce(s.rule, s.sent).Kind != 0 {
		return
	}
	switch w.domain.RequestOverride {
	case descriptor.RequestIgnore:
	case descriptor.RequestMin:
		if inForce && !s.rule.Unlimited && !s.rule.Shadow {
			w.addRequestLimit(s, d)
		} else {
			s.by = byRequest
		}
	default:
		s.by = byRequest
	}
}

// chargeRequestLimit makes the limit that a request carries the only charge of its descriptor.
func (w *work) chargeRequestLimit(s *subject, d *Descriptor) {
	w.charges = w.charges[:s.first]
	l := w.chargeBrought(s, d, 1)
	// even for requests that reserve nothing: a denial may end when a reservation does
	if s.matched != nil && len(s.matched.Limits) > 0 {
		l.Reservations = s.matched.Limits[0].Reservations
	}
	s.rule = nil
}

// addRequestLimit adds the limit that a request carries to the limits of the rule. Its hits can be reserved together
// with the rule's, unless the two count different hits.
func (w *work) addRequestLimit(s *subject, d *Descriptor) {
	cost := int64(min(s.hitCost(), math.MaxInt64))
	l := w.chargeBrought(s, d, max(cost, 1))
	l.FromRequest = true
	if of := &s.rule.Limits[0]; cost == 1 && of.Algorithm != descriptor.Concurrency {
		l.Reservations = of.Reservations
	}
}

func (w *work) chargeBrought(s *subject, d *Descriptor, cost int64) *descriptor.Limit {
	w.limits = append(w.limits, d.Limit.limit(&w.snap.settings))
	l := &w.limits[len(w.limits)-1]
	w.charges = append(w.charges, charge{limit: l, cost: cost, take: none, guard: none})
	s.end = len(w.charges)
	return l
}

// limit returns the limit as a rule would have it.
func (o *RequestLimit) limit(s *Settings) descriptor.Limit {
	l := descriptor.Limit{Requests: uint64(o.Requests),
		Window: descriptor.Window{Unit: descriptor.Unit(o.Unit), Multiplier: o.Multiplier}}
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
