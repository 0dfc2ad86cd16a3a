package rulecheck

import (
	"slices"
	"strings"

	"github.com/ratelimitd/ratelimitd/internal/config/yamlform"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
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
				continue // limits share the name of a header on purpose
			}
			if at == before {
				at = n.at // an alias repeats the name
			}
			c.add(Warning, at, codeNameTwice, "give each its own name",
				"the name %s is used twice in the domain, first on %s: answers cannot distinguish them, and `replaces` replaces "+
					"both", yamlform.Quote(l.name), before.From(at))
		}
	})
	names := sorted(first)
	for _, r := range replaces {
		if _, known := first[r.text]; !known {
			c.add(Warning, r.at, codeNoSuchLimit, fixName(r.text, names),
				"`replaces` %s: no rate limit of the domain %s has that name, so nothing is replaced", yamlform.Quote(r.text),
				yamlform.Quote(d.name))
		}
	}
	for _, o := range d.of {
		if _, known := first[o.text]; !known {
			c.add(Warning, o.at, codeNoSuchLimit, fixName(o.text, names),
				"a header `of` %s: no rate limit of the domain %s has that name, so the header is never sent",
				yamlform.Quote(o.text), yamlform.Quote(d.name))
		}
	}
}

// sent finds names and numbers of limits that answers do not contain as they are.
func (c *checker) sent(d *domain) {
	first := make(map[descriptor.Window]yamlform.Position) // positions of the first limits without a name
	d.each(func(n *node) {
		for i := range n.limits {
			l := &n.limits[i]
			if l.Limit == nil {
				continue
			}
			c.sentName(l)
			if !d.ietf {
				continue
			}
			if l.Requests > descriptor.MaxHeaderInteger {
				c.add(Info, l.position("requests_per_unit"), codeNotForHeaders, "write a smaller number if clients read it",
					"the headers `ietf` allow at most 15 digits, and show %d", uint64(descriptor.MaxHeaderInteger))
			}
			if l.name != "" || l.Algorithm == descriptor.Concurrency {
				continue
			}
			window := descriptor.Window{Unit: l.Window.Unit, Multiplier: max(l.Window.Multiplier, 1)}
			if before, met := first[window]; !met {
				first[window] = l.at
			} else if before != l.at {
				c.add(Info, l.at, codeNameOfWindow, "give both a `name` if one request may be under both",
					"this limit and the one on %s have the same window and no name: in an answer with both, the headers `ietf` "+
						"number them", before.From(l.at))
			}
		}
	})
}

// sentName finds a name with characters that a header cannot have.
func (c *checker) sentName(l *limit) {
	quoted := func(r rune) bool { return r < ' ' || r == 0x7f || r == '"' || r == '\\' }
	switch {
	case strings.ContainsFunc(l.name, quoted):
		c.add(Warning, l.position("name"), codeNotForHeaders, "leave them out",
			"the name %s has quotes, backslashes or control characters: the protocol encodes them as in URLs, such as %%0A",
			yamlform.Quote(l.name))
	case strings.ContainsFunc(l.name, func(r rune) bool { return r > '~' }):
		c.add(Info, l.position("name"), codeNotForHeaders, "use ASCII if clients read it",
			"the name %s has characters that are not ASCII: headers encode them as in URLs, such as %%C3%%BC",
			yamlform.Quote(l.name))
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
