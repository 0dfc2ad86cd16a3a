package limiter

import (
	"github.com/ratelimitd/ratelimitd/internal/config/override"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// An operator's override replaces the numbers for one customer of a rule, for all its limits or for one of them. It may
// also block the customer, or lift the limits.

// caller identifies the customer whom an override may match.
type caller struct{ counted, sent []descriptor.Entry }

// overridable reports whether the domain allows overrides and at least one exists.
func (w *work) overridable() bool { return w.domain.Overridable && w.snap.overrides.Len() > 0 }

// override applies the overrides of all descriptors.
func (w *work) override() {
	for i := range w.subjects {
		if s := &w.subjects[i]; s.rule != nil && s.rule.Overridable() && !w.countedElsewhere(s) {
			w.overrideOne(s)
		}
	}
}

// countedElsewhere reports whether another region counts the limits of a descriptor's rule: then its overrides hold,
// and none of this one's.
func (w *work) countedElsewhere(s *subject) bool {
	first := &s.rule.Limits[0] // all have the same home
	if w.Elsewhere == nil || first.Regions == nil {
		return false
	}
	w.scratch = w.Keys.AppendKey(w.scratch[:0], w.req.Domain, s.counted, s.rule, first)
	return w.Elsewhere(w.scratch, first)
}

// overrideOne applies the overrides of one descriptor. An override of one limit comes before an override of all. A
// limit that does not apply now gets its numbers too, for operators, but neither blocks nor lifts anything.
func (w *work) overrideOne(s *subject) {
	who := caller{s.counted, s.sent}
	all := w.overrideOfRule(s.rule, who)
	if s.numbers != nil && len(s.rule.Limits) == 1 {
		all = *s.numbers
	}
	if len(s.rule.Limits) == 1 && all.Kind == 0 {
		return
	}
	by, left := byRule, 0
	cs := w.ruleCharges(s)
	for i := range cs {
		c, n := &cs[i], all
		if len(s.rule.Limits) > 1 {
			n = w.overrideOfLimit(s.rule, c, &all, who)
		}
		switch used := w.applyNumbers(&n, s.rule, c); {
		case c.state.idle():
		case used && n.Kind == override.Blocked:
			s.by = byBlock
			w.block(cs, i)
			return
		case used:
			by = byNumbers
		}
		if !c.state.away() {
			left++
		}
	}
	if s.by = by; by == byNumbers && left == 0 {
		s.by = byLift
	}
}

// applyNumbers replaces a limit's numbers by those of an override. It returns false if the override has none. It also
// returns false if the rule no longer allows them because it was changed after the override was written. The rule's
// numbers then stay.
func (w *work) applyNumbers(n *override.Numbers, rule *descriptor.Rule, c *charge) bool {
	if n.Kind == 0 || n.Kind == override.Blocked && c.state.idle() {
		return false
	}
	bounded := rule.OverrideMax != descriptor.OverrideUnbounded
	was := c.limit
	switch {
	case n.Kind == override.Unlimited && !bounded:
		c.state |= lifted
	case n.Kind == override.Unlimited || n.Apply(w.copyLimit(c), rule.OverrideMax) != nil:
		if c.limit = was; !c.state.idle() {
			w.tally.unusable++
		}
		return false
	}
	return true
}

// block keeps only the blocked limit: one limit that denies everything is enough.
func (w *work) block(cs []charge, blocked int) {
	for i := range cs {
		if i != blocked {
			cs[i].state |= beside
		}
	}
}

// overrideOfRule returns the override of a rule. If the rule has one limit, that may have the name of the limit: it was
// one of several when the override was written.
func (w *work) overrideOfRule(rule *descriptor.Rule, who caller) override.Numbers {
	n := w.overrideOf(rule, "", who)
	if n.Kind == 0 && len(rule.Limits) == 1 && rule.Limits[0].Name != "" && w.snap.overrides.Named() {
		n = w.overrideOf(rule, rule.Limits[0].Name, who)
	}
	return n
}

// overrideOfLimit returns the override of one of several limits. If the limit has none, it returns ofRule, the override
// of the whole rule. Numbers in ofRule were written when the rule had one limit. They no longer apply to any limit,
// because it is unknown which one was meant.
func (w *work) overrideOfLimit(rule *descriptor.Rule, c *charge, ofRule *override.Numbers,
	who caller) override.Numbers {
	one := w.overrideOf(rule, c.limit.Name, who)
	switch {
	case one.Kind != 0:
		return one
	case ofRule.Kind != override.Replace:
		return *ofRule
	case !c.state.idle():
		w.tally.unusable++
	}
	return override.Numbers{}
}

// overrideOf returns the override of one limit of a rule. It has no Kind if none is active. An override may be older
// than the rule's `fold_case` or `group`, and then holds an ungrouped value. It still applies to customers who send
// exactly this value.
func (w *work) overrideOf(rule *descriptor.Rule, limit string, who caller) override.Numbers {
	now := w.now.Unix()
	n, scratch := w.snap.overrides.Find(w.scratch, rule, limit, who.counted, now)
	if n.Kind == 0 && rule.Grouped() {
		n, scratch = w.snap.overrides.Find(scratch, rule, limit, who.sent, now)
	}
	w.scratch = scratch
	return n
}
