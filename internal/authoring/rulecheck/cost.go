package rulecheck

import (
	"maps"
	"slices"

	"github.com/ratelimitd/ratelimitd/internal/config/yamlform"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// cost finds costs that no limit has room for, and costs by a value that shares its counter with no other value.
func (c *checker) cost(n *node) {
	if n.rule.HitCost() == nil {
		return
	}
	capacity := uint64(descriptor.MaxRequests)
	for i := range n.limits {
		if l := n.limits[i].Limit; l != nil && l.Enforcement == descriptor.EnforcedForAll {
			capacity = min(capacity, l.Capacity())
		}
	}
	const shorten = "write a smaller cost, or a limit of at least that number"
	if n.rule.HitCost().Factor > capacity && capacity > 0 {
		c.add(Warning, n.flag("cost"), codeCostTooHigh, shorten,
			"each hit counts for %d, but the limit has room for %d: nothing passes", n.rule.HitCost().Factor, capacity)
	}
	for i := range n.rule.HitCost().Tables {
		t := &n.rule.HitCost().Tables[i]
		at := yamlform.Position(t.Position)
		for _, v := range slices.Sorted(maps.Keys(t.Values)) {
			if cost := t.Values[v]; cost > capacity && capacity > 0 {
				c.add(Warning, at, codeCostTooHigh, shorten,
					"a hit with the %s %s counts for %d, but the limit has room for %d: it never passes",
					yamlform.Quote(t.Key), yamlform.Quote(v), cost, capacity)
				break
			}
		}
		if t.Other > capacity && capacity > 0 {
			c.add(Warning, at, codeCostTooHigh, shorten,
				"a hit with any other %s counts for %d, but the limit has room for %d: it never passes",
				yamlform.Quote(t.Key), t.Other, capacity)
		}
		group, fold := n.rule.GroupAt(t.Level)
		shared := n.rule.Shares(t.Level) || fold || group != descriptor.Group{}
		if kind := n.rule.Levels[t.Level].Kind; !shared && kind != descriptor.MatchExact {
			c.add(Warning, at, codeCostOfOne, "write `condition: true` on the level `"+yamlform.Clip(t.Key)+"`",
				"each %s has its own counter, so its cost only lowers its own limit", yamlform.Quote(t.Key))
		}
	}
}

// flag returns the position of a key that needs a limit.
func (n *node) flag(key string) yamlform.Position {
	for _, f := range n.flags {
		if f.text == key {
			return f.at
		}
	}
	return n.at
}
