package rulecheck

import (
	"math"
	"regexp"
	"strings"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// maxOverlaps bounds the pairs of patterns that are compared, in all files together.
const maxOverlaps = 5000

// longValues finds expressions through which a long value reaches a higher limit than the limit of the pattern that the
// value matches. This can happen because expressions see only the first bytes of a long value.
func (c *checker) longValues(nodes []*node, alone *node) {
	for i, n := range nodes {
		if n.kind != descriptor.MatchRegex {
			continue
		}
		others := nodes[i+1:] // earlier siblings are tried first
		if alone != nil {
			others = append([]*node{alone}, others...)
		}
		for _, other := range others {
			text, is := expressionOf(other)
			if !is {
				continue
			}
			if c.overlaps++; c.overlaps > maxOverlaps {
				return
			}
			if !higher(n, other) || !descriptor.LongOverlap(n.value, n.fold, text, other.fold) {
				continue
			}
			c.add(Warning, n.valueAt, codeLongValue,
				"bound the length of the match, such as `[^/]{1,100}` instead of `.*`",
				"a value of more than 4096 bytes for %s (%s) may get the higher limit of this expression, which sees only the "+
					"start of such values",
				other.what(), other.at.From(n.valueAt))
			break
		}
	}
}

// expressionOf returns an expression for the values that a node matches: a wildcard, an expression, or any value of the
// key.
func expressionOf(n *node) (text string, is bool) {
	switch {
	case n.kind == descriptor.MatchRegex:
		return n.value, true
	case n.kind == descriptor.MatchAny:
		return "(?s:.*)", true
	case n.kind == descriptor.MatchWildcard && !descriptor.HasWildcard(n.key):
		pieces := strings.Split(n.value, "*")
		for i := range pieces {
			pieces[i] = regexp.QuoteMeta(pieces[i])
		}
		return strings.Join(pieces, "(?s:.*)"), true
	}
	return "", false
}

// higher reports whether a limit of a node lets more hits pass than the limit of another node. It also compares the
// levels below the two nodes that have the same keys.
func higher(n, other *node) bool {
	if a, b := n.perSecond(), other.perSecond(); a > b && !math.IsInf(a, 1) {
		return true
	}
	for _, below := range n.children {
		for _, o := range other.children {
			if below.kind == descriptor.MatchAny && o.kind == descriptor.MatchAny && below.key == o.key && higher(below, o) {
				return true
			}
		}
	}
	return false
}

// perSecond returns how many requests per second the rule of a node allows for all customers at all times.
func (n *node) perSecond() float64 {
	least := math.Inf(1)
	if n.rule == nil || n.rule.Unlimited || n.rule.Shadow {
		return least
	}
	for i := range n.rule.Limits {
		l := &n.rule.Limits[i]
		if l.Enforcement == descriptor.EnforcedForAll && n.rule.ActiveTimes(i) == nil &&
			l.Algorithm != descriptor.Concurrency {
			least = min(least, float64(l.Requests)/l.Window.Length().Seconds())
		}
	}
	return least
}
