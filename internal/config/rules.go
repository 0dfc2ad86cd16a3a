package config

import (
	"cmp"

	"gopkg.in/yaml.v3"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// The rule language: which keys stand where, and what reads them; the ones of a rate limit are in limits.go. They are set
// by init because lists of descriptors stand within descriptors.
var (
	documentShape   shape[descriptor.DomainSpec]
	descriptorShape shape[node]

	// places tells somebody who put a key into the wrong map where it belongs.
	places []Place
)

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
		{"admission", func(r *reader, d *descriptor.DomainSpec, n *yaml.Node) {
			name, _ := r.choice("admission", n, descriptor.AdmissionNames[1:])
			d.Admission = descriptor.ParseAdmission(name)
		}},
		{"on_error", func(r *reader, d *descriptor.DomainSpec, n *yaml.Node) { d.OnError = r.onError(n) }},
		{"headers", func(r *reader, d *descriptor.DomainSpec, n *yaml.Node) { d.Headers = r.headers(n) }},
	}}

	descriptorShape = shape[node]{"a descriptor", []key[node]{
		{"key", func(r *reader, d *node, n *yaml.Node) {
			name, ok := r.text("key", n)
			d.spec.Key, d.keyBad = name, !ok
		}},
		{"value", func(r *reader, d *node, n *yaml.Node) {
			value, ok := r.text("value", n)
			if value != "" || !ok {
				d.matcher(0, n, value, ok)
			}
		}},
		{"values", func(r *reader, d *node, n *yaml.Node) {
			values, ok := r.values(n)
			d.matcher(descriptor.MatchValues, n, "", ok)
			d.spec.Values = values
		}},
		{"value_regex", func(r *reader, d *node, n *yaml.Node) {
			text, ok := r.text("value_regex", n)
			if ok {
				if _, err := descriptor.CompileRegex(text); err != nil {
					r.errorf(n, "`value_regex`: %v", err)
					ok = false
				}
			}
			d.matcher(descriptor.MatchRegex, n, text, ok)
		}},
		{"value_cidr", func(r *reader, d *node, n *yaml.Node) {
			text, ok := r.text("value_cidr", n)
			if ok {
				network, err := descriptor.ParseCIDR(text)
				if err != nil {
					r.errorf(n, "`value_cidr`: %v", err)
				}
				text, ok = network.String(), err == nil
			}
			d.matcher(descriptor.MatchCIDR, n, text, ok)
		}},
		{"rate_limit", func(r *reader, d *node, n *yaml.Node) { d.limited(n, r.rateLimit(n)) }},
		{"rate_limits", func(r *reader, d *node, n *yaml.Node) { d.limited(n, r.rateLimits(n)) }},
		{"descriptors", func(r *reader, d *node, n *yaml.Node) { d.spec.Children = r.descriptors(n) }},
		{"shadow_mode", func(r *reader, d *node, n *yaml.Node) { d.shadow = r.flag("shadow_mode", n) }},
		{"quota_mode", func(r *reader, d *node, n *yaml.Node) { d.quota = r.flag("quota_mode", n) }},
		{"detailed_metric", func(r *reader, d *node, n *yaml.Node) { d.detailed = r.flag("detailed_metric", n) }},
		{"value_to_metric", func(r *reader, d *node, n *yaml.Node) { d.spec.ValueToMetric = r.flag("value_to_metric", n) }},
		{"share_threshold", func(r *reader, d *node, n *yaml.Node) {
			d.spec.ShareThreshold = r.flag("share_threshold", n)
			d.shareAt = n
		}},
		{"on_error", func(r *reader, d *node, n *yaml.Node) { d.onError, d.onErrorAt = r.onError(n), n }},
		{"metadata", func(r *reader, d *node, n *yaml.Node) { d.metadata = r.metadata(n) }},
	}}

	places = []Place{
		{descriptorShape.what, descriptorShape.names()},
		{rateLimitShape.what, rateLimitShape.names()},
		{documentShape.what, documentShape.names()},
	}
}

// node is a descriptor while its map is being read.
type node struct {
	spec     descriptor.NodeSpec
	keyBad   bool       // told already, as valueBad
	valueBad bool       // a value, or what stands for it
	value    *yaml.Node // the first of value, values, value_regex and value_cidr; nil if there is none
	second   *yaml.Node // the second of them
	limit    *yaml.Node // the first of rate_limit and rate_limits; nil if there is none
	another  *yaml.Node // the second of them
	rule     *descriptor.Rule

	shadow    bool
	quota     bool
	detailed  bool
	onError   descriptor.OnError
	metadata  map[string]any
	shareAt   *yaml.Node
	onErrorAt *yaml.Node
}

// matcher notes how values are matched.
func (d *node) matcher(kind descriptor.MatchKind, n *yaml.Node, text string, ok bool) {
	d.valueBad = d.valueBad || !ok
	if d.value != nil {
		d.second = cmp.Or(d.second, n)
		return
	}
	d.value, d.spec.Kind, d.spec.Value = n, kind, text
}

// limited notes the rule that a rate_limit or rate_limits makes, nil if it makes none.
func (d *node) limited(n *yaml.Node, rule *descriptor.Rule) {
	if d.limit != nil {
		d.another = n
		return
	}
	d.limit, d.rule = n, rule
}

// document reads one YAML document: one domain.
func (r *reader) document(n *yaml.Node) descriptor.DomainSpec {
	var d descriptor.DomainSpec
	read, unknown := readMap(r, &documentShape, &d, n)
	if d.Position != (descriptor.Position{}) {
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
		r.errorf(n, "`descriptors` must be a list, this is %s: begin each descriptor with `- key:`", KindOf(t))
		return nil
	}
	if r.level >= maxLevels {
		r.errorf(n, "descriptors within descriptors: more than %d levels", maxLevels)
		return nil
	}
	r.level++
	specs := r.descriptorList(t.Content)
	r.level--
	return r.twice(specs)
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
	ok := d.spec.Key != "" && !d.valueBad
	if d.spec.Key == "" && !d.keyBad && !unknown {
		r.errorf(n, "a descriptor without a `key`: write `key: NAME`")
	}
	if d.second != nil {
		r.errorf(d.second, "a descriptor has one of `value`, `values`, `value_regex` and `value_cidr`: leave out all but one, or write a descriptor for each")
		ok = false
	}
	if descriptor.HasWildcard(d.spec.Key) && d.spec.Kind != 0 && !d.valueBad {
		r.errorf(d.value, "a `key` with a * in it is matched together with its `value`: write a `value`, or leave it out")
		ok = false
	}
	if kind := d.spec.Level().Kind; d.spec.ShareThreshold && !d.valueBad && (kind == descriptor.MatchExact || kind == descriptor.MatchAny) {
		r.errorf(d.shareAt, "`share_threshold` needs a `value` or a `key` with a * in it, `values`, `value_regex` or `value_cidr`: the values that match share one counter")
		ok = false
	}
	if d.another != nil {
		r.errorf(d.another, "`rate_limit` and `rate_limits`: put all limits into `rate_limits`")
	}
	switch {
	case d.onErrorAt == nil:
	case d.limit == nil:
		r.errorf(d.onErrorAt, "`on_error` belongs to a `rate_limit`, and this descriptor has none")
	case d.rule != nil && d.rule.Unlimited:
		r.errorf(d.onErrorAt, "`on_error` and `unlimited: true`: nothing is counted, so nothing can fail; leave it out")
	}
	if d.rule != nil {
		d.rule.Shadow = d.shadow
		d.rule.Quota = d.quota
		d.rule.DetailedMetric = d.detailed
		d.rule.OnError = d.onError
		d.rule.Metadata = d.metadata
		d.rule.Position = d.spec.Position
		d.spec.Rule = d.rule
		r.rules++
	}
	return d.spec, ok
}

// twice refuses siblings that match the same values in the same way. If one of them has nothing but limits and the other
// nothing but descriptors, they are one, where the reader may take it so: Envoy Gateway sends such siblings.
func (r *reader) twice(specs []descriptor.NodeSpec) []descriptor.NodeSpec {
	if len(specs) < 2 {
		return specs
	}
	seen := make(map[descriptor.Level]int, len(specs))
	joined := make(map[int]bool)
	for i := range specs {
		identities(&specs[i], func(level descriptor.Level) {
			first, twice := seen[level]
			switch {
			case !twice:
				seen[level] = i
			case (r.lenient || r.steps != nil) && join(&specs[first], &specs[i]):
				joined[i] = true
				if r.steps == nil {
					r.warnAt(specs[i].Position, "%s twice: it is taken as one with the first, %s, because one of them has a limit and the other descriptors", describe(level), there(specs[first].Position))
				}
			default:
				r.errorAt(specs[i].Position, "%s twice: the first is %s", describe(level), there(specs[first].Position))
			}
		})
	}
	if len(joined) == 0 {
		return specs
	}
	kept := make([]descriptor.NodeSpec, 0, len(specs)-len(joined))
	for i := range specs {
		if !joined[i] {
			kept = append(kept, specs[i])
		}
	}
	return kept
}

// join makes one descriptor of two that differ only in what they say: one its limits, the other what is below it.
func join(first, second *descriptor.NodeSpec) bool {
	if first.Kind == descriptor.MatchValues || first.ShareThreshold != second.ShareThreshold || first.ValueToMetric != second.ValueToMetric {
		return false
	}
	switch {
	case second.Rule == nil && first.Rule != nil && len(first.Children) == 0:
		first.Children = second.Children
	case first.Rule == nil && second.Rule != nil && len(second.Children) == 0:
		first.Rule = second.Rule
	default:
		return false
	}
	return true
}

// identities yields what no sibling may have as well: the level, of a list each of its values.
func identities(spec *descriptor.NodeSpec, yield func(descriptor.Level)) {
	if spec.Kind != descriptor.MatchValues {
		level := spec.Level()
		if descriptor.HasWildcard(level.Key) { // it is matched by its text
			level.Key, level.Value = level.Text(), ""
		}
		yield(level)
		return
	}
	for _, v := range spec.Values {
		yield(descriptor.Level{Key: spec.Key, Value: v, Kind: descriptor.MatchValues})
	}
}

func describe(l descriptor.Level) string {
	text := "a descriptor with key " + Quote(l.Key)
	switch l.Kind {
	case descriptor.MatchAny:
		return text + " and no value"
	case descriptor.MatchValues:
		return text + " and " + Quote(l.Value) + " among its `values`"
	case descriptor.MatchRegex:
		return text + " and `value_regex` " + Quote(l.Value)
	case descriptor.MatchCIDR:
		return text + " and `value_cidr` " + Quote(l.Value)
	case descriptor.MatchWildcard:
		if descriptor.HasWildcard(l.Key) {
			return "a descriptor with key and value " + Quote(l.Key)
		}
	}
	return text + " and value " + Quote(l.Value)
}

// values reads a list of exact values. It leaves out what is wrong.
func (r *reader) values(n *yaml.Node) (values []string, ok bool) {
	t, ok := r.enter(n)
	if !ok {
		return nil, false
	}
	defer r.leave(n)
	if t.Kind != yaml.SequenceNode {
		r.errorf(n, "`values` must be a list, this is %s: write `[one, other]`", KindOf(t))
		return nil, false
	}
	if len(t.Content) == 0 {
		r.errorf(n, "`values` is empty: nothing would match it")
		return nil, false
	}
	seen := make(map[string]struct{}, len(t.Content))
	for _, e := range t.Content {
		value, is := r.text("values", e)
		_, twice := seen[value]
		switch {
		case !is:
		case value == "":
			r.errorf(e, "an empty text in `values`: no value is matched by it")
		case descriptor.HasWildcard(value):
			r.errorf(e, "`values` are exact, a * in them is no wildcard: write %s as a `value`, in a descriptor of its own", Quote(value))
		case twice:
			r.errorf(e, "%s twice in `values`", Quote(value))
		default:
			seen[value] = struct{}{}
			values = append(values, value)
			continue
		}
		ok = false
	}
	return values, ok
}

func (r *reader) onError(n *yaml.Node) descriptor.OnError {
	name, _ := r.choice("on_error", n, descriptor.OnErrorNames[1:])
	return descriptor.ParseOnError(name)
}

// headers reads a list of header families. An empty list is the empty set.
func (r *reader) headers(n *yaml.Node) *descriptor.HeaderFamilies {
	t, ok := r.enter(n)
	if !ok {
		return nil
	}
	defer r.leave(n)
	if t.Kind != yaml.SequenceNode {
		r.errorf(n, "`headers` must be a list, this is %s: write some of %s in brackets, or `[]` for none", KindOf(t), List(descriptor.HeaderFamilyNames, "and"))
		return nil
	}
	families := new(descriptor.HeaderFamilies)
	for _, e := range t.Content {
		name, _ := r.choice("headers", e, descriptor.HeaderFamilyNames)
		family := descriptor.ParseHeaderFamily(name)
		if family != 0 && *families&family != 0 {
			r.errorf(e, "%s twice in `headers`", Quote(name))
		}
		*families |= family
	}
	return families
}
