package rulecheck

import (
	"slices"

	"github.com/ratelimitd/ratelimitd/internal/config/yamlform"
)

// names checks the names of rate limits, and the `replaces` and headers that refer to them.
func (c *checker) names(d *domain) {
	first := make(map[string]yamlform.Position)
	shown := make(map[string]bool, len(d.of))
	for _, o := range d.of {
		shown[o.text] = true
	}
	var replaces []listed
	d.each(func(n *node) {
		replaces = append(replaces, n.replaces...)
		for i := range n.limits {
			l := &n.limits[i]
			if l.name == "" {
				continue
			}
			at := l.position("name")
			before, met := first[l.name]
			if !met {
				first[l.name] = at
				continue
			}
			if d.named || shown[l.name] {
				continue // a header says it: limits share it on purpose
			}
			if at == before {
				at = n.at // an alias repeats the name
			}
			c.add(Warning, at, codeNameTwice, "give each its own name",
				"the name %s is used twice in the domain, first on %s: answers do not distinguish the two, and `replaces` replaces both", yamlform.Quote(l.name), before.From(at))
		}
	})
	names := sorted(first)
	for _, r := range replaces {
		if _, known := first[r.text]; !known {
			c.add(Warning, r.at, codeReplacesNobody, fixName(r.text, names),
				"`replaces` %s: no rate limit of the domain %s has that name, so nothing is replaced", yamlform.Quote(r.text), yamlform.Quote(d.name))
		}
	}
	for _, o := range d.of {
		if _, known := first[o.text]; !known {
			c.add(Warning, o.at, codeNoSuchLimit, fixName(o.text, names),
				"a header `of` %s: no rate limit of the domain %s has that name, so the header is never sent", yamlform.Quote(o.text), yamlform.Quote(d.name))
		}
	}
}

// fixName suggests a fix for a name that no rate limit of the domain has.
func fixName(name string, names []string) string {
	if near := yamlform.Closest(name, names[:min(len(names), 1000)]); near != "" {
		return "did you mean `" + near + "`?"
	}
	if len(names) > 0 && len(names) <= 5 {
		return "the names of this domain are " + quoted(names)
	}
	return "give the `name` of a rate limit of this domain, or remove the entry"
}

func quoted(names []string) string {
	text := ""
	for i, n := range slices.Clone(names) {
		if i > 0 {
			text += ", "
		}
		text += yamlform.Quote(n)
	}
	return text
}
