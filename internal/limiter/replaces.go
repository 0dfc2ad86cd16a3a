package limiter

import "slices"

// A rule with `replaces` removes limits of the rules that match other descriptors of the request, by their names.

// replace marks the limits that matching rules replace. A rule replaces others even if it is itself replaced. An
// unlimited rule is not replaced. A rule without any limit left does not apply.
func (w *work) replace() {
	for i := range w.subjects {
		if s := &w.subjects[i]; s.rule != nil {
			for _, name := range s.rule.Replaces { // many descriptors may match one rule: each name once
				if !slices.Contains(w.replaced, name) {
					w.replaced = append(w.replaced, name)
				}
			}
		}
	}
	for i := range w.subjects {
		s := &w.subjects[i]
		if s.rule == nil {
			continue
		}
		cs := w.ruleCharges(s)
		for j := range cs {
			c := &cs[j]
			if c.limit.Name != "" && slices.Contains(w.replaced, c.limit.Name) {
				c.state |= replaced
			}
		}
		w.dropUnused(s)
	}
}
