package rulecheck

import (
	"bytes"
	"fmt"
	"strconv"

	"gopkg.in/yaml.v3"

	"github.com/ratelimitd/ratelimitd/internal/config"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// place is where something stands.
type place struct {
	file      string
	line, col int
}

// from names a place for somebody who reads about another one.
func (p place) from(other place) string {
	if p.file == other.file {
		return fmt.Sprintf("line %d", p.line)
	}
	return fmt.Sprintf("%s:%d", p.file, p.line)
}

// domain is one domain, of all files that give it.
type domain struct {
	name  string
	at    place
	roots []*node
}

// each calls do for every node, parents first.
func (d *domain) each(do func(*node)) {
	var walk func([]*node)
	walk = func(ns []*node) {
		for _, n := range ns {
			do(n)
			walk(n.children)
		}
	}
	walk(d.roots)
}

// node is one descriptor of a rule file.
type node struct {
	at       place // of the whole
	key      string
	keyAt    place
	kind     descriptor.MatchKind
	value    string // the value, pattern, expression or network
	valueAt  place  // of what says how values are matched, else of the key
	values   []listed
	share    bool
	flags    []listed // flags that mean something only with a limit
	rule     *descriptor.Rule
	limits   []limit
	replaces []listed
	children []*node
}

// listed is a text and where it stands.
type listed struct {
	text string
	at   place
}

// limit is one rate limit with the places of its keys.
type limit struct {
	*descriptor.Limit // nil if unlimited
	at                place
	given             map[string]place // of the values of its keys
	name              string
}

// place is that of a key's value, else of the limit.
func (l *limit) place(key string) place {
	if p, ok := l.given[key]; ok {
		return p
	}
	return l.at
}

// what says what the node matches, for messages.
func (n *node) what() string {
	switch n.kind {
	case descriptor.MatchAny:
		return "`" + clip(n.key) + "` without a value"
	case descriptor.MatchValues:
		return "`values` of `" + clip(n.key) + "`"
	default:
		return quote(n.value)
	}
}

// readDomains reads the domains of files that compile to that tree.
func readDomains(files []config.File, tree *descriptor.Tree) []*domain {
	r := reader{rules: make(map[place]*descriptor.Rule, len(tree.Rules)), domains: make(map[string]*domain)}
	for _, rule := range tree.Rules {
		// Two rules stand in one place if an alias repeats them: then they have the same limits.
		r.rules[place{rule.Position.File, rule.Position.Line, rule.Position.Col}] = rule
	}
	for _, f := range files {
		r.file = f.Name
		decoder := yaml.NewDecoder(bytes.NewReader(f.Data))
		for {
			var doc yaml.Node
			if decoder.Decode(&doc) != nil {
				break // the end: the file is known to be YAML
			}
			if len(doc.Content) > 0 {
				r.document(doc.Content[0])
			}
		}
	}
	return r.order
}

// reader reads YAML that is known to be a rule file.
type reader struct {
	file    string
	rules   map[place]*descriptor.Rule
	order   []*domain
	domains map[string]*domain
}

// place is where config says that a node stands.
func (r *reader) place(n *yaml.Node) place { return place{r.file, max(n.Line, 1), max(n.Column, 1)} }

// target is what an alias stands for.
func target(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode {
		return n.Alias
	}
	return n
}

// fields are the keys of a map and what it merges in; its own come first. Nulls are as if absent.
func fields(n *yaml.Node) map[string]*yaml.Node {
	have := make(map[string]*yaml.Node)
	var collect func(*yaml.Node)
	collect = func(n *yaml.Node) {
		n = target(n)
		var merge *yaml.Node
		for i := 0; i+1 < len(n.Content); i += 2 {
			k := target(n.Content[i])
			if k.Tag == "!!merge" {
				merge = target(n.Content[i+1])
				continue
			}
			if _, met := have[k.Value]; !met {
				have[k.Value] = n.Content[i+1]
			}
		}
		switch {
		case merge == nil:
		case merge.Kind == yaml.SequenceNode:
			for _, m := range merge.Content {
				collect(m)
			}
		default:
			collect(merge)
		}
	}
	collect(n)
	for name, v := range have {
		if t := target(v); t.Kind == 0 || t.Tag == "!!null" {
			delete(have, name)
		}
	}
	return have
}

func (r *reader) document(root *yaml.Node) {
	if root.Kind != yaml.MappingNode && root.Kind != yaml.AliasNode {
		return // an empty document
	}
	f := fields(root)
	name := f["domain"]
	if name == nil {
		return
	}
	d := r.domains[target(name).Value]
	if d == nil {
		d = &domain{name: target(name).Value, at: r.place(name)}
		r.domains[d.name] = d
		r.order = append(r.order, d)
	}
	d.roots = append(d.roots, r.nodes(f["descriptors"])...)
}

func (r *reader) nodes(list *yaml.Node) []*node {
	if list == nil {
		return nil
	}
	var all []*node
	for _, e := range target(list).Content {
		all = append(all, r.node(e))
	}
	return all
}

func (r *reader) node(e *yaml.Node) *node {
	f := fields(e)
	n := &node{at: r.place(e), kind: descriptor.MatchAny}
	if key := f["key"]; key != nil {
		n.key, n.keyAt = target(key).Value, r.place(key)
	}
	n.valueAt = n.keyAt
	for name, kind := range map[string]descriptor.MatchKind{
		"value": descriptor.MatchExact, "values": descriptor.MatchValues, "value_regex": descriptor.MatchRegex, "value_cidr": descriptor.MatchCIDR,
	} {
		v := f[name]
		if v == nil || name == "value" && target(v).Value == "" {
			continue
		}
		n.kind, n.value, n.valueAt = kind, target(v).Value, r.place(v)
		if kind == descriptor.MatchExact && descriptor.HasWildcard(n.value) {
			n.kind = descriptor.MatchWildcard
		}
		if kind == descriptor.MatchValues {
			for _, e := range target(v).Content {
				n.values = append(n.values, listed{target(e).Value, r.place(e)})
			}
		}
	}
	if share := f["share_threshold"]; share != nil {
		n.share = isTrue(share)
	}
	for _, name := range []string{"shadow_mode", "quota_mode", "detailed_metric", "metadata"} {
		if v := f[name]; v != nil && (name == "metadata" || isTrue(v)) {
			n.flags = append(n.flags, listed{name, r.place(v)})
		}
	}
	n.rule = r.rules[n.at]
	if n.rule != nil {
		r.limits(n, f)
	}
	n.children = r.nodes(f["descriptors"])
	return n
}

// isTrue reads a flag, in one of the notations that config takes.
func isTrue(n *yaml.Node) bool {
	var b bool
	return target(n).Decode(&b) == nil && b
}

func (r *reader) limits(n *node, f map[string]*yaml.Node) {
	var nodes []*yaml.Node
	if one := f["rate_limit"]; one != nil {
		nodes = append(nodes, one)
	} else if several := f["rate_limits"]; several != nil {
		nodes = target(several).Content
	}
	for i, y := range nodes {
		l := limit{at: r.place(y), given: make(map[string]place)}
		if i < len(n.rule.Limits) {
			l.Limit = &n.rule.Limits[i]
		}
		for name, v := range fields(y) {
			l.given[name] = r.place(v)
			switch name {
			case "name":
				l.name = target(v).Value
			case "replaces":
				for _, e := range target(v).Content {
					if replaced := fields(e)["name"]; replaced != nil {
						n.replaces = append(n.replaces, listed{target(replaced).Value, r.place(replaced)})
					}
				}
			}
		}
		n.limits = append(n.limits, l)
	}
}

const longest = 60 // characters of a file that a message repeats

func clip(s string) string {
	if runes := []rune(s); len(runes) > longest {
		return string(runes[:longest]) + "..."
	}
	return s
}

func quote(s string) string { return strconv.Quote(clip(s)) }
