package descriptor

import (
	"fmt"
	"slices"
	"strings"
)

// Explanation is how a descriptor was matched, step by step, for people. It finds what Match finds.
type Explanation struct {
	Known  bool             // rules are loaded for the domain
	Levels []ExplainedLevel // the way down the tree: one per entry that was looked at
	Rule   *Rule            // nil if none matches
	Reason string           // why none matches; empty if one does
	Keys   []string         // the counter's key of each of the rule's limits
}

// ExplainedLevel is one step of the way down the tree.
type ExplainedLevel struct {
	Entry      Entry
	Candidates []Candidate // the rules with the entry's key, in the order in which they are asked
	Reason     string      // why none was taken; empty if one was
}

// Candidate is a rule that has an entry's key.
type Candidate struct {
	Kind    MatchKind
	Value   string // as the rule file writes it; empty for MatchAny, and where no exact value is the entry's
	Matched bool   // this candidate was taken
	Reason  string // why it was taken or not
}

// MatchKind is a way in which a rule matches a value.
type MatchKind uint8

// The ways to match, in the order in which they are tried.
const (
	MatchExact MatchKind = iota + 1
	MatchWildcard
	MatchAny
)

// maxExplained bounds how many wildcards or keys an explanation spells out: a level may have thousands.
const maxExplained = 50

// Explain says which rule Match finds for a descriptor's entries, and why. keys names the counters. A nil domain is one
// that no rules are loaded for.
//
// It looks through all rules of the domain, allocates freely, and is not for the way of a request.
func (d *Domain) Explain(entries []Entry, keys KeyBuilder) Explanation {
	if d == nil {
		return Explanation{Reason: "no rules are loaded for this domain"}
	}
	x := Explanation{Known: true}
	if len(entries) == 0 {
		x.Reason = "a descriptor without entries matches nothing"
		return x
	}
	n := root
	for i, e := range entries {
		siblings := d.below(n)
		level := d.explain(n, siblings, e)
		x.Levels = append(x.Levels, level)
		if level.Reason != "" {
			x.Reason = fmt.Sprintf("nothing matches entry %d, %q=%q", i+1, e.Key, e.Value)
			if len(siblings) == 0 && n != root {
				x.Reason = fmt.Sprintf("the descriptor is longer than any rule here: no rule goes on below entry %d", i)
			}
			return x
		}
		n = d.edges.child(n, e.Key, e.Value)
	}
	x.Rule = d.rules[n]
	if x.Rule == nil {
		x.Reason = "what matches the last entry has no rate_limit"
		if further := d.below(n); len(further) > 0 {
			x.Reason = "the descriptor is shorter than any rule here: below the last entry the rules go on with " + keyNames(further)
		}
		return x
	}
	for i := range x.Rule.Limits {
		key := keys.AppendKey(nil, d.Name, entries, x.Rule, &x.Rule.Limits[i])
		x.Keys = append(x.Keys, string(key))
	}
	return x
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

// explain says which of the edges that leave a node an entry takes.
func (d *Domain) explain(n node, siblings []*edge, e Entry) ExplainedLevel {
	level := ExplainedLevel{Entry: e}
	taken := d.edges.child(n, e.Key, e.Value)
	exact, hit := 0, false
	var rest *edge // of the key, everything but the exact values
	for _, s := range siblings {
		switch {
		case s.key != e.Key:
		case s.value == "":
			rest = s
		default:
			exact++
			hit = hit || s.value == e.Value
		}
	}
	if exact > 0 {
		level.Candidates = append(level.Candidates, explainExact(e.Value, exact, hit))
	}
	if rest != nil {
		level.Candidates = explainWildcards(level.Candidates, rest.wildcards, e.Value, hit)
		if all := d.edges.any(n, e.Key); all != noNode {
			c := Candidate{Kind: MatchAny, Matched: taken == all, Reason: "the rule names the key alone, which takes any value"}
			if !c.Matched {
				c.Reason = "not asked: a more specific rule was taken"
			}
			level.Candidates = append(level.Candidates, c)
		}
	}
	switch {
	case taken != noNode:
	case len(level.Candidates) > 0:
		level.Reason = fmt.Sprintf("rules name the key %q, but none takes the value %q", e.Key, e.Value)
	case len(siblings) > 0:
		level.Reason = fmt.Sprintf("no rule names the key %q here; the keys are %s", e.Key, keyNames(siblings))
	default:
		level.Reason = "no rules go on here"
	}
	return level
}

func explainExact(value string, values int, hit bool) Candidate {
	switch {
	case value == "":
		return Candidate{Kind: MatchExact, Reason: "an empty value is no exact value"}
	case !hit:
		return Candidate{Kind: MatchExact, Reason: fmt.Sprintf("%q is not among the %d exact values", value, values)}
	default:
		return Candidate{Kind: MatchExact, Value: value, Matched: true, Reason: "the value is the rule's"}
	}
}

func explainWildcards(to []Candidate, wildcards []wildcardEdge, value string, taken bool) []Candidate {
	for i := range wildcards {
		w := &wildcards[i]
		c := Candidate{Kind: MatchWildcard, Value: w.value}
		switch {
		case taken:
			c.Reason = "not asked: an earlier rule was taken"
		case w.pattern.match(value):
			c.Matched, taken = true, true
			c.Reason = fmt.Sprintf("%q fits the pattern", value)
		default:
			c.Reason = fmt.Sprintf("%q does not fit the pattern", value)
		}
		if i < maxExplained || c.Matched {
			to = append(to, c)
		}
	}
	return to
}

// keyNames lists the keys of edges, each once.
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
