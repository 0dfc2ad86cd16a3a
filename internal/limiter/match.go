package limiter

import (
	"context"
	"fmt"
	"slices"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// matchAndApply finds the charges of a request: the limits that each of its descriptors is under, with their numbers for this caller.
func (w *work) matchAndApply(ctx context.Context) error {
	if err := w.find(ctx); err != nil {
		return err
	}
	return w.applyReservations()
}

// find matches every descriptor and applies what the rules say about it. If matching may take long, it stops when ctx ends.
func (w *work) find(ctx context.Context) error {
	w.subjects = slices.Grow(w.subjects, len(w.req.Descriptors))[:len(w.req.Descriptors)]
	slow := w.domain != nil && w.domain.HasPatterns()
	for i := range w.subjects {
		if slow && i > 0 && ctx.Err() != nil {
			return fmt.Errorf("match descriptors: %w", ctx.Err())
		}
		s, d := &w.subjects[i], &w.req.Descriptors[i]
		w.match(s, d)
		w.apply(s, d)
	}
	w.applyTogether()
	return nil
}

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
