package descriptor

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Explanation describes for people, step by step, how a descriptor was matched. Its result is the same as Match's.
type Explanation struct {
	Known  bool             // rules are loaded for the domain
	Levels []ExplainedLevel // the path down the tree: one level for each entry that was looked at
	Rule   *Rule            // nil if none matches
	Reason string           // why no rule matches; empty if one does
	Keys   []string         // the counter's key for each of the rule's limits
	Domain *Domain          // domain of these rules; nil if it is not loaded
}

// ExplainedLevel is one step of the path down the tree.
type ExplainedLevel struct {
	Entry      Entry
	Candidates []Candidate // the rules with the entry's key, in the order in which they are tried
	Reason     string      // why no candidate was chosen; empty if one was

	// The distinct keys that the rules have at this level, and the values that they have for the entry's key; at most
	// maxNamed of each. They help to find a typing mistake. They are set only if no candidate was chosen.
	Keys, Values []string
}

// Candidate is a rule that has an entry's key.
type Candidate struct {
	Kind    MatchKind
	Value   string // value in the rule file; empty for MatchAny, and if this candidate stands for all rules of its kind
	Matched bool   // this candidate was chosen
	Reason  string // why it was chosen or not
}

// MatchKind is a way in which a rule matches a value.
type MatchKind uint8

// The kinds of match, in the order in which they are tried. Wildcards and regular expressions are tried together, in
// file order.
const (
	MatchExact    MatchKind = iota + 1
	MatchValues             // a list of exact values
	MatchCIDR               // a network; the smallest one that contains the address wins
	MatchWildcard           // a text with stars, which match any bytes
	MatchRegex              // an expression that matches the whole value
	MatchAny                // the key, with any value
)

// matchKindNames are the kinds' names shown to people, in the order of the constants.
var matchKindNames = []string{"", "exact", "values", "cidr", "wildcard", "regex", "any"}

func (k MatchKind) String() string {
	if int(k) < len(matchKindNames) {
		return matchKindNames[k]
	}
	return "match(" + strconv.Itoa(int(k)) + ")"
}

// maxNamed is the maximum number of keys, and of values, in an ExplainedLevel.
const maxNamed = 1000

// maxExplained is the maximum number of patterns or keys that an explanation lists: a level may have thousands.
const maxExplained = 50

// Explain returns which rule Match finds for a descriptor's entries, and why. keys builds the counters' keys. A nil
// domain means that no rules are loaded for it.
//
// Explain reads all rules of the domain and allocates freely. Do not call it while deciding requests.
func (d *Domain) Explain(entries []Entry, keys KeyBuilder) Explanation {
	if d == nil {
		return Explanation{Reason: "no rules are loaded for this domain"}
	}
	if last := len(entries) - 1; d.MatchNamed(entries) != nil {
		x := d.Explain(entries[:last], keys)
		x.Levels = append(x.Levels, ExplainedLevel{Entry: entries[last], Candidates: []Candidate{
			{Kind: MatchAny, Matched: true,
				Reason: "it names a reservation of the rule above, and is no part of the counter's key"},
		}})
		return x
	}
	x := Explanation{Known: true, Domain: d}
	if len(entries) == 0 {
		x.Reason = "a descriptor without entries matches nothing"
		return x
	}
	n, path := root, d.path(entries)
	for i, e := range entries {
		siblings := d.below(n)
		level := d.explain(n, siblings, e, path[i])
		x.Levels = append(x.Levels, level)
		if level.Reason != "" {
			x.Reason = fmt.Sprintf("nothing matches entry %d, %q=%q", i+1, e.Key, e.Value)
			if len(siblings) == 0 && n != root {
				x.Reason = fmt.Sprintf("the descriptor is longer than any rule here: no rule continues below entry %d", i)
			}
			return x
		}
		n = path[i]
	}
	x.Rule = d.rules[n]
	x.counted()
	if x.Rule == nil {
		x.Reason = "the rule that matches the last entry has no rate_limit"
		if further := d.below(n); len(further) > 0 {
			x.Reason = "the descriptor is shorter than any rule here: below the last entry the rules continue with " +
				keyNames(further)
		}
		return x
	}
	counted := x.Rule.CountedEntries(entries)
	for i := range x.Rule.Limits {
		key := keys.AppendKey(nil, d.Name, counted, x.Rule, &x.Rule.Limits[i])
		x.Keys = append(x.Keys, string(key))
	}
	return x
}

// counted adds the counted value of each level where the rule groups values.
func (x *Explanation) counted() {
	for i := range x.Levels {
		if x.Rule == nil || x.Rule.group(i) == nil {
			continue
		}
		g, sent := x.Rule.group(i), x.Levels[i].Entry.Value
		as := g.counted(sent)
		if as == sent && g.oneAddress() {
			continue
		}
		for j := range x.Levels[i].Candidates {
			if c := &x.Levels[i].Candidates[j]; c.Matched {
				if _, ok := ParseNetwork(sent); !ok && g.addresses {
					c.Reason += "; " + noAddress(sent)
				}
				c.Reason += fmt.Sprintf("; it counts as %q", as)
			}
		}
	}
}

// below returns the edges that leave a node.
func (d *Domain) below(n node) []*edge {
	var found []*edge
	for i := range d.edges.list {
		if d.edges.list[i].parent == n {
			found = append(found, &d.edges.list[i])
		}
	}
	return found
}

// explain describes which of the edges that leave a node an entry follows. taken is the child to which it leads, or
// noNode.
func (d *Domain) explain(n node, siblings []*edge, e Entry, taken node) ExplainedLevel {
	level := ExplainedLevel{Entry: e}
	x := explainer{value: e.Value, taken: taken}
	x.most = d.edges.most
	var exact, listed [2]namedValues // index 0: the case of letters matters; 1: it does not
	var keys, values []string
	var rest *edge // edge of the entry's key for all values that no rule names
	for _, s := range siblings {
		if len(keys) < maxNamed && !slices.Contains(keys, s.key) {
			keys = append(keys, s.key)
		}
		switch {
		case s.starred || s.key != e.Key:
			continue
		case s.exact == noNode && s.listed == noNode && s.literal != noNode:
			if s.value == e.Value {
				x.literal = s.literal
			}
			continue
		case s.value == "":
			rest = s
			continue
		}
		if len(values) < maxNamed {
			values = append(values, s.value)
		}
		fold, hit := 0, s.value == e.Value
		if s.folded {
			fold, hit = 1, s.value == Fold(e.Value)
		}
		if s.exact != noNode {
			exact[fold].add(s.value, hit)
		}
		if s.listed != noNode {
			listed[fold].add(s.value, hit)
		}
	}
	for fold := range exact {
		x.named(MatchExact, &exact[fold], fold == 1)
		x.named(MatchValues, &listed[fold], fold == 1)
	}
	if rest != nil && rest.others != nil {
		x.networks(rest.others.networks)
	}
	x.patterns(rest, d.edges.starred[n], e)
	if rest != nil {
		if all := d.edges.any(n, e.Key); all != noNode {
			x.addCandidate(Candidate{Kind: MatchAny}, true, "the rule has this key and no value, so it matches any value", "")
		}
	}
	level.Candidates = x.candidates
	if x.taken == noNode {
		level.Keys, level.Values = keys, values
	}
	switch {
	case x.taken != noNode:
	case len(level.Candidates) > 0:
		level.Reason = fmt.Sprintf("there are rules for the key %q, but none matches the value %q", e.Key, e.Value)
	case len(siblings) > 0:
		level.Reason = fmt.Sprintf("no rule names the key %q here; the keys are %s", e.Key, keyNames(siblings))
	default:
		level.Reason = "there are no rules below this level"
	}
	return level
}

// explainer collects the candidates for one value, in the order in which they are tried.
type explainer struct {
	value      string
	taken      node   // where the value leads
	literal    node   // the wildcard whose text equals the value; root without one
	most       int    // number of bytes of a value that expressions see
	by         string // candidate that was chosen; empty until one is
	candidates []Candidate
}

// addCandidate adds a candidate. takes is whether it matches the value; because and becauseNot are the reasons for each
// case.
func (x *explainer) addCandidate(c Candidate, takes bool, because, becauseNot string) {
	switch {
	case x.by != "":
		c.Reason = "not tried: " + x.by + " comes first"
	case takes:
		c.Matched, x.by, c.Reason = true, c.name(), because
	default:
		c.Reason = becauseNot
	}
	x.candidates = append(x.candidates, c)
}

// name returns how the reasons of later candidates refer to this one.
func (c *Candidate) name() string {
	switch c.Kind {
	case MatchExact:
		return fmt.Sprintf("the exact value %q", c.Value)
	case MatchValues:
		return fmt.Sprintf("the list that has %q", c.Value)
	case MatchCIDR:
		return "the network " + c.Value
	case MatchWildcard:
		return `the wildcard "` + c.Value + `"` // the text of the rule file, without escapes for its backslashes
	case MatchRegex:
		return `the expression "` + c.Value + `"`
	default:
		return "the key only"
	}
}

// namedValues are the values that rules name in one way.
type namedValues struct {
	n    int
	last string
	hit  bool // the entry's value is one of them
}

func (v *namedValues) add(value string, hit bool) {
	v.n++
	v.last, v.hit = value, v.hit || hit
}

// named adds one candidate for all rules that name values in one way. With fold the case of letters does not matter.
func (x *explainer) named(kind MatchKind, v *namedValues, fold bool) {
	if v.n == 0 {
		return
	}
	c := Candidate{Kind: kind}
	if v.hit {
		if c.Value = x.value; fold {
			c.Value = Fold(x.value)
		}
	}
	because, all := "the value equals the rule's", "exact values"
	if kind == MatchValues {
		because, all = "the value is in the rule's list", "values in lists"
	}
	if fold {
		because += ", in any case of letters"
	}
	not := fmt.Sprintf("%q is not among the %d %s", x.value, v.n, all)
	switch {
	case x.value == "":
		not = "an empty value is no exact value"
	case v.n == 1:
		not = fmt.Sprintf("%q differs from %q, the only %s", x.value, v.last, strings.Replace(all, "values", "value", 1))
	}
	x.addCandidate(c, v.hit, because, not)
}

// networks adds the networks that contain the address, the smallest first. Without any, it adds one candidate for all
// networks.
func (x *explainer) networks(n *networks) {
	if n == nil {
		return
	}
	all := Candidate{Kind: MatchCIDR}
	p, ok := ParseNetwork(x.value)
	if !ok {
		x.addCandidate(all, false, "", noAddress(x.value))
		return
	}
	var hold []network
	for _, w := range n.list {
		if w.prefix.Bits() <= p.Bits() && w.prefix.Contains(p.Addr()) {
			hold = append(hold, w)
		}
	}
	if len(hold) == 0 {
		x.addCandidate(all, false, "", fmt.Sprintf("%q is in none of the %d networks", x.value, len(n.list)))
		return
	}
	slices.SortFunc(hold, func(a, b network) int { return cmp.Compare(b.prefix.Bits(), a.prefix.Bits()) })
	for _, w := range hold {
		x.addCandidate(Candidate{Kind: MatchCIDR, Value: w.prefix.String()}, true,
			fmt.Sprintf("%q is in the network, the smallest that holds it", x.value), "")
	}
}

// patterns adds the patterns for the key and those with a star in their key, in file order. A wildcard whose text
// equals the entry comes first.
func (x *explainer) patterns(rest *edge, starred []keyPattern, e Entry) {
	type asked struct {
		Candidate
		text, what string
		child      node
		passed     bool // the start of a long value matches it, and it was not chosen
	}
	var all []asked
	if rest != nil && rest.others != nil {
		for i := range rest.others.patterns.list {
			p := &rest.others.patterns.list[i]
			a := asked{Candidate: Candidate{Kind: p.kind, Value: p.text}, text: strconv.Quote(x.value), what: "pattern",
				child: p.child}
			if p.kind == MatchRegex {
				a.what = "expression"
				if len(x.value) > x.most {
					a.text = fmt.Sprintf("a value that starts with the first %d bytes of this one", x.most)
					a.passed = rest.others.patterns.find(x.value, x.most, p.child-1) == p.child
				}
			}
			all = append(all, a)
		}
	}
	text := e.Key + "_" + e.Value
	for i := range starred {
		if starred[i].text == text {
			x.literal = starred[i].child
		}
		all = append(all, asked{
			Candidate: Candidate{Kind: MatchWildcard, Value: starred[i].text}, text: strconv.Quote(text),
			what:  "pattern of the whole entry",
			child: starred[i].child,
		})
	}
	slices.SortFunc(all, func(a, b asked) int {
		if (a.child == x.literal) != (b.child == x.literal) {
			if a.child == x.literal {
				return -1
			}
			return 1
		}
		return cmp.Compare(a.child, b.child)
	})
	for i, a := range all {
		takes := x.by == "" && a.child == x.taken
		if i >= maxExplained && !takes {
			continue
		}
		because := fmt.Sprintf("%s fits the %s", a.text, a.what)
		if a.child == x.literal {
			because = fmt.Sprintf("%s is written like the %s", a.text, a.what)
		}
		becauseNot := fmt.Sprintf("%s does not fit the %s", a.text, a.what)
		if a.passed {
			becauseNot = because + ", but the rest of the value may not, and its rule does not deny everything above a limit"
		}
		x.addCandidate(a.Candidate, takes, because, becauseNot)
	}
}

// keyNames lists the distinct keys of edges.
func keyNames(edges []*edge) string {
	var names []string
	for _, e := range edges {
		names = append(names, fmt.Sprintf("%q", e.key))
	}
	slices.Sort(names)
	names = slices.Compact(names)
	more := ""
	if len(names) > maxExplained {
		more = fmt.Sprintf(" and %d more", len(names)-maxExplained)
		names = names[:maxExplained]
	}
	return strings.Join(names, ", ") + more
}
