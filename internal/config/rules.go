package config

import (
	"gopkg.in/yaml.v3"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// The rule language: which keys stand where, and what reads them. They are set by init because lists of descriptors
// stand within descriptors.
var (
	documentShape   shape[descriptor.DomainSpec]
	descriptorShape shape[node]
	rateLimitShape  shape[rateLimit]
	replacesShape   shape[replaced]

	// places tells somebody who put a key into the wrong map where it belongs.
	places []place
)

type place struct {
	what  string
	names []string
}

func init() {
	documentShape = shape[descriptor.DomainSpec]{"the top of a rule file", []key[descriptor.DomainSpec]{
		{"domain", func(r *reader, d *descriptor.DomainSpec, n *yaml.Node) {
			if name, ok := r.text("domain", n); ok {
				d.Name = name
				if name == "" {
					r.errorf(n, "`domain` is empty: give it the name that callers send")
				}
			}
			d.Position = r.position(n)
		}},
		{"descriptors", func(r *reader, d *descriptor.DomainSpec, n *yaml.Node) { d.Children = r.descriptors(n) }},
	}}

	descriptorShape = shape[node]{"a descriptor", []key[node]{
		{"key", func(r *reader, d *node, n *yaml.Node) {
			name, ok := r.text("key", n)
			d.spec.Key, d.keyBad = name, !ok
		}},
		{"value", func(r *reader, d *node, n *yaml.Node) {
			value, ok := r.text("value", n)
			d.spec.Value, d.valueBad = value, !ok
		}},
		{"rate_limit", func(r *reader, d *node, n *yaml.Node) { d.rule = r.rateLimit(n) }},
		{"descriptors", func(r *reader, d *node, n *yaml.Node) { d.spec.Children = r.descriptors(n) }},
		{"shadow_mode", func(r *reader, d *node, n *yaml.Node) { d.shadow = r.flag("shadow_mode", n) }},
		{"quota_mode", func(r *reader, d *node, n *yaml.Node) { d.quota = r.flag("quota_mode", n) }},
		{"detailed_metric", func(r *reader, d *node, n *yaml.Node) { d.detailed = r.flag("detailed_metric", n) }},
		{"value_to_metric", func(r *reader, d *node, n *yaml.Node) { d.spec.ValueToMetric = r.flag("value_to_metric", n) }},
		{"share_threshold", func(r *reader, d *node, n *yaml.Node) {
			d.spec.ShareThreshold = r.flag("share_threshold", n)
			d.shareAt = r.position(n)
		}},
		{"metadata", func(r *reader, d *node, n *yaml.Node) { d.metadata = r.metadata(n) }},
	}}

	rateLimitShape = shape[rateLimit]{"`rate_limit`", []key[rateLimit]{
		{"unit", func(r *reader, l *rateLimit, n *yaml.Node) {
			name, ok := r.text("unit", n)
			l.unitGiven, l.unitAt = name != "" || !ok, r.position(n)
			if name != "" {
				l.unit = r.unit(name, n)
			}
		}},
		{"requests_per_unit", func(r *reader, l *rateLimit, n *yaml.Node) { l.requests = r.number("requests_per_unit", n) }},
		{"unlimited", func(r *reader, l *rateLimit, n *yaml.Node) { l.unlimited = r.flag("unlimited", n) }},
		{"name", func(r *reader, l *rateLimit, n *yaml.Node) { l.name, _ = r.text("name", n) }},
		{"replaces", func(r *reader, l *rateLimit, n *yaml.Node) { r.replaces(l, n) }},
	}}

	replacesShape = shape[replaced]{"an entry of `replaces`", []key[replaced]{
		{"name", func(r *reader, p *replaced, n *yaml.Node) {
			name, ok := r.text("name", n)
			p.name, p.bad, p.at = name, !ok, r.position(n)
		}},
	}}

	places = []place{
		{descriptorShape.what, descriptorShape.names()},
		{rateLimitShape.what, rateLimitShape.names()},
		{documentShape.what, documentShape.names()},
	}
}

// node is a descriptor while its map is being read.
type node struct {
	spec     descriptor.NodeSpec
	keyBad   bool // told already, as valueBad
	valueBad bool
	rule     *descriptor.Rule
	shadow   bool
	quota    bool
	detailed bool
	metadata map[string]any
	shareAt  descriptor.Position
}

// rateLimit is a rate_limit while its map is being read.
type rateLimit struct {
	unit      descriptor.Unit
	unitGiven bool
	unitAt    descriptor.Position
	requests  uint32
	unlimited bool
	name      string
	replaces  []replaced
}

// replaced is one entry of replaces.
type replaced struct {
	name string
	bad  bool // told already
	at   descriptor.Position
}

// document reads one YAML document: one domain.
func (r *reader) document(n *yaml.Node) descriptor.DomainSpec {
	var d descriptor.DomainSpec
	read, unknown := readMap(r, &documentShape, &d, n)
	if d.Position.Line > 0 {
		return d
	}
	d.Position = r.position(n)
	if read && !unknown {
		r.errorf(n, "no `domain`: write `domain: NAME`, the name that callers send")
	}
	return d
}

// descriptors reads a list of descriptors that stand side by side.
func (r *reader) descriptors(n *yaml.Node) []descriptor.NodeSpec {
	t, ok := r.enter(n)
	if !ok {
		return nil
	}
	defer r.leave(n)
	if t.Kind != yaml.SequenceNode {
		r.errorf(n, "`descriptors` must be a list, this is %s: begin each descriptor with `- key:`", kindOf(t))
		return nil
	}
	if r.level >= maxLevels {
		r.errorf(n, "descriptors within descriptors: more than %d levels", maxLevels)
		return nil
	}
	r.level++
	specs := r.descriptorList(t.Content)
	r.level--
	r.twice(specs)
	return specs
}

func (r *reader) descriptorList(entries []*yaml.Node) []descriptor.NodeSpec {
	specs := make([]descriptor.NodeSpec, 0, len(entries))
	for _, e := range entries {
		if spec, ok := r.descriptor(e); ok {
			specs = append(specs, spec)
		}
	}
	return specs
}

// descriptor reads one descriptor. It says false if there is none to speak of.
func (r *reader) descriptor(n *yaml.Node) (descriptor.NodeSpec, bool) {
	d := node{spec: descriptor.NodeSpec{Position: r.position(n)}}
	read, unknown := readMap(r, &descriptorShape, &d, n)
	if !read {
		return d.spec, false
	}
	ok := d.spec.Key != ""
	if !ok && !d.keyBad && !unknown {
		r.errorf(n, "a descriptor without a `key`: write `key: NAME`")
	}
	if d.spec.ShareThreshold && !d.valueBad && !descriptor.HasWildcard(d.spec.Value) {
		r.errorAt(d.shareAt, "`share_threshold` needs a `value` with a * in it: the values that match it share one counter")
		ok = false
	}
	if d.rule != nil {
		d.rule.Shadow = d.shadow
		d.rule.Quota = d.quota
		d.rule.DetailedMetric = d.detailed
		d.rule.Metadata = d.metadata
		d.rule.Position = d.spec.Position
		d.spec.Rule = d.rule
		r.rules++
	}
	return d.spec, ok
}

// twice refuses siblings with the same key and value.
func (r *reader) twice(specs []descriptor.NodeSpec) {
	if len(specs) < 2 {
		return
	}
	seen := make(map[descriptor.Level]int, len(specs))
	for i := range specs {
		level := descriptor.Level{Key: specs[i].Key, Value: specs[i].Value}
		if first, twice := seen[level]; twice {
			r.errorAt(specs[i].Position, "%s twice: the first is on line %d", describe(level), specs[first].Position.Line)
			continue
		}
		seen[level] = i
	}
}

func describe(l descriptor.Level) string {
	if l.Value == "" {
		return "a descriptor with key " + quote(l.Key) + " and no value"
	}
	return "a descriptor with key " + quote(l.Key) + " and value " + quote(l.Value)
}

// rateLimit reads a rate limit and returns the rule it makes, nil if it cannot be one.
func (r *reader) rateLimit(n *yaml.Node) *descriptor.Rule {
	l := &r.limit
	*l = rateLimit{replaces: l.replaces[:0]}
	read, unknown := readMap(r, &rateLimitShape, l, n)
	if !read {
		return nil
	}
	for _, p := range l.replaces {
		switch {
		case p.bad:
		case p.name == "":
			r.errorAt(p.at, "an entry of `replaces` without a name: write `- name: NAME`, the `name` of another rate limit")
		case p.name == l.name:
			r.errorAt(p.at, "the rate limit %s replaces itself: give the name of another one", quote(l.name))
		}
	}
	if l.unlimited && l.unitGiven {
		r.errorAt(l.unitAt, "`unlimited: true` and a `unit`: leave out one of them")
		return nil
	}
	if !l.unlimited && !l.unitGiven && !unknown {
		r.errorf(n, "`rate_limit` without a `unit`: write `unit` (%s) and `requests_per_unit`, or `unlimited: true`",
			list(descriptor.UnitNames, "or"))
		return nil
	}

	made := new(ruleAndLimit)
	made.rule.Name = l.name
	made.rule.Unlimited = l.unlimited
	for _, p := range l.replaces {
		made.rule.Replaces = append(made.rule.Replaces, p.name)
	}
	if !l.unlimited {
		made.limit[0] = descriptor.Limit{Name: l.name, Requests: l.requests, Window: descriptor.Window{Unit: l.unit}}
		made.rule.Limits = made.limit[:]
	}
	return &made.rule
}

func (r *reader) unit(name string, n *yaml.Node) descriptor.Unit {
	u := descriptor.ParseUnit(name)
	if u != descriptor.UnitUnknown {
		return u
	}
	if c := closest(name, descriptor.UnitNames); c != "" {
		r.errorf(n, "unknown unit %s: did you mean `%s`?", quote(name), c)
	} else {
		r.errorf(n, "unknown unit %s: write %s", quote(name), list(descriptor.UnitNames, "or"))
	}
	return u
}

func (r *reader) replaces(l *rateLimit, n *yaml.Node) {
	t, ok := r.enter(n)
	if !ok {
		return
	}
	defer r.leave(n)
	if t.Kind != yaml.SequenceNode {
		r.errorf(n, "`replaces` must be a list, this is %s: begin each entry with `- name:`", kindOf(t))
		return
	}
	for _, e := range t.Content {
		p := replaced{at: r.position(e)}
		read, unknown := readMap(r, &replacesShape, &p, e)
		p.bad = p.bad || unknown
		if read {
			l.replaces = append(l.replaces, p)
		}
	}
}
