package rulecheck

import (
	"slices"
	"strings"

	"github.com/ratelimitd/ratelimitd/internal/config/yamlform"
)

// home finds a limit whose home is not a region, and notes where its requests wait.
func (c *checker) home(n *node, l *limit) {
	if l.Regions == nil || !l.Regions.HasHome() {
		return
	}
	home, rule := l.Regions.Home, yamlform.Quote(n.rule.Path)
	if home != "" && len(c.regions) > 0 && !slices.Contains(c.regions, home) {
		fix := "write one of them"
		if near := yamlform.Closest(home, c.regions); near != "" {
			fix = "did you mean `" + near + "`?"
		}
		c.add(Error, l.position("regions"), "", fix,
			"%s is the home of the rule %s, but not a region: the regions are %s", yamlform.Quote(home), rule,
			strings.Join(c.regions, ", "))
		return
	}
	if l.Lease {
		return
	}
	where := "outside " + home
	if home == "" {
		where = "outside the region that a hash chooses"
	}
	c.add(Info, l.position("regions"), codeHomeWaits, "",
		"each request under the rule %s %s waits for a round trip to the home, until the limit is used up", rule, where)
}
