package rulecheck

import (
	"regexp"
	"slices"
	"strings"

	"github.com/ratelimitd/ratelimitd/internal/config/yamlform"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// siblings finds nodes that no value reaches because of their siblings.
func (c *checker) siblings(nodes []*node) {
	byKey := make(map[string][]*node)
	for _, n := range nodes {
		if !descriptor.HasWildcard(n.key) { // a key with a star is matched together with its value, for all keys
			byKey[n.key] = append(byKey[n.key], n)
		}
	}
	for _, key := range sorted(byKey) {
		c.sameKey(byKey[key])
	}
	c.sameText(nodes)
}

// sameText finds siblings that envoyproxy/ratelimit takes for one: it compares the key and the value as one text.
func (c *checker) sameText(nodes []*node) {
	first := make(map[string]*node, len(nodes))
	for _, n := range nodes {
		if n.fold || n.kind == descriptor.MatchValues || n.kind == descriptor.MatchRegex || n.kind == descriptor.MatchCIDR {
			continue // not a key of Envoy
		}
		text := descriptor.Level{Key: n.key, Value: n.value}.Text()
		before, met := first[text]
		if !met {
			first[text] = n
			continue
		}
		c.add(Warning, n.at, codeSameText, "rename one of the keys",
			"key and value joined with `_` are %s, the same as on %s: both have the same name in metrics, and "+
				"envoyproxy/ratelimit rejects the file", yamlform.Quote(text), before.at.From(n.at))
	}
}

// sameKey checks siblings with one key.
func (c *checker) sameKey(nodes []*node) {
	exact := make(map[exactValue]*node)
	var alone *node // the node that has the key and no value
	for _, n := range nodes {
		switch n.kind {
		case descriptor.MatchExact:
			exact[exactValue{n.value, n.fold}] = n
		case descriptor.MatchAny:
			alone = n
		}
	}
	c.lists(nodes, exact)
	c.networks(nodes)
	c.longValues(nodes, alone)
	all := c.patterns(nodes)
	c.newlines(nodes, alone != nil || all != nil)
	c.addresses(nodes)
	switch {
	case alone != nil && all != nil:
		c.add(Warning, alone.at, codeNeverMatches,
			"remove one of them: the key without a value matches every value that no other rule matches",
			"no value reaches %s: %s (%s) matches every value and is tried first", alone.what(), yamlform.Quote(all.value),
			all.valueAt.From(alone.at))
	case alone == nil && all == nil:
		c.catchAll(nodes)
	}
	if alone != nil {
		c.hides(nodes, alone)
		c.cannotReserve(nodes, alone)
	}
}

// exactValue is the value of a descriptor. With fold_case and without it, a text matches different values.
type exactValue struct {
	text string
	fold bool
}

// lists finds entries of `values` that a `value` matches first.
func (c *checker) lists(nodes []*node, exact map[exactValue]*node) {
	for _, n := range nodes {
		var taken []listed
		for _, v := range n.values {
			if exact[exactValue{v.text, n.fold}] != nil {
				taken = append(taken, v)
			}
		}
		if len(taken) > 0 && len(taken) == len(n.values) {
			c.add(Warning, n.valueAt, codeNeverMatches, "remove the list, or the descriptors with those values",
				"no value reaches these `values`: each of them is also the `value` of another descriptor, which comes first")
			continue
		}
		for _, v := range taken {
			c.add(Warning, v.at, codeNeverMatches, "remove one of the two",
				"%s in `values` is never chosen: the `value` on %s comes first", yamlform.Quote(v.text),
				exact[exactValue{v.text, n.fold}].valueAt.From(v.at))
		}
	}
}

// maxCovers bounds the pairs of patterns of which one may hide the other, in all files together.
const maxCovers = 1_000_000

// patterns finds wildcards and expressions that are never tried because an earlier one matches the same values. It
// returns the first one that matches every value, or nil.
func (c *checker) patterns(nodes []*node) *node {
	type earlier struct {
		glob glob
		node *node
	}
	// All values that a pattern covers start with its first piece, so only patterns whose first piece is a prefix matter.
	byPrefix := make(map[string][]earlier)
	var all *node
	for _, n := range nodes {
		if n.kind != descriptor.MatchWildcard && n.kind != descriptor.MatchRegex {
			continue
		}
		g := globOf(n)
		prefix, text := descriptor.Fold(g.pieces[0]), g.text()
		var taker *earlier
		for end := 0; end <= len(prefix) && taker == nil; end++ {
			for i, e := range byPrefix[prefix[:end]] {
				if c.covers++; c.covers > maxCovers {
					break
				}
				if e.glob.covers(g, text) {
					taker = &byPrefix[prefix[:end]][i]
					break
				}
			}
		}
		if taker != nil {
			fix := "move it before the other one, or remove it"
			if g.covers(taker.glob, taker.glob.text()) {
				fix = "remove one of the two"
			}
			c.add(Warning, n.valueAt, codeNeverMatches, fix,
				"no value reaches %s: %s (%s) comes first and matches everything that it matches",
				yamlform.Quote(n.value), yamlform.Quote(taker.node.value), taker.node.valueAt.From(n.valueAt))
			continue
		}
		if g.everything() && all == nil {
			all = n
		}
		if g.exact { // only such a glob covers others
			byPrefix[prefix] = append(byPrefix[prefix], earlier{g, n})
		}
	}
	return all
}

// enumerated are keys whose values come from the client's configuration: there are no unknown values.
var enumerated = []string{"generic_key", "header_match", "query_match"}

// callers are keys that identify customers: their values are never all known.
var callers = regexp.MustCompile(`(?i)(^|_|-)(ip|addr|address|user|customer|tenant|account|client|caller|org|organization|api_?key)(_id)?$`)

// catchAll reports keys whose other values have no limit. That is usually intended. It is a warning only if several
// customers are named and some of them may pass, because then unknown customers have no limit.
func (c *checker) catchAll(nodes []*node) {
	first := nodes[0]
	limited, named := false, 0
	for _, n := range nodes {
		limited = limited || n.limited()
		named += max(len(n.values), 1)
	}
	if !limited || slices.Contains(enumerated, first.key) {
		return
	}
	fix := "write a descriptor with `key: " + yamlform.Clip(first.key) +
		"` and no value, with a limit or `unlimited: true`"
	switch {
	case named == 1:
		c.add(Info, first.keyAt, codeNoCatchAll, fix, "values of `%s` other than %s have no limit", yamlform.Clip(first.key),
			first.named())
	case callers.MatchString(first.key) && slices.ContainsFunc(nodes, (*node).admits):
		c.add(Warning, first.keyAt, codeNoCatchAll, fix,
			"some values of `%s` are limited here, but customers with any other value are not", yamlform.Clip(first.key))
	default:
		c.add(Info, first.keyAt, codeNoCatchAll, fix, "values of `%s` other than the %d named here have no limit",
			yamlform.Clip(first.key), named)
	}
}

// admits reports whether a request can pass the node's own limits. It is false for a node that denies everything.
func (n *node) admits() bool {
	return n.rule != nil && !slices.ContainsFunc(n.rule.Limits, func(l descriptor.Limit) bool { return l.Requests == 0 })
}

// named returns the node's value, for messages.
func (n *node) named() string {
	if len(n.values) > 0 {
		return yamlform.Quote(n.values[0].text)
	}
	return yamlform.Quote(n.value)
}

// limited reports whether the node or one below it has a limit.
func (n *node) limited() bool {
	return n.rule != nil && !n.rule.Unlimited || slices.ContainsFunc(n.children, (*node).limited)
}

// hides finds nodes with a value that lack levels which the node without a value has below it. Matching never returns
// to the node without a value, so requests with this value match nothing on these levels.
func (c *checker) hides(nodes []*node, alone *node) {
	var below []string
	for _, child := range alone.children {
		if child.limited() && !slices.Contains(below, child.key) {
			below = append(below, child.key)
		}
	}
	for _, n := range nodes {
		if n == alone || n.inherits || n.rule != nil && n.rule.Unlimited {
			continue
		}
		var missing []string
		for _, key := range below {
			if !slices.ContainsFunc(n.children, func(child *node) bool { return child.key == key }) {
				missing = append(missing, "`"+yamlform.Clip(key)+"`")
			}
		}
		if len(missing) > 0 {
			c.add(Warning, n.valueAt, codeNotInherited,
				"write `inherit: true`, or limits for these levels below this descriptor",
				"a request that matches %s does not reach %s below `%s` without a value (%s), so those limits do not apply",
				n.what(), strings.Join(missing, ", "), yamlform.Clip(alone.key), alone.at.From(n.valueAt))
		}
	}
}

// cannotReserve finds nodes with a value and a limit that allow no reservations, although the node without a value
// allows them. A request of Envoy that names a reservation matches no rule there, because the reservation's name is one
// more level.
func (c *checker) cannotReserve(nodes []*node, alone *node) {
	if alone.rule == nil || !alone.rule.Reservable() {
		return
	}
	for _, n := range nodes {
		if n == alone || n.rule == nil || n.rule.Unlimited || n.rule.Reservable() {
			continue
		}
		c.add(Warning, n.valueAt, codeNotInherited, "write `reservations` here too",
			"a request with `%s` matches no rule under %s and passes: the limit of `%s` without a value (%s) has "+
				"`reservations`, and this one has none",
			descriptor.ReserveID, n.what(), yamlform.Clip(alone.key), alone.at.From(n.valueAt))
	}
}
