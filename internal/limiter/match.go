package limiter

import "github.com/ratelimitd/ratelimitd/internal/descriptor"

// match finds the rule of a descriptor. A request's own limit that is honoured whatever the rules say needs none.
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
	switch {
	case d.HasLimit && w.honours():
		s.by = byRequest
	case s.matched == nil:
		s.matched = w.domain.Match(s.sent)
	}
}
