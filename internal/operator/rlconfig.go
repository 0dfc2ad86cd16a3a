package operator

import (
	"fmt"
	"io"
	"iter"
	"strings"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// writeRules writes a line per limit in envoyproxy/ratelimit's form, which scripts read. Settings that
// envoyproxy/ratelimit does not have are appended to the line. Settings of a domain are a comment before its rules.
func writeRules(w io.Writer, tree *descriptor.Tree) {
	if tree == nil {
		return
	}
	domain := ""
	for _, r := range tree.Rules {
		if r.Domain != domain {
			domain = r.Domain
			if s := factsText(descriptor.DomainFacts.Of(&tree.Domain(domain).DomainSettings)); s != "" {
				fmt.Fprintf(w, "# domain %s%s\n", domain, s)
			}
		}
		flags := factsText(descriptor.RuleFacts.Of(r))
		if r.Unlimited {
			fmt.Fprintf(w, "%s: unit=UNKNOWN requests_per_unit=0%s\n", r.Path, flags)
		}
		for i := range r.Limits {
			l := &r.Limits[i]
			unit, requests := l.Window.Unit, l.Requests
			if l.Algorithm == descriptor.Concurrency {
				unit, requests = descriptor.UnitUnknown, 0
			}
			fmt.Fprintf(w, "%s: unit=%s requests_per_unit=%d%s%s\n", r.Path, strings.ToUpper(unit.String()), requests, flags,
				factsText(descriptor.LimitFacts.Of(&descriptor.RuleLimit{Limit: l, Rule: r, Index: i})))
		}
	}
}

func factsText(facts iter.Seq2[string, string]) string {
	var b strings.Builder
	for key, text := range facts {
		b.WriteString(", " + key + ": " + text)
	}
	return b.String()
}
