package limiter

import "github.com/ratelimitd/ratelimitd/internal/descriptor"

// A limit with `scale` is multiplied by the number in an entry of the request. It has no overrides.

// scale multiplies the limits of a descriptor's rule.
func (w *work) scale(s *subject) {
	cs := w.ruleCharges(s)
	for i := range cs {
		c := &cs[i]
		by := s.rule.ScaleOf(c.index)
		if by == nil {
			continue
		}
		n, result := by.Number(s.sent)
		if result != descriptor.ScaleGood {
			w.tally.unscaled[result]++
		}
		if w.copyLimit(c).Multiply(n) != nil {
			w.tally.unscaled[descriptor.ScaleNoNumber]++ // not after a check of the rules: they are rejected then
		}
	}
}
