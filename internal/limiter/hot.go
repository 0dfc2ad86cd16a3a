package limiter

import (
	"slices"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/hotkeys"
)

// Overrides is what stands for a rule where a domain's counters belong to limits that requests brought along.
const Overrides = "override"

// hotRules are the handles that uses of counters are counted under.
type hotRules struct {
	rules     []*hotkeys.Rule // by Rule.Index
	overrides map[*descriptor.Domain]*hotkeys.Rule
}

func hotRulesOf(t *hotkeys.Tracker, tree *descriptor.Tree, shadow bool) *hotRules {
	names := make([]hotkeys.Name, 0, len(tree.Rules))
	for _, r := range tree.Rules {
		names = append(names, hotkeys.Name{Domain: r.Domain, Rule: r.Path, Shadow: shadow || r.Shadow})
	}
	domains := slices.Collect(tree.EachDomain())
	for _, d := range domains {
		names = append(names, hotkeys.Name{Domain: d.Name, Rule: Overrides, Shadow: shadow})
	}
	handles := t.Rules(names)
	hot := &hotRules{rules: handles[:len(tree.Rules)], overrides: make(map[*descriptor.Domain]*hotkeys.Rule, len(domains))}
	for i, d := range domains {
		hot.overrides[d] = handles[len(tree.Rules)+i]
	}
	return hot
}

// countUses records which counters a decision touched. A use is the hits that were asked of a counter, admitted or not;
// it is refused if this counter refused it, also where that is not enforced (shadow) or another limit decided the request.
// A peek and a refund are no use, and what the backend could not answer is not known to be one.
func (c *calculation) countUses(hot *hotRules) {
	for i := range c.request.Takes {
		t, o := &c.request.Takes[i], &c.request.Outcomes[i]
		if t.Hits <= 0 || o.Failed {
			continue
		}
		if rule := c.resolved[t.Member].rule; rule != nil {
			hot.rules[rule.Index].Count(c.lane, t.Key, t.Hits, !o.Allowed)
		} else {
			hot.overrides[c.domain].Count(c.lane, t.Key, t.Hits, !o.Allowed)
		}
	}
}
