package descriptor

import (
	"iter"
	"maps"
)

// Domain returns the domain with that name, or nil.
func (t *Tree) Domain(name string) *Domain { return t.domains[name] }

// Domains returns the number of domains in the tree.
func (t *Tree) Domains() int { return len(t.domains) }

// EachDomain yields every domain, in no order.
func (t *Tree) EachDomain() iter.Seq[*Domain] { return maps.Values(t.domains) }

// Match returns the rule for a descriptor's entries, or nil.
//
// On each level the first of these children is chosen, and never reconsidered:
//
//   - the exact value
//   - the list that contains the value
//   - if case does not matter, the value and then the list that contains it
//   - the smallest network that contains the address or network
//   - the first wildcard or regular expression in file order that matches; a wildcard whose text equals the value comes
//     before other patterns
//   - the rule without a value
//
// A wildcard with a star in its key is matched against the whole entry (key, underscore, value). The last entry's node
// must have a rule: a shorter or longer descriptor does not match. An empty value is not an exact value: it matches the
// rule without a value, and patterns that match the empty text.
//
// Expressions see only the start of a long value. Such a value matches an expression only if the rule that is found
// then denies requests, see matchCut.
func (d *Domain) Match(entries []Entry) *Rule {
	r := d.match(entries)
	if d.edges.regexes && r.deniesWhom() != deniesAll && d.cuts(entries) {
		return d.matchCut(entries).rule
	}
	return r
}

func (d *Domain) match(entries []Entry) *Rule {
	n := root
	for i := range entries {
		if n = d.edges.child(n, entries[i].Key, entries[i].Value, root); n == noNode {
			return nil
		}
	}
	return d.rules[n]
}

// MatchNamed returns the rule for a descriptor whose last entry names a reservation (ReserveID, CommitID): the rule of
// the other entries, if it allows reservations. Otherwise it returns nil, and the last entry is one like all others.
func (d *Domain) MatchNamed(entries []Entry) *Rule {
	last := len(entries) - 1
	if last < 1 || !ReservationEntry(entries[last].Key) {
		return nil
	}
	if r := d.Match(entries[:last]); r != nil && r.Reservable() {
		return r
	}
	return nil
}

// HasPatterns reports whether the domain has expressions or wildcards. The time to match them is proportional to the
// size of the request.
func (d *Domain) HasPatterns() bool { return d.edges.patterned }

// child returns the child of a node for one entry, or noNode. after is for values of which expressions see only the
// start: such a value matches only expressions with a child above after. With root it matches all of them.
func (e *edges) child(parent node, key, value string, after node) node {
	h := e.hashKey(parent, key)
	if value != "" && e.valued {
		if s := e.find(e.hashValue(h, value), parent, key, value); s != nil {
			return s.child
		}
	}
	s := e.find(h, parent, key, "")
	if e.starred != nil {
		return e.childStarred(s, parent, key, value, after)
	}
	if s == nil {
		return noNode
	}
	if o := e.edge(s).others; o != nil {
		if c := o.child(value, e.most, after); c != noNode {
			return c
		}
	}
	return s.child
}

// childStarred finds the child for an entry on a level whose rules have wildcards in their keys. s is the slot of the
// rule that has the key and no value; it may be nil.
func (e *edges) childStarred(s *slot, parent node, key, value string, after node) node {
	starred := e.starred[parent]
	for i := range starred {
		if t := starred[i].text; len(t) == len(key)+1+len(value) && t[:len(key)] == key && t[len(key)] == '_' &&
			t[len(key)+1:] == value {
			return starred[i].child
		}
	}
	c := noNode
	if s != nil {
		if o := e.edge(s).others; o != nil {
			if c = o.direct(value); c != noNode {
				return c
			}
			c = o.patterns.find(value, e.most, after)
		}
	}
	for i := range starred {
		p := &starred[i]
		if p.child > c { // nodes are numbered in file order
			break
		}
		if p.wildcard.matchEntry(key, value) {
			return p.child
		}
	}
	switch {
	case c != noNode:
		return c
	case s != nil:
		return s.child
	}
	for i := range starred {
		if starred[i].text == key { // a rule without a value whose text, with its stars, equals the key
			return starred[i].child
		}
	}
	return noNode
}

// child returns the child for a value that no rule names, or noNode if nothing here matches it.
func (o *others) child(value string, most int, after node) node {
	if c := o.direct(value); c != noNode {
		return c
	}
	return o.patterns.find(value, most, after)
}

// direct returns the child for a value that a rule has in another case, otherwise the child for the value's network, or
// noNode.
func (o *others) direct(value string) node {
	if o.folded != nil {
		if c := o.folded.find(value); c != noNode {
			return c
		}
	}
	return o.network(value)
}

// network returns the child for the smallest network that contains the value, or noNode if none does.
func (o *others) network(value string) node {
	if o.networks != nil {
		if p, ok := ParseNetwork(value); ok {
			return o.networks.find(p)
		}
	}
	return noNode
}

// any returns the child of a node for the key without a value, or noNode without such a rule.
func (e *edges) any(parent node, key string) node {
	if s := e.find(e.hashKey(parent, key), parent, key, ""); s != nil {
		return s.child
	}
	return noNode
}
