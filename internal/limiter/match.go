package limiter

import "github.com/ratelimitd/ratelimitd/internal/descriptor"

// match finds the rule of a descriptor. A request's own limit that is honoured under every rule needs no rule, unless
// hits can be reserved under it.
func (w *work) match(s *subject, d *Descriptor) {
	s.hits, s.sent = hits(w.req, d), d.Entries
	if w.domain == nil {
		s.counted = s.sent
		return
	}
	if w.domain.Reservable {
		w.matchNamed(s)
	}
	s.counted = s.sent
	if s.hits < 0 && w.domain.Refunds == descriptor.RefundsDeny {
		s.hits = 0
		w.tally.denied++
	}
	honoured := d.HasLimit && w.honours()
	if honoured {
		s.by = byRequest
	}
	if s.matched == nil && (!honoured || w.domain.Reservable) {
		s.matched = w.domain.Match(s.sent)
	}
}
