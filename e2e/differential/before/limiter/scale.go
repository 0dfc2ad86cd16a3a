package limiter

import "github.com/ratelimitd/ratelimitd/internal/descriptor"

// byEntry applies what depends on the entries of a descriptor.
func (c *calculation) byEntry(r *resolved, entries []descriptor.Entry) {
	if cost := r.rule.HitCost(); cost != nil {
		r.hits = cost.Hits(entries, r.hits)
	}
	if r.rule.Scales() != nil {
		c.scale(r, entries)
	}
}

// scale multiplies the limits of a descriptor's rule by the numbers in its entries.
func (c *calculation) scale(r *resolved, entries []descriptor.Entry) {
	r.own.limits, r.own.copied = len(c.limits), true
	c.limits = append(c.limits, r.rule.Limits...)
	for j, s := range r.rule.Scales().Of {
		if s == nil {
			continue
		}
		n, result := s.Number(entries)
		if result != descriptor.ScaleGood {
			c.unscaled[result]++
		}
		if err := c.limits[r.own.limits+j].Multiply(n); err != nil {
			c.unscaled[descriptor.ScaleNoNumber]++ // not after a check of the rules: they are refused then
		}
	}
}

// scaled returns a limit of a rule as it is for these entries.
func scaled(rule *descriptor.Rule, limit int, entries []descriptor.Entry) descriptor.Limit {
	l := rule.Limits[limit]
	if s := rule.ScaleOf(limit); s != nil {
		n, _ := s.Number(entries)
		_ = l.Multiply(n) // it leaves the limit as it was
	}
	return l
}

// countUnscaled counts the entries whose numbers were not used as they are.
func (l *Limiter) countUnscaled(c *calculation) {
	for result, n := range c.unscaled {
		if n > 0 {
			l.metrics.unscaled[result].Add(uint64(n))
			c.unscaled[result] = 0
		}
	}
}
