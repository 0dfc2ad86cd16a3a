package rulecheck

import (
	"fmt"
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// Comparing the patterns of a key costs a bounded number of comparisons, not the square of their number. An expression
// that is not a glob covers nothing and is not compared.
func TestComparisonsAreBounded(t *testing.T) {
	nodes := func(n int, kind descriptor.MatchKind, format string) []*node {
		all := make([]*node, n)
		for i := range all {
			all[i] = &node{key: "k", kind: kind, value: fmt.Sprintf(format, i)}
		}
		return all
	}
	var c checker
	c.patterns(nodes(2000, descriptor.MatchRegex, "(x+x+)+y|[a-z]{1,900}%d"))
	if c.covers != 0 {
		t.Errorf("%d comparisons of expressions that cover nothing", c.covers)
	}
	const n = 3000
	c.patterns(nodes(n, descriptor.MatchWildcard, "*-%d-*"))
	if c.covers > maxCovers+n {
		t.Errorf("%d comparisons of wildcards, want at most %d", c.covers, maxCovers)
	}
	c.longValues(nodes(200, descriptor.MatchRegex, "a%d.*"), nil)
	if c.overlaps > maxOverlaps+200 {
		t.Errorf("%d comparisons of long values, want at most %d", c.overlaps, maxOverlaps)
	}
}
