package descriptor

import (
	"iter"
	"maps"
)

// Domain returns the domain of that name, or nil.
func (t *Tree) Domain(name string) *Domain { return t.domains[name] }

// Domains is how many domains the tree has.
func (t *Tree) Domains() int { return len(t.domains) }

// EachDomain yields every domain, in no order.
func (t *Tree) EachDomain() iter.Seq[*Domain] { return maps.Values(t.domains) }

// Match returns the rule for a descriptor's entries, or nil.
//
// On each level one child is chosen and never reconsidered: the exact value, else the list that has the value, else the
// smallest network that holds the address, else the first wildcard or regular expression in file order that matches,
// else the key alone. The last entry's node must have a rule: a shorter or longer descriptor does not match. An empty
// value is no exact value: it matches the key alone, and a pattern that takes nothing at all.
func (d *Domain) Match(entries []Entry) *Rule {
	n := root
	for i := range entries {
		if n = d.edges.child(n, entries[i].Key, entries[i].Value); n == noNode {
			return nil
		}
	}
	return d.rules[n]
}

// child chooses the child of a node for one entry.
func (e *edges) child(parent node, key, value string) node {
	h := e.hashKey(parent, key)
	if value != "" {
		if s := e.find(e.hashValue(h, value), parent, key, value); s != nil {
			return s.child
		}
	}
	s := e.find(h, parent, key, "")
	if s == nil {
		return noNode
	}
	if o := e.edge(s).others; o != nil {
		if c := o.child(value); c != noNode {
			return c
		}
	}
	return s.child
}

// child is the child for a value that no rule names, noNode if nothing here takes it.
func (o *others) child(value string) node {
	if o.networks != nil {
		if a, four, ok := parseAddress(value); ok {
			if c := o.networks.find(a, four); c != noNode {
				return c
			}
		}
	}
	for i := range o.patterns {
		if o.patterns[i].match(value) {
			return o.patterns[i].child
		}
	}
	return noNode
}

// any is the child of a node for a key alone, noNode if no rule names it so.
func (e *edges) any(parent node, key string) node {
	if s := e.find(e.hashKey(parent, key), parent, key, ""); s != nil {
		return s.child
	}
	return noNode
}
