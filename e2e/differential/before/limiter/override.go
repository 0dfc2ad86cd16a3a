package limiter

import (
	"math/bits"
	"slices"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/config/override"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// ownNumbers is what operators' overrides, or the numbers of a request's entries, make of a rule for one descriptor.
type ownNumbers struct {
	some      bool // an override is in force
	copied    bool // the rule's limits with other numbers are calculation.limits[limits:]
	blocked   bool // it admits nothing: kept has one limit
	unlimited bool // it lifts all limits that no other rule replaces: nothing is counted
	limits    int
	lifted    uint16 // by index in the rule's limits: an override lets every request pass
}

// override applies the operators' overrides to the rules that were found.
func (c *calculation) override(now time.Time) {
	seconds := now.Unix()
	for i := range c.resolved {
		if r := &c.resolved[i]; r.rule != nil && r.rule.Overridable() {
			c.overrideRule(r, caller{c.entries(i), c.sent(i)}, seconds)
		}
	}
}

// caller is who an override may be for.
type caller struct{ counted, sent []descriptor.Entry }

func callerOf(rule *descriptor.Rule, sent []descriptor.Entry) caller {
	return caller{rule.CountedEntries(sent), sent}
}

// overrideRule applies the overrides of one descriptor's rule. An override of one limit comes before an override of all.
func (c *calculation) overrideRule(r *resolved, who caller, now int64) {
	rule := r.rule
	all := c.find(rule, "", who, now)
	if len(rule.Limits) == 1 && all.Kind == 0 {
		return
	}
	r.own.limits = len(c.limits)
	c.limits = append(c.limits, rule.Limits...)
	first := len(c.kept)
	for j := range rule.Limits {
		n := all
		if len(rule.Limits) > 1 {
			if one := c.find(rule, rule.Limits[j].Name, who, now); one.Kind != 0 {
				n = one
			}
		}
		if r.kept != nil && !slices.Contains(r.kept, j) { // only Peek shows this limit
			if n.Kind != 0 && n.Kind != override.Blocked && usable(&n, rule, &c.limits[r.own.limits+j]) {
				r.own.copied = true
				if n.Kind == override.Unlimited {
					r.own.lifted |= 1 << j
				}
			}
			continue
		}
		applied := n.Kind != 0 && c.apply(&n, rule, &c.limits[r.own.limits+j])
		r.own.some = r.own.some || applied
		if applied && n.Kind == override.Unlimited {
			r.own.lifted |= 1 << j
			continue
		}
		if applied && n.Kind == override.Blocked { // one limit that admits nothing is enough
			c.kept, r.own.blocked = append(c.kept[:first], j), true
			break
		}
		c.kept = append(c.kept, j)
	}
	if r.own.some {
		r.own.copied = true
		r.kept = c.kept[first:len(c.kept):len(c.kept)]
		r.own.unlimited = len(r.kept) == 0
		if r.own.unlimited {
			r.kept = []int{} // not nil, which would be all
		}
	}
}

// apply gives a limit the numbers of an override. It returns false if the rule does not allow them any more: it was changed
// after the override was written. Then the rule's numbers stay.
func (c *calculation) apply(n *override.Numbers, rule *descriptor.Rule, l *descriptor.Limit) bool {
	if !usable(n, rule, l) {
		c.unusable++
		return false
	}
	return true
}

func usable(n *override.Numbers, rule *descriptor.Rule, l *descriptor.Limit) bool {
	bounded := rule.OverrideMax != descriptor.OverrideUnbounded
	return !(n.Kind == override.Unlimited && bounded) && n.Apply(l, rule.OverrideMax) == nil
}

// find returns the override of one limit of a rule. It has no Kind if none is in force. An override may be older than the rule's
// `fold_case` or `group`, and then has a value as it was sent at that time: it is still found for callers who send this value.
func (c *calculation) find(rule *descriptor.Rule, limit string, who caller, now int64) override.Numbers {
	n, scratch := c.snapshot.overrides.Find(c.identity, rule, limit, who.counted, now)
	if n.Kind == 0 && rule.Grouped() {
		n, scratch = c.snapshot.overrides.Find(scratch, rule, limit, who.sent, now)
	}
	c.identity = scratch
	return n
}

// ruleLimit returns a limit of descriptor i's rule, with the numbers of this descriptor if it has others.
func (c *calculation) ruleLimit(r *resolved, j int) *descriptor.Limit {
	if r.own.copied {
		return &c.limits[r.own.limits+j]
	}
	return &r.rule.Limits[j]
}

// keyLimit returns the limit that the key of a counter depends on. Only the numbers of an override differ from the rule's, and
// they are not in the key. A caller that is blocked has another algorithm, and so another counter, which stays empty.
func (c *calculation) keyLimit(r *resolved, j int) *descriptor.Limit {
	if r.own.blocked {
		return c.ruleLimit(r, j)
	}
	return &r.rule.Limits[j]
}

// prefersRequest reports whether the limit that a request brings along replaces the rule's, if there is one.
func (c *calculation) prefersRequest(rule *descriptor.Rule, d *Descriptor, entries []descriptor.Entry, now time.Time) bool {
	if rule != nil && c.overrideInForce(rule, entries, now).Kind != 0 {
		return false
	}
	switch c.domain.RequestOverride {
	case descriptor.RequestIgnore:
		return false
	case descriptor.RequestMin:
		if rule == nil || rule.Unlimited || rule.Shadow {
			return true
		}
		l := d.Limit.limit(c.settings)
		for i := range rule.Limits {
			limit := &rule.Limits[i]
			if rule.Scales() != nil {
				multiplied := scaled(rule, i, entries)
				limit = &multiplied
			}
			if rule.ActiveAt(i, now) && faster(&l, rule.HitCostOf(entries), limit) && c.enforcedFor(rule, rule.CountedEntries(entries), i) {
				return false
			}
		}
		return true
	default:
		return true
	}
}

// overrideInForce returns the override of a rule, or of the first of its limits that has one.
// It has no Kind if none is in force.
func (c *calculation) overrideInForce(rule *descriptor.Rule, entries []descriptor.Entry, now time.Time) override.Numbers {
	if !rule.Overridable() {
		return override.Numbers{}
	}
	who := callerOf(rule, entries)
	n := c.find(rule, "", who, now.Unix())
	for j := 0; n.Kind == 0 && len(rule.Limits) > 1 && j < len(rule.Limits); j++ {
		n = c.find(rule, rule.Limits[j].Name, who, now.Unix())
	}
	return n
}

// faster reports whether the limit a, whose hits cost so much under b, admits more per second than b. A concurrency limit admits no
// number of hits per second: nothing is slower.
func faster(a *descriptor.Limit, cost uint64, b *descriptor.Limit) bool {
	if b.Algorithm == descriptor.Concurrency {
		return true
	}
	over, requests := bits.Mul64(a.Requests, cost)
	if over > 0 {
		return true // more than any limit has
	}
	ah, al := bits.Mul64(requests, uint64(b.Window.Length()))
	bh, bl := bits.Mul64(b.Requests, uint64(a.Window.Length()))
	return ah > bh || ah == bh && al > bl
}
