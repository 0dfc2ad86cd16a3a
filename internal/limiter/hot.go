package limiter

import (
	"slices"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/limiter/hotkeys"
)

// ofRequest replaces the rule's name: a limit that a request carries has no rule.
const ofRequest = "request_limit"

// hotRules holds the hot key tracker's handles under which uses of counters are recorded.
type hotRules struct {
	rules    []*hotkeys.Rule // indexed by Rule.Index
	requests map[*descriptor.Domain]*hotkeys.Rule
}

func hotRulesOf(t *hotkeys.Tracker, tree *descriptor.Tree, shadow bool) *hotRules {
	names := make([]hotkeys.Name, 0, len(tree.Rules))
	for _, r := range tree.Rules {
		names = append(names, hotkeys.Name{Domain: r.Domain, Rule: r.Path, Shadow: shadow || r.Shadow})
	}
	domains := slices.Collect(tree.EachDomain())
	for _, d := range domains {
		names = append(names, hotkeys.Name{Domain: d.Name, Rule: ofRequest, Shadow: shadow})
	}
	handles := t.Rules(names)
	hot := &hotRules{rules: handles[:len(tree.Rules)], requests: make(map[*descriptor.Domain]*hotkeys.Rule, len(domains))}
	for i, d := range domains {
		hot.requests[d] = handles[len(tree.Rules)+i]
	}
	return hot
}

// countUses records which counters a decision touched. A use is the number of hits requested from a counter, whether
// they pass or not. A use is denied if its own counter denied it, even if that is not enforced (shadow) or another
// limit decided the request. A peek or a refund is not a use. Takes that the backend could not answer are not recorded.
// The hits of a denied take are capped (deniedHits), so that one huge request does not outweigh all others.
func (w *work) countUses(*Decision) {
	for i := range w.request.Takes {
		t, o := &w.request.Takes[i], &w.request.Outcomes[i]
		if t.Hits <= 0 || o.Failed || !w.counts(t) {
			continue
		}
		if rule := t.Rule; rule != w.domain.RequestLimits {
			w.snap.hot.rules[rule.Index].Count(w.lane, t.Key, usedHits(t, o, rule), !o.Allowed)
		} else {
			w.snap.hot.requests[w.domain].Count(w.lane, t.Key, usedHits(t, o, nil), !o.Allowed)
		}
	}
}

// usedHits returns how many hits of a take are a use. An override may be smaller than the rule's limits.
func usedHits(t *backend.Take, o *backend.Outcome, rule *descriptor.Rule) int64 {
	most := t.Limit.Capacity()
	if o.Allowed || t.Hits <= int64(most) {
		return t.Hits
	}
	if rule != nil {
		for i := range rule.Limits {
			most = max(most, rule.Limits[i].Capacity())
		}
	}
	return min(t.Hits, int64(most)+1)
}
