package descriptor

import "slices"

// denial describes which customers a rule denies above its limits.
type denial uint8

const (
	deniesNobody denial = iota // the rule is unlimited, in shadow, or not enforced
	deniesSome                 // some customers, or at some times
	deniesAll                  // all customers, at all times
)

func (r *Rule) denial() denial {
	whom := deniesNobody
	if r.Unlimited || r.Shadow {
		return whom
	}
	for i := range r.Limits {
		switch l := &r.Limits[i]; {
		case l.Enforcement == EnforcedForAll && r.ActiveTimes(i) == nil:
			return deniesAll
		case l.Enforcement == EnforcedForAll, l.Enforcement == EnforcedForSome:
			whom = deniesSome
		}
	}
	return whom
}

// deniesWhom returns the denial of a rule that may be nil.
func (r *Rule) deniesWhom() denial {
	if r == nil {
		return deniesNobody
	}
	return r.denies
}

// cuts reports whether expressions see only the start of a value.
func (d *Domain) cuts(entries []Entry) bool {
	for i := range entries {
		if len(entries[i].Value) > d.edges.most {
			return true
		}
	}
	return false
}

// maxCutTries bounds the children that matchCut looks at for one descriptor.
const maxCutTries = 64

// matchCut finds the rule for entries with a value of which expressions see only the start. So it is unknown whether
// all of the value matches an expression. To assume a match is right if the rule limits the customer, who could
// otherwise escape a limit by making a value longer. It is wrong if the rule exempts the customer, who could then
// escape the other rules in the same way.
//
// So the expressions are taken in file order until one leads to a rule that denies all customers above a limit. If none
// does, these values match no expression, unless one leads to a rule that denies at least some customers and the other
// patterns do not.
func (d *Domain) matchCut(entries []Entry) *cutMatch {
	// keeps the slices of Match on its caller's stack
	m := &cutMatch{Domain: d, entries: slices.Clone(entries), try: make([]node, 0, len(entries))}
	m.from(root)
	return m
}

// cutMatch is a search in the tree. Each child is visited once at most.
type cutMatch struct {
	*Domain
	entries []Entry
	tries   int
	try     []node // the path that is tried

	path []node // path of the best try. The last node is noNode if no rule has the entry
	rule *Rule
}

// from tries the ways that continue from a node, and reports whether one leads to a rule that denies all customers.
func (m *cutMatch) from(n node) bool {
	level := len(m.try)
	if level == len(m.entries) || n == noNode {
		var r *Rule
		if n != noNode {
			r = m.rules[n]
		}
		if whom := r.deniesWhom(); m.path == nil || whom >= m.rule.deniesWhom() {
			m.rule, m.path = r, append(m.path[:0], m.try...)
		}
		return m.rule.deniesWhom() == deniesAll
	}
	e := &m.entries[level]
	for after := root; ; {
		c := m.edges.child(n, e.Key, e.Value, after)
		if c == after && c != noNode {
			return false // the child is not an expression, and was tried
		}
		m.tries++
		m.try = append(m.try, c)
		done := m.from(c)
		m.try = m.try[:level]
		switch {
		case done:
			return true
		case c == noNode, c < after, len(e.Value) <= m.edges.most:
			return false // the child is not an expression that sees only the start of the value
		}
		if after = c; m.tries >= maxCutTries {
			after = noNode // no further expressions
		}
	}
}

// path returns the nodes to which entries lead. The last one is noNode if no rule has its entry.
func (d *Domain) path(entries []Entry) []node {
	if d.edges.regexes && d.match(entries).deniesWhom() != deniesAll && d.cuts(entries) {
		return d.matchCut(entries).path
	}
	var path []node
	n := root
	for i := range entries {
		n = d.edges.child(n, entries[i].Key, entries[i].Value, root)
		if path = append(path, n); n == noNode {
			break
		}
	}
	return path
}
