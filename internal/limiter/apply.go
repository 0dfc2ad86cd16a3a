package limiter

import "github.com/ratelimitd/ratelimitd/internal/descriptor"

// apply makes the charges of one descriptor: one for each limit of its rule, or one for the request's own limit. The
// order matters: whether the request's own limit counts depends on which limits are active, and the cost and the scale
// come from the rule that still applies.
func (w *work) apply(s *subject, d *Descriptor) {
	s.first, s.end = len(w.charges), len(w.charges)
	if len(d.Amounts) > 0 {
		w.needs |= needAmounts
	}
	if w.domain == nil {
		return
	}
	if s.by != byRequest {
		w.chargeRule(s)
		if d.HasLimit {
			w.requestLimit(s, d)
		}
	}
	if s.by == byRequest {
		w.chargeRequestLimit(s, d)
		return
	}
	if s.rule == nil {
		return
	}
	needs := s.rule.Needs
	if (d.Numbers != nil || w.overridable()) && s.rule.Overridable() {
		needs |= needOverride
		s.numbers = d.Numbers
	}
	if needs == 0 {
		return
	}
	w.needs |= needs
	if needs&descriptor.NeedsGroup != 0 {
		w.group(s)
	}
	if needs&descriptor.NeedsCost != 0 {
		s.hits = s.rule.HitCost().Hits(s.sent, s.hits)
	}
	if needs&descriptor.NeedsScale != 0 {
		w.scale(s)
	}
	if needs&descriptor.NeedsClass != 0 {
		w.classify(s)
	}
}

// chargeRule makes a charge for each limit of the rule that matches.
func (w *work) chargeRule(s *subject) {
	if s.rule = s.matched; s.rule == nil {
		return
	}
	for i := range s.rule.Limits {
		w.charges = append(w.charges, charge{limit: &s.rule.Limits[i], index: i, take: none, guard: none})
	}
	s.end = len(w.charges)
	if s.rule.Needs&descriptor.NeedsActive != 0 {
		w.leaveOutInactive(s)
	}
}

// applyTogether applies the settings that depend on several descriptors, or on the limits that their rules still have,
// to all descriptors. Overrides come after replaced limits, because a customer without any remaining limit is
// unlimited. Enforcement comes after overrides, because a block is always enforced.
func (w *work) applyTogether() {
	if w.needs&descriptor.NeedsReplace != 0 && !w.showsAll {
		w.replace()
	}
	if w.needs&needOverride != 0 {
		w.override()
	}
	if w.needs&descriptor.NeedsVary != 0 {
		w.enforce()
	}
}

// applyAmounts applies the settings that change how many hits are charged: reservations and amounts of several kinds.
// Amounts are priced after overrides, by the rules that still apply.
func (w *work) applyAmounts() error {
	if w.needs&needNamed != 0 {
		w.applyNamedReservations()
	}
	if w.needs&needAmounts != 0 {
		if err := w.addAmounts(); err != nil {
			return err
		}
	}
	if w.req.Reservation != nil {
		return w.applyReservation()
	}
	return nil
}
