package limiter

import (
	"fmt"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// A rule with `cost` counts a hit for more than one: always, or by the value of an entry. Amounts of several kinds,
// such as input and output tokens, are priced by `reservations`. Apply multiplies the descriptor's hits; denials, local
// shares and reservations also need the cost of one hit.

// hitCost returns the cost of one hit of a descriptor.
func (s *subject) hitCost() uint64 {
	if s.rule != nil {
		return s.rule.HitCostOf(s.sent)
	}
	return 1
}

// addAmounts adds the price of a descriptor's amounts, under its rule, to its hits.
func (w *work) addAmounts() error {
	for i := range w.subjects {
		s, d := &w.subjects[i], &w.req.Descriptors[i]
		if len(d.Amounts) == 0 {
			continue
		}
		var cost descriptor.Cost
		if s.rule != nil {
			cost = s.rule.Cost()
		}
		hits, unknown, ok := cost.Hits(d.Amounts)
		if !ok {
			field := fmt.Sprintf("descriptors[%d].amount", i)
			return invalid(field, "%s: the cost of the rule %s has no weight for %q; it has weights for %s", field, s.rule.Path,
				unknown, cost.Names())
		}
		more := int64(min(hits, backend.MaxHits))
		if s.rule != nil && s.rule.HitCost() != nil {
			more = s.rule.HitCost().Hits(s.sent, more)
		}
		s.hits = min(max(s.hits, 0)+more, backend.MaxHits)
	}
	return nil
}
