package config

import (
	"cmp"
	"iter"
	"slices"

	"github.com/ratelimitd/ratelimitd/internal/config/yamlform"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// The rule language. Each row is one key and reads the key's value. The schema, the tables in
// docs/reference/rule-keys.md and `check` use the same rows. The rows of a rate limit are in limits.go. The forms are
// set by init because descriptors contain descriptors.
var (
	fileForm        *yamlform.Form[domainReading]
	descriptorForm  *yamlform.Form[descriptorReading]
	descriptorRows  []descriptorRow
	overridableForm *yamlform.Form[uint64]

	// places are the maps that a misplaced key may belong to, the most likely first.
	places []*yamlform.Map
)

// descriptorRow is one key of a descriptor.
type descriptorRow struct {
	yamlform.Key
	matches    descriptor.MatchKind // how the key matches values; 0 if it does not match values
	needsLimit bool                 // the key has no meaning without a rate limit
	read       func(d *descriptorReading, v yamlform.Value)
}

func init() {
	fileForm = yamlform.NewForm("file", "the top of a rule file", fileKeys()...)
	descriptorRows = slices.Concat(matchKeys(), levelKeys(), measureKeys(), counterKeys(), useKeys())
	fields := make([]yamlform.Field[descriptorReading], len(descriptorRows))
	for i, row := range descriptorRows {
		fields[i] = yamlform.Field[descriptorReading]{Key: row.Key, Read: row.read}
	}
	descriptorForm = yamlform.NewForm("descriptor", "a descriptor", fields...)
	overridableForm = yamlform.NewForm("overridable", "`overridable`", largestKey())
	places = []*yamlform.Map{&descriptorForm.Map, &limitForm.Map, &fileForm.Map}
}

var (
	textType    = yamlform.Type{Kind: yamlform.Text}
	flagType    = yamlform.Type{Kind: yamlform.Flag}
	onErrorType = yamlform.OneOf(descriptor.OnErrorNames...)
)

// fileKeys are the keys of a domain.
func fileKeys() []yamlform.Field[domainReading] {
	return []yamlform.Field[domainReading]{
		{Key: yamlform.Key{Name: "domain", Type: textType, Required: true,
			Doc: "the name that clients send"},
			Read: func(d *domainReading, v yamlform.Value) {
				if name, ok := v.Text(); ok {
					d.spec.Name = name
					if name == "" {
						v.Errorf("`domain` is empty: give it the name that clients send")
					}
				}
				d.spec.Position = position(v)
			}},
		{Key: yamlform.Key{Name: "descriptors", Type: yamlform.MapsOf("descriptor"),
			Doc: "the first level of rules"},
			Read: func(d *domainReading, v yamlform.Value) { d.spec.Children = d.r.descriptors(v) }},
		{Key: yamlform.Key{Name: "admission", Type: yamlform.OneOf(descriptor.AdmissionNames...), Extension: true,
			Default: "`--admission`",
			Doc:     "`independent`: each descriptor counts on its own. `all_or_nothing`: a denied request counts nowhere"},
			Read: func(d *domainReading, v yamlform.Value) {
				i, _ := v.Choice()
				d.spec.Admission = descriptor.Admission(i)
			}},
		{Key: yamlform.Key{Name: "on_error", Type: onErrorType, Extension: true,
			Default: "`--on-error`", Doc: "the answer while counters cannot be read"},
			Read: func(d *domainReading, v yamlform.Value) { d.spec.OnError = readOnError(v) }},
		{Key: yamlform.Key{Name: "headers", Type: headersType, Extension: true,
			Default: "`--response-headers`", Doc: "the headers that clients see. `[]`: none"},
			Read: func(d *domainReading, v yamlform.Value) { d.spec.Headers = readHeaders(v) }},
		{Key: yamlform.Key{Name: "request_override", Type: yamlform.OneOf(descriptor.RequestOverrideNames...),
			Extension: true,
			Default:   "`honour`",
			Doc: "a request's limit replaces the rule's (`honour`), applies as well (`min`), or has no effect " +
				"(`ignore`)"},
			Read: func(d *domainReading, v yamlform.Value) {
				i, _ := v.Choice()
				d.spec.RequestOverride = descriptor.RequestOverride(i)
			}},
		{Key: yamlform.Key{Name: "refunds", Type: yamlform.OneOf(descriptor.RefundsNames...), Extension: true,
			Default: "`allow`", Doc: "whether negative hits go back to the counter. With `deny`, they only read it"},
			Read: func(d *domainReading, v yamlform.Value) {
				i, _ := v.Choice()
				d.spec.Refunds = descriptor.Refunds(i)
			}},
		{Key: yamlform.Key{Name: "envoy_delay", Type: flagType, Extension: true,
			Doc: "Envoy's fault filter delays the requests of a `leaky_bucket`. Otherwise a header tells clients"},
			Read: func(d *domainReading, v yamlform.Value) { d.spec.EnvoyDelay = v.Flag() }},
		{Key: yamlform.Key{Name: "quota_buckets", Type: yamlform.MapOf("quota_buckets"), Extension: true,
			Doc: "how quota buckets (RLQS) find their rules"},
			Read: func(d *domainReading, v yamlform.Value) { d.spec.QuotaBuckets = readQuotaBuckets(v) }},
		{Key: yamlform.Key{Name: "regions", Type: yamlform.MapOf("regions"), Extension: true,
			Default: "`{mode: regional}`", Doc: "for limits without `regions`"},
			Read: func(d *domainReading, v yamlform.Value) { d.spec.Regions = readRegions(v) }},
	}
}

// matchKeys are how a descriptor matches an entry.
func matchKeys() []descriptorRow {
	return []descriptorRow{
		{Key: yamlform.Key{Name: "key", Type: textType, Required: true,
			Doc: "the entry's key. It may contain a `*`"},
			read: func(d *descriptorReading, v yamlform.Value) {
				name, ok := v.Text()
				d.spec.Key, d.keyBad = name, !ok
			}},
		{Key: yamlform.Key{Name: "value", Type: textType,
			Default: "any value", Doc: "the entry's value. A `*` matches any text"},
			matches: descriptor.MatchExact,
			read: func(d *descriptorReading, v yamlform.Value) {
				value, ok := v.Text()
				if value != "" || !ok {
					d.matcher(0, v, value, ok)
				}
			}},
		{Key: yamlform.Key{Name: "values", Type: yamlform.Type{Kind: yamlform.TextList}, Extension: true,
			Doc: "the value is one of these"},
			matches: descriptor.MatchValues,
			read: func(d *descriptorReading, v yamlform.Value) {
				values, ok := readValues(v)
				d.matcher(descriptor.MatchValues, v, "", ok)
				d.spec.Values = values
			}},
		{Key: yamlform.Key{Name: "value_regex", Type: textType, Extension: true,
			Doc: "an expression (RE2) that the whole value matches"},
			matches: descriptor.MatchRegex,
			read: func(d *descriptorReading, v yamlform.Value) {
				text, ok := v.Text()
				if ok {
					ok = d.r.expression(v, "`value_regex`", text)
				}
				d.matcher(descriptor.MatchRegex, v, text, ok)
			}},
		{Key: yamlform.Key{Name: "value_cidr", Type: yamlform.Type{Kind: yamlform.Text, Pattern: "[0-9a-fA-F.:]+/[0-9]+",
			Form: "a network, such as 10.0.0.0/8"}, Extension: true,
			Doc: "the value is an address in this network"},
			matches: descriptor.MatchCIDR,
			read: func(d *descriptorReading, v yamlform.Value) {
				text, ok := v.Text()
				if ok {
					network, err := descriptor.ParseCIDR(text)
					if err != nil {
						v.Errorf("`value_cidr`: %v", err)
					}
					text, ok = network.String(), err == nil
				}
				d.matcher(descriptor.MatchCIDR, v, text, ok)
			}},
	}
}

// levelKeys are the limits of a descriptor, and the next level.
func levelKeys() []descriptorRow {
	return []descriptorRow{
		{Key: yamlform.Key{Name: "rate_limit", Type: yamlform.MapOf("limit"),
			Doc: "the limit of requests whose entries end here"},
			read: func(d *descriptorReading, v yamlform.Value) { d.limited(v, d.r.rateLimit(v)) }},
		{Key: yamlform.Key{Name: "rate_limits", Type: yamlform.MapsOf("limit"), Extension: true,
			Doc: "several limits instead of one"},
			read: func(d *descriptorReading, v yamlform.Value) { d.limited(v, d.r.rateLimits(v)) }},
		{Key: yamlform.Key{Name: "descriptors", Type: yamlform.MapsOf("descriptor"),
			Doc: "the next level"},
			read: func(d *descriptorReading, v yamlform.Value) { d.spec.Children = d.r.descriptors(v) }},
	}
}

// measureKeys control whether limits are enforced, and their names in metrics.
func measureKeys() []descriptorRow {
	return []descriptorRow{
		{Key: yamlform.Key{Name: "shadow_mode", Type: flagType,
			Doc: "the limits are measured but not enforced"},
			needsLimit: true,
			read:       func(d *descriptorReading, v yamlform.Value) { d.says.Shadow = v.Flag() }},
		{Key: yamlform.Key{Name: "quota_mode", Type: flagType,
			Doc: "such descriptors deny a request only if all of them are over their limits"},
			needsLimit: true,
			read:       func(d *descriptorReading, v yamlform.Value) { d.says.Quota = v.Flag() }},
		{Key: yamlform.Key{Name: "detailed_metric", Type: flagType,
			Doc: "metrics name the request's keys and values instead of the rule's"},
			needsLimit: true,
			read:       func(d *descriptorReading, v yamlform.Value) { d.says.DetailedMetric = v.Flag() }},
		{Key: yamlform.Key{Name: "value_to_metric", Type: flagType,
			Doc: "metrics name the request's value on this level"},
			read: func(d *descriptorReading, v yamlform.Value) { d.spec.ValueToMetric = v.Flag() }},
	}
}

// counterKeys select which requests share a rule and a counter.
func counterKeys() []descriptorRow {
	return []descriptorRow{
		{Key: yamlform.Key{Name: "share_threshold", Type: flagType,
			Doc: "all values that match share one counter. Needs a pattern"},
			read: func(d *descriptorReading, v yamlform.Value) { d.spec.ShareThreshold, d.share = v.Flag(), v }},
		{Key: yamlform.Key{Name: "condition", Type: flagType, Extension: true,
			Doc: "the level selects the rule but is not part of the counter"},
			read: func(d *descriptorReading, v yamlform.Value) { d.spec.Condition, d.condition = v.Flag(), v }},
		{Key: yamlform.Key{Name: "fold_case", Type: flagType, Extension: true,
			Doc: "A to Z match a to z, and share their counter"},
			read: func(d *descriptorReading, v yamlform.Value) { d.spec.FoldCase, d.fold = v.Flag(), v }},
		{Key: yamlform.Key{Name: "group", Type: yamlform.Type{Kind: yamlform.Text, Pattern: groupPattern,
			Form: "networks, such as ipv6/64 or ipv4/24,ipv6/56, or a capture group of `value_regex`, such as $1"}, Extension: true,
			Doc: "values in one network, or with the same captured text, share one counter"},
			read: func(d *descriptorReading, v yamlform.Value) { d.readGroup(v) }},
		{Key: yamlform.Key{Name: "inherit", Type: flagType, Extension: true,
			Doc: "takes a missing limit and missing levels from the descriptor with the same key and no value"},
			read: func(d *descriptorReading, v yamlform.Value) {
				if v.Flag() {
					d.inherit = v
				}
			}},
	}
}

// useKeys control how clients and operators may use a limit.
func useKeys() []descriptorRow {
	return []descriptorRow{
		{Key: yamlform.Key{Name: "on_error", Type: onErrorType, Extension: true,
			Default: "the domain's", Doc: "the answer while its counters cannot be read"},
			read: func(d *descriptorReading, v yamlform.Value) { d.says.OnError, d.onErrorAt = readOnError(v), v }},
		{Key: yamlform.Key{Name: "overridable", Type: yamlform.FlagOr("overridable"), Extension: true,
			Doc: "operators may override the numbers for one customer"},
			needsLimit: true,
			read:       func(d *descriptorReading, v yamlform.Value) { d.readOverridable(v) }},
		{Key: yamlform.Key{Name: "usage", Type: flagType, Extension: true,
			Doc: "`ratelimitd usage` may list the counters"},
			needsLimit: true,
			read:       func(d *descriptorReading, v yamlform.Value) { d.says.Usage, d.usageAt = v.Flag(), v }},
		{Key: yamlform.Key{Name: "reservations", Type: yamlform.FlagOr("reservations"), Extension: true,
			Doc: "clients may reserve hits and commit those they used"},
			needsLimit: true,
			read:       func(d *descriptorReading, v yamlform.Value) { d.readReservations(v) }},
		{Key: yamlform.Key{Name: "cost", Type: yamlform.Type{Kind: yamlform.Weights, Most: maxWeight}, Extension: true,
			Default: "1",
			Doc: "how much a hit counts. A table goes by an entry's value: `{model: {large: 10, \"*\": 1}}`. Weights are " +
				"for the named amounts of `reservations`: `{input: 1, output: 4}`"},
			needsLimit: true,
			read:       func(d *descriptorReading, v yamlform.Value) { d.readCost(v) }},
		{Key: yamlform.Key{Name: "metadata", Type: yamlform.Type{Kind: yamlform.AnyMap},
			Doc: "any keys and values, for Envoy's dynamic metadata when a request passes"},
			needsLimit: true,
			read:       func(d *descriptorReading, v yamlform.Value) { d.says.Metadata = v.AnyMap() }},
	}
}

// largestKey is the only key of `overridable`.
func largestKey() yamlform.Field[uint64] {
	return yamlform.Field[uint64]{
		Key: yamlform.Key{Name: "max", Type: yamlform.Uint53(1), Required: true, Extension: true,
			Doc: "the largest `requests_per_unit` and `burst` that an override may set"},
		Read: func(most *uint64, v yamlform.Value) {
			n, _ := v.Number()
			*most = n
		},
	}
}

// domainReading is a domain while its map is being read.
type domainReading struct {
	r    *ruleReader
	spec descriptor.DomainSpec
}

// descriptorReading is a descriptor while its map is being read.
type descriptorReading struct {
	r        *ruleReader
	spec     descriptor.NodeSpec
	keyBad   bool // an error is recorded; valueBad is the same for the value
	valueBad bool
	value    yamlform.Value // the first of value, values, value_regex and value_cidr
	second   yamlform.Value // the second of these
	limit    yamlform.Value // the first of rate_limit and rate_limits
	another  yamlform.Value // the second of them
	rule     *descriptor.Rule

	says          descriptor.RuleSettings
	overridableAt yamlform.Value
	usageAt       yamlform.Value
	reserve       reservationReading
	cost          costReading
	share         yamlform.Value // value of share_threshold
	condition     yamlform.Value
	fold          yamlform.Value
	group         yamlform.Value
	inherit       yamlform.Value // not given unless it is true
	onErrorAt     yamlform.Value
}

// ruleReader reads one rule file, one piece of it, or one resource.
type ruleReader struct {
	*yamlform.Reader
	resource bool // the rules come from a server, not from a file
	rules    int
	level    int // depth of the current descriptors
	limit    limitReading

	inheriting map[descriptor.Position]yamlform.Value // the descriptors with `inherit: true`
	unreserved map[descriptor.Position]bool           // the descriptors with `reservations: false`
	inherited  int                                    // descriptors, limits and costs that were copied for them
	compiled   int                                    // instructions of all expressions
	byEntry    bool                                   // a rule depends on the values of its entries
	regions    bool                                   // a limit has `regions`
}

// A lenient reader accepts every file that envoyproxy/ratelimit accepts, with the same meaning, and warns about
// probable mistakes. Otherwise it would reject files whose rules envoyproxy/ratelimit enforces. A strict reader rejects
// probable mistakes.

// referenceKeys are the keys of envoyproxy/ratelimit. It ignores them where they have no meaning.
var referenceKeys = []string{
	"domain", "key", "value", "descriptors", "rate_limit", "unit", "requests_per_unit", "unlimited", "shadow_mode",
	"quota_mode",
	"name", "replaces", "detailed_metric", "value_to_metric", "share_threshold", "metadata",
}

// newRuleReader returns a reader of a file.
func newRuleReader(file string, lenient bool) *ruleReader {
	options := yamlform.Options{Places: places, Meant: meant, Lenient: lenient, Ignored: referenceKeys}
	return &ruleReader{Reader: yamlform.NewReader(file, options)}
}

// maxInstructions returns how many instructions all expressions of a file may compile to; size is the length of the
// file in bytes. A short expression can compile to many instructions, because of its repetitions: without this bound a
// file could cost a thousand times its size.
func maxInstructions(size int) int { return 50_000 + 3*size }

// expression adds the cost of an expression to the total, and reports whether it can be compiled. If not, it records an
// error at v, with a description of the place of the expression.
func (r *ruleReader) expression(v yamlform.Value, what, text string) bool {
	if r.compiled > maxInstructions(r.Size()) { // the error is already recorded
		return false
	}
	n, err := descriptor.RegexInstructions(text)
	if err != nil {
		v.Errorf("%s: %v", what, err)
		return false
	}
	return r.spend(v, what, n)
}

// entriesForInstruction is how many entries of a table count like one instruction.
const entriesForInstruction = 8

// spend counts instructions. The first one above the bound is an error.
func (r *ruleReader) spend(v yamlform.Value, what string, n int) bool {
	most := maxInstructions(r.Size())
	within := r.compiled <= most
	if r.compiled += n; within && r.compiled > most {
		v.Errorf("%s: the expressions of this file have more than %d instructions: write smaller repetitions, such as `+` "+
			"instead of `{1,100}`, or fewer expressions",
			what, most)
	}
	return r.compiled <= most
}

// position returns the position of a value.
func position(v yamlform.Value) descriptor.Position { return descriptor.Position(v.Position()) }

// readOverridable reads true, false, or the bounds.
func (d *descriptorReading) readOverridable(v yamlform.Value) {
	d.overridableAt = v
	if v.IsMap() {
		yamlform.Read(v, overridableForm, &d.says.OverrideMax)
	} else if v.Flag() {
		d.says.OverrideMax = descriptor.OverrideUnbounded
	}
}

// matcher stores how values are matched.
func (d *descriptorReading) matcher(kind descriptor.MatchKind, v yamlform.Value, text string, ok bool) {
	d.valueBad = d.valueBad || !ok
	if d.value.Given() {
		d.second = cmp.Or(d.second, v)
		return
	}
	d.value, d.spec.Kind, d.spec.Value = v, kind, text
}

// limited stores the rule of a rate_limit or rate_limits; rule is nil if it has errors.
func (d *descriptorReading) limited(v yamlform.Value, rule *descriptor.Rule) {
	if d.limit.Given() {
		d.another = v
		return
	}
	d.limit, d.rule = v, rule
}

// document reads one YAML document: one domain.
func (r *ruleReader) document(v yamlform.Value) descriptor.DomainSpec {
	d := domainReading{r: r}
	read, unknown := yamlform.Read(v, fileForm, &d)
	r.finish(&d.spec)
	if d.spec.Position != (descriptor.Position{}) {
		return d.spec
	}
	d.spec.Position = position(v)
	if read && !unknown {
		v.Errorf("no `domain`: write `domain: NAME`, the name that clients send")
	}
	return d.spec
}

// descriptors reads a list of sibling descriptors.
func (r *ruleReader) descriptors(v yamlform.Value) []descriptor.NodeSpec {
	if !v.IsList() {
		v.Errorf("`descriptors` must be a list, not %s: start each descriptor with `- key:`", v.What())
		return nil
	}
	if r.level >= yamlform.MaxLevels {
		v.Errorf("descriptors within descriptors: more than %d levels", yamlform.MaxLevels)
		return nil
	}
	r.level++
	specs := r.descriptorList(v.Items(), v.Len())
	r.level--
	return r.unique(specs)
}

func (r *ruleReader) descriptorList(items iter.Seq[yamlform.Value], many int) []descriptor.NodeSpec {
	specs := make([]descriptor.NodeSpec, 0, many)
	for item := range items {
		if spec, ok := r.descriptor(item); ok {
			specs = append(specs, spec)
		}
	}
	return specs
}

// descriptor reads one descriptor. It returns false if the descriptor has too little to continue.
func (r *ruleReader) descriptor(v yamlform.Value) (descriptor.NodeSpec, bool) {
	d := descriptorReading{r: r, spec: descriptor.NodeSpec{Position: position(v)}}
	read, unknown := yamlform.Read(v, descriptorForm, &d)
	if !read {
		return d.spec, false
	}
	ok := d.spec.Key != "" && !d.valueBad
	if d.spec.Key == "" && !d.keyBad && !unknown {
		v.Errorf("a descriptor without a `key`: write `key: NAME`")
	}
	if d.second.Given() {
		d.second.Errorf("a descriptor has one of `value`, `values`, `value_regex` and `value_cidr`: leave out all but one, " +
			"or write a descriptor for each")
		ok = false
	}
	if descriptor.HasWildcard(d.spec.Key) && d.spec.Kind != 0 && !d.valueBad {
		d.value.Errorf("a `key` with a * in it is matched together with its `value`: write a `value`, or leave it out")
		ok = false
	}
	if kind := d.spec.Level().Kind; d.spec.ShareThreshold && !d.valueBad &&
		(kind == descriptor.MatchExact || kind == descriptor.MatchAny) {
		d.share.Errorf("`share_threshold` needs a `value` or a `key` with a * in it, `values`, `value_regex` or " +
			"`value_cidr`: the values that match share one counter")
		ok = false
	}
	if d.spec.ShareThreshold && d.spec.Condition {
		d.condition.Errorf("`condition` and `share_threshold` cannot be combined: with `condition` all values share the " +
			"counter already; leave out `share_threshold`")
	}
	if !d.checkGrouping() {
		ok = false
	}
	if d.another.Given() {
		d.another.Errorf("`rate_limit` and `rate_limits`: put all limits into `rate_limits`")
	}
	switch {
	case !d.onErrorAt.Given():
	case !d.limit.Given():
		d.onErrorAt.Errorf("`on_error` belongs to a `rate_limit`, and this descriptor has none")
	case d.rule != nil && d.rule.Unlimited:
		d.onErrorAt.Errorf("`on_error` and `unlimited: true` cannot be combined: " +
			"nothing is counted, so nothing can fail; leave it out")
	}
	if d.says.Overridable() {
		switch {
		case d.rule != nil && d.rule.Unlimited:
			d.overridableAt.Errorf("`overridable` and `unlimited: true` cannot be combined: " +
				"there are no numbers to override; leave it out")
		case d.rule != nil && d.rule.Scales() != nil:
			d.overridableAt.Errorf("`overridable` and `scale` cannot be combined: an override names a customer by its " +
				"entries, and the number of the scale is one of them; leave out one of them")
		case d.spec.ShareThreshold:
			d.overridableAt.Errorf("%s", sharedAndOverridable)
		}
	}
	if d.says.Usage {
		switch {
		case d.rule != nil && d.rule.Unlimited:
			d.usageAt.Errorf("`usage` and `unlimited: true` cannot be combined: nothing is counted; leave it out")
		case d.spec.ShareThreshold:
			d.usageAt.Errorf("%s", sharedAndUsage)
		}
	}
	if d.spec.ShareThreshold {
		r.rejectPerCustomer(d.spec.Children, sharedAndOverridable, sharedAndUsage)
	}
	d.checkReservations()
	d.checkCost()
	if d.rule != nil {
		d.rule.RuleSettings = d.says
		d.reserve.applyTo(d.rule, d.cost.amounts)
		d.rule.Position = d.spec.Position
		d.spec.Rule = d.rule
		r.rules++
	}
	if d.inherit.Given() && ok {
		r.inherit(&d)
	}
	return d.spec, ok
}

const (
	sharedAndOverridable = "`overridable` and `share_threshold` cannot be combined: customers share one counter, so " +
		"none of them can have numbers of its own"
	sharedAndUsage = "`usage` and `share_threshold` cannot be combined: customers share one counter, so it shows the " +
		"usage of none of them"
)

// rejectPerCustomer rejects, below a level whose values share counters, rules that are about the counters of one
// customer.
func (r *ruleReader) rejectPerCustomer(specs []descriptor.NodeSpec, overridable, usage string) {
	for i := range specs {
		if rule := specs[i].Rule; rule != nil {
			if rule.Overridable() {
				r.ErrorAt(yamlform.Position(rule.Position), "%s", overridable)
			}
			if rule.Usage {
				r.ErrorAt(yamlform.Position(rule.Position), "%s", usage)
			}
		}
		r.rejectPerCustomer(specs[i].Children, overridable, usage)
	}
}

// unique rejects siblings that match the same values in the same way. A lenient reader, and a reader of resources,
// joins two siblings if one has only a limit and the other only descriptors, because Envoy Gateway sends such siblings.
func (r *ruleReader) unique(specs []descriptor.NodeSpec) []descriptor.NodeSpec {
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
			case (r.Lenient() || r.resource) && join(&specs[first], &specs[i]):
				joined[i] = true
				if v, inherits := r.inheriting[specs[i].Position]; inherits {
					r.inheriting[specs[first].Position] = v
				}
				if r.unreserved[specs[i].Position] {
					r.unreserved[specs[first].Position] = true
				}
				if !r.resource {
					r.WarnAt(yamlform.Position(specs[i].Position), yamlform.Rejects,
						"%s is already defined %s: both are taken as one, because one has a limit and the other one descriptors",
						describe(level), yamlform.Position(specs[first].Position).Near())
				}
			default:
				r.ErrorAt(yamlform.Position(specs[i].Position), "%s is already defined %s: %s", describe(level),
					yamlform.Position(specs[first].Position).Near(), onceInstead(&specs[i]))
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

// onceInstead suggests how to avoid a second descriptor that matches the same.
func onceInstead(second *descriptor.NodeSpec) string {
	switch {
	case second.Kind == descriptor.MatchValues:
		return "remove the value from one of the lists"
	case second.Rule == nil && len(second.Children) > 0:
		return "move these `descriptors` there"
	case second.Rule != nil && len(second.Children) == 0:
		return "for several limits, use `rate_limits` there"
	default:
		return "write one descriptor"
	}
}

// join joins two descriptors if one has only a limit and the other has only descriptors below it.
func join(first, second *descriptor.NodeSpec) bool {
	if first.Kind == descriptor.MatchValues || first.ShareThreshold != second.ShareThreshold ||
		first.ValueToMetric != second.ValueToMetric ||
		first.Condition != second.Condition || first.FoldCase != second.FoldCase || first.Group != second.Group {
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

// identities yields the levels that must be unique among siblings: one level, or each value of a list.
func identities(spec *descriptor.NodeSpec, yield func(descriptor.Level)) {
	if spec.Kind != descriptor.MatchValues {
		level := spec.Level()
		if descriptor.HasWildcard(level.Key) { // key and value are matched together
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
	text := "duplicate descriptor: key " + yamlform.Quote(l.Key)
	switch l.Kind {
	case descriptor.MatchAny:
		return text + " without a value"
	case descriptor.MatchValues:
		return text + " and " + yamlform.Quote(l.Value) + " among its `values`"
	case descriptor.MatchRegex:
		return text + " and `value_regex` " + yamlform.Quote(l.Value)
	case descriptor.MatchCIDR:
		return text + " and `value_cidr` " + yamlform.Quote(l.Value)
	case descriptor.MatchWildcard:
		if descriptor.HasWildcard(l.Key) {
			return "duplicate descriptor: key and value " + yamlform.Quote(l.Key)
		}
	}
	return text + " and value " + yamlform.Quote(l.Value)
}

// readValues reads a list of exact values. It leaves out wrong values.
func readValues(v yamlform.Value) (values []string, ok bool) {
	if !v.IsList() {
		v.Errorf("`values` must be a list, not %s: write `[one, other]`", v.What())
		return nil, false
	}
	if v.Len() == 0 {
		v.Errorf("`values` is empty: nothing would match it")
		return nil, false
	}
	ok = true
	seen := make(map[string]struct{}, v.Len())
	for item := range v.Items() {
		value, is := item.Text()
		_, twice := seen[value]
		switch {
		case !is:
		case value == "":
			item.Errorf("an empty text in `values`: no value is matched by it")
		case descriptor.HasWildcard(value):
			item.Errorf("`values` are exact, so a * in them is not a wildcard: write %s as a `value`, in its own descriptor",
				yamlform.Quote(value))
		case twice:
			item.Errorf("%s twice in `values`", yamlform.Quote(value))
		default:
			seen[value] = struct{}{}
			values = append(values, value)
			continue
		}
		ok = false
	}
	return values, ok
}

func readOnError(v yamlform.Value) descriptor.OnError {
	i, _ := v.Choice()
	return descriptor.OnError(i)
}
