package descriptor

// Domain returns the domain of that name, or nil.
func (t *Tree) Domain(name string) *Domain { return t.domains[name] }

// Domains is how many domains the tree has.
func (t *Tree) Domains() int { return len(t.domains) }

// Match returns the rule for a descriptor's entries, or nil.
//
// On each level one child is chosen and never reconsidered: the exact value, else the first wildcard in file order that
// matches, else the key alone. The last entry's node must have a rule: a shorter or longer descriptor does not match.
// An empty value is no exact value: it matches the key alone, and a wildcard of nothing but stars.
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
	wildcards := e.edge(s).wildcards
	for i := range wildcards {
		if wildcards[i].pattern.match(value) {
			return wildcards[i].child
		}
	}
	return s.child
}

// any is the child of a node for a key alone, noNode if no rule names it so.
func (e *edges) any(parent node, key string) node {
	if s := e.find(e.hashKey(parent, key), parent, key, ""); s != nil {
		return s.child
	}
	return noNode
}
