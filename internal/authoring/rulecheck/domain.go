package rulecheck

import (
	"strings"

	"github.com/ratelimitd/ratelimitd/internal/config"
	"github.com/ratelimitd/ratelimitd/internal/config/yamlform"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// domain is one domain, from all files that have it.
type domain struct {
	name   string
	at     yamlform.Position
	roots  []*node
	delays []yamlform.Position // where it has envoy_delay: true
	orders [][]listed          // orders of its quota buckets
	of     []listed            // names of limits that its headers describe
	named  bool                // a header shows the name of a limit
	ietf   bool                // it has the headers of the IETF draft
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
	at       yamlform.Position // position of the whole descriptor
	key      string
	keyAt    yamlform.Position
	kind     descriptor.MatchKind
	value    string            // the value, pattern, expression or network
	valueAt  yamlform.Position // position of the key that matches values, else of the descriptor's key
	values   []listed
	share    bool
	fold     bool              // the case of letters does not matter; value and values are in lower case
	inherits bool              // inherits the settings that it lacks from the node with this key and no value
	flags    []listed          // keys that need a limit
	largest  yamlform.Position // position of max_share
	rule     *descriptor.Rule
	limits   []limit
	replaces []listed
	children []*node
	octals   []listed // numbers of its limits that start with 0
}

// listed is a text with its position.
type listed struct {
	text string
	at   yamlform.Position
}

// limit is one rate limit with the positions of its keys.
type limit struct {
	*descriptor.Limit // nil if unlimited
	at                yamlform.Position
	given             map[string]yamlform.Position // positions of the values of its keys
	name              string
}

// position returns the position of a key's value, or of the limit if the key is absent.
func (l *limit) position(key string) yamlform.Position {
	if p, ok := l.given[key]; ok {
		return p
	}
	return l.at
}

// what describes the pattern of the node, for messages.
func (n *node) what() string {
	switch n.kind {
	case descriptor.MatchAny:
		return "`" + yamlform.Clip(n.key) + "` without a value"
	case descriptor.MatchValues:
		return "`values` of `" + yamlform.Clip(n.key) + "`"
	default:
		return yamlform.Quote(n.value)
	}
}

// readDomains reads the domains of files that compile to that tree.
func readDomains(files []config.File, tree *descriptor.Tree) []*domain {
	r := domainReader{rules: make(map[yamlform.Position]*descriptor.Rule, len(tree.Rules)),
		domains: make(map[string]*domain)}
	for _, rule := range tree.Rules {
		// Two rules have the same position if an alias repeats them. Then they have the same limits.
		r.rules[yamlform.Position(rule.Position)] = rule
	}
	for _, f := range files {
		for _, doc := range yamlform.NewReader(f.Name, yamlform.Options{}).Parse(f.Data) {
			r.document(doc)
		}
	}
	return r.order
}

// domainReader reads files that are known to be rule files.
type domainReader struct {
	rules   map[yamlform.Position]*descriptor.Rule
	order   []*domain
	domains map[string]*domain
}

func (r *domainReader) document(v yamlform.Value) {
	keys := v.Keys()
	name := keys["domain"]
	if !name.Given() {
		return
	}
	d := r.domains[name.Written()]
	if d == nil {
		d = &domain{name: name.Written(), at: name.Position()}
		r.domains[d.name] = d
		r.order = append(r.order, d)
	}
	d.roots = append(d.roots, r.nodes(keys["descriptors"])...)
	if delay := keys["envoy_delay"]; delay.Given() && delay.Flag() {
		d.delays = append(d.delays, delay.Position())
	}
	if buckets := keys["quota_buckets"]; buckets.Given() {
		if order := buckets.Keys()["order"]; order.Given() {
			var all []listed
			for key := range order.Items() {
				all = append(all, listed{key.Written(), key.Position()})
			}
			d.orders = append(d.orders, all)
		}
	}
	if headers := keys["headers"]; headers.Given() {
		for item := range headers.Items() {
			if item.Written() == "ietf" {
				d.ietf = true
			}
			header := item.Keys()
			if value := header["value"]; value.Given() && strings.Contains(value.Written(), "{name}") {
				d.named = true
			}
			if of := header["of"]; of.Given() {
				for name := range of.Items() {
					d.of = append(d.of, listed{name.Written(), name.Position()})
				}
			}
		}
	}
}

func (r *domainReader) nodes(list yamlform.Value) []*node {
	if !list.Given() {
		return nil
	}
	var all []*node
	for item := range list.Items() {
		all = append(all, r.node(item))
	}
	return all
}

// Properties of a descriptor's keys, from the rows of the rule language.
var (
	matchers  = config.Matchers()
	needLimit = config.NeedLimit()
)

func (r *domainReader) node(v yamlform.Value) *node {
	keys := v.Keys()
	n := &node{at: v.Position(), kind: descriptor.MatchAny}
	if key := keys["key"]; key.Given() {
		n.key, n.keyAt = key.Written(), key.Position()
	}
	n.valueAt = n.keyAt
	for name, kind := range matchers {
		value := keys[name]
		if !value.Given() || kind == descriptor.MatchExact && value.Written() == "" {
			continue
		}
		n.kind, n.value, n.valueAt = kind, value.Written(), value.Position()
		if kind == descriptor.MatchExact && descriptor.HasWildcard(n.value) {
			n.kind = descriptor.MatchWildcard
		}
		if kind == descriptor.MatchValues {
			for item := range value.Items() {
				n.values = append(n.values, listed{item.Written(), item.Position()})
			}
		}
	}
	if share := keys["share_threshold"]; share.Given() {
		n.share = share.Flag()
	}
	if fold := keys["fold_case"]; fold.Given() && fold.Flag() {
		n.fold = true
		if n.kind != descriptor.MatchRegex {
			n.value = descriptor.Fold(n.value)
		}
		for i := range n.values {
			n.values[i].text = descriptor.Fold(n.values[i].text)
		}
	}
	if inherit := keys["inherit"]; inherit.Given() {
		n.inherits = inherit.Flag()
	}
	for _, name := range needLimit {
		if value := keys[name]; value.Given() && (value.IsMap() || name == "cost" || value.Flag()) {
			n.flags = append(n.flags, listed{name, value.Position()})
		}
	}
	n.rule = r.rules[n.at]
	if n.rule != nil {
		if reservations := keys["reservations"]; reservations.Given() && reservations.IsMap() {
			if share := reservations.Keys()["max_share"]; share.Given() {
				n.largest = share.Position()
			}
		}
		r.limits(n, keys)
	}
	n.children = r.nodes(keys["descriptors"])
	return n
}

func (r *domainReader) limits(n *node, keys map[string]yamlform.Value) {
	limits := keys["rate_limit"]
	if !limits.Given() {
		limits = keys["rate_limits"]
	}
	i := 0
	for v := range limits.Items() {
		l := limit{at: v.Position(), given: make(map[string]yamlform.Position)}
		if i < len(n.rule.Limits) {
			l.Limit = &n.rule.Limits[i]
		}
		i++
		for name, value := range v.Keys() {
			l.given[name] = value.Position()
			if name != "name" && octalNumber.MatchString(value.Written()) && value.IsNumber() {
				n.octals = append(n.octals, listed{value.Written(), value.Position()})
			}
			switch name {
			case "name":
				l.name = value.Written()
			case "replaces":
				for item := range value.Items() {
					if replaced := item.Keys()["name"]; replaced.Given() {
						n.replaces = append(n.replaces, listed{replaced.Written(), replaced.Position()})
					}
				}
			}
		}
		n.limits = append(n.limits, l)
	}
}
