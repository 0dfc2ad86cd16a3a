package accesslog

import (
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/config/yamlform"
)

const maxMappingSize = 1 << 20

// The maps of a mapping while they are being read, before the fields are known.
type (
	mappingReading struct {
		format      yamlform.Value
		pattern     yamlform.Value
		time        yamlform.Value
		domain      yamlform.Value
		descriptors yamlform.Value
		hits        yamlform.Value
		customer    yamlform.Value
		when        yamlform.Value
	}
	timeReading struct {
		field        yamlform.Value
		layout, zone yamlform.Value
	}
	valueReading struct {
		field, header, literal       yamlform.Value
		part, regex, fallback        yamlform.Value
		key, skipIfAbsent            yamlform.Value // settings of an entry
		oneOf, matches, not, present yamlform.Value // settings of a condition
	}
	descriptorReading struct{ entries, when, hits yamlform.Value }
	hitsReading       struct{ field, fallback yamlform.Value }
)

// Types of values. A text may be a number with a decimal point: logs have many of them.
var (
	textType       = yamlform.Type{Kind: yamlform.Text, Floats: true}
	listType       = yamlform.Type{Kind: yamlform.TextOrList, Floats: true}
	flagType       = yamlform.Type{Kind: yamlform.Flag}
	hitsType       = yamlform.Type{Kind: yamlform.Anything, Form: "a field, or a map: `hits`"}
	conditionsType = yamlform.Type{Kind: yamlform.Anything, Form: "a condition, or a list of them"}
)

// The language of mappings. Each row is one key and reads the key's value. The tables in docs/reference/log-keys.md
// come from the same rows.
var (
	mappingForm = yamlform.NewForm("mapping", "a mapping",
		required(keep("format", yamlform.OneOf(formatNames...), "the format of the log",
			func(m *mappingReading) *yamlform.Value { return &m.format })),
		keep("pattern", textType, "for `envoy`, `text` and `nginx`: how lines are written",
			func(m *mappingReading) *yamlform.Value { return &m.pattern }),
		byDefault("the format's own time, except for `text` and `json`",
			keep("time", yamlform.Type{Kind: yamlform.Anything, Form: "a field, or a map: `time`"}, "when a request happened",
				func(m *mappingReading) *yamlform.Value { return &m.time })),
		required(keep("domain", yamlform.Type{Kind: yamlform.Anything, Form: "text, or a value"},
			"the domain of the rules", func(m *mappingReading) *yamlform.Value { return &m.domain })),
		required(keep("descriptors", yamlform.Type{Kind: yamlform.Anything, Form: "list of descriptors"},
			"the request's descriptors", func(m *mappingReading) *yamlform.Value { return &m.descriptors })),
		byDefault("1", keep("hits", hitsType, "the hits of a request",
			func(m *mappingReading) *yamlform.Value { return &m.hits })),
		byDefault("all entries from the log, except `reserve_id` and `commit_id`",
			keep("customer", yamlform.MapOf("value"), "the customer in the report",
				func(m *mappingReading) *yamlform.Value { return &m.customer })),
		keep("when", conditionsType, "replay only lines that meet all",
			func(m *mappingReading) *yamlform.Value { return &m.when }),
	)

	timeForm = yamlform.NewForm("time", "`time`",
		keep("field", textType, "the field with the time", func(t *timeReading) *yamlform.Value { return &t.field }),
		byDefault("`"+layoutNames[0]+"`",
			keep("layout", textType,
				"`rfc3339` (2026-03-01T12:00:00.5Z), `clf` (01/Mar/2026:12:00:00 +0000), `unix`, `unix_ms`, `unix_us`, "+
					"`unix_ns`, or 2006-01-02 15:04:05 as your log would write it",
				func(t *timeReading) *yamlform.Value { return &t.layout })),
		keep("zone", textType, "the time zone of times without one, such as `Asia/Seoul`",
			func(t *timeReading) *yamlform.Value { return &t.zone }),
	)

	descriptorForm = yamlform.NewForm("descriptor", "a descriptor",
		required(keep("entries", yamlform.MapsOf("entry"), "the entries",
			func(d *descriptorReading) *yamlform.Value { return &d.entries })),
		keep("when", conditionsType, "send the descriptor only on these conditions",
			func(d *descriptorReading) *yamlform.Value { return &d.when }),
		keep("hits", hitsType, "replaces the mapping's `hits`",
			func(d *descriptorReading) *yamlform.Value { return &d.hits }),
	)

	valueFields = []yamlform.Field[valueReading]{
		keep("value", textType, "always this text", func(v *valueReading) *yamlform.Value { return &v.literal }),
		fieldRow, headerRow, partRow,
		keep("regex", textType,
			"takes the match, or its first group (RE2). Without a match, the value is absent",
			func(v *valueReading) *yamlform.Value { return &v.regex }),
		keep("default", textType, "the text if the value is absent",
			func(v *valueReading) *yamlform.Value { return &v.fallback }),
	}
	fieldRow  = keep("field", textType, "a field of the line", func(v *valueReading) *yamlform.Value { return &v.field })
	headerRow = keep("header", textType, "a request header in the log (not in `json`)",
		func(v *valueReading) *yamlform.Value { return &v.header })
	partRow = byDefault("`"+partNames[partAll]+"`",
		keep("part", yamlform.OneOf(partNames...),
			"the `address` without its port, the `path` without the query, the `first` or `last` item of a list with commas",
			func(v *valueReading) *yamlform.Value { return &v.part }))

	valueForm = yamlform.NewForm("value", "a value", valueFields...)

	entryForm = yamlform.NewForm("entry", "an entry", slices.Concat(
		[]yamlform.Field[valueReading]{required(keep("key", textType, "the key of the entry",
			func(v *valueReading) *yamlform.Value { return &v.key }))},
		valueFields,
		[]yamlform.Field[valueReading]{keep("skip_if_absent", flagType,
			"if the value is absent, leave out only this entry",
			func(v *valueReading) *yamlform.Value { return &v.skipIfAbsent })},
	)...)

	conditionForm = yamlform.NewForm("condition", "a condition",
		fieldRow, headerRow, partRow,
		keep("is", listType, "it equals this text, or one of these",
			func(v *valueReading) *yamlform.Value { return &v.oneOf }),
		keep("matches", textType, "this expression (RE2) matches somewhere in it",
			func(v *valueReading) *yamlform.Value { return &v.matches }),
		keep("present", flagType, "it is present (`true`) or absent (`false`)",
			func(v *valueReading) *yamlform.Value { return &v.present }),
		keep("not", flagType, "the opposite must hold", func(v *valueReading) *yamlform.Value { return &v.not }),
	)

	hitsForm = yamlform.NewForm("hits", "`hits`",
		keep("field", textType, "the field with the number", func(h *hitsReading) *yamlform.Value { return &h.field }),
		byDefault("1", keep("default", yamlform.Uint32(0), "the number for lines without one",
			func(h *hitsReading) *yamlform.Value { return &h.fallback })),
	)

	// places are the maps that a misplaced key may belong to, the most likely first.
	places = []*yamlform.Map{&mappingForm.Map, &timeForm.Map, &entryForm.Map, &conditionForm.Map, &descriptorForm.Map}
)

// Language returns the language of mappings.
func Language() yamlform.Language {
	return yamlform.Language{Maps: []*yamlform.Map{&mappingForm.Map, &timeForm.Map, &descriptorForm.Map, &entryForm.Map,
		&valueForm.Map, &conditionForm.Map, &hitsForm.Map}}
}

func required[T any](f yamlform.Field[T]) yamlform.Field[T] {
	f.Required = true
	return f
}

// byDefault adds to a row which value applies if the key is absent.
func byDefault[T any](value string, f yamlform.Field[T]) yamlform.Field[T] {
	f.Default = value
	return f
}

// keep returns a row that keeps the value for later.
func keep[T any](name string, t yamlform.Type, doc string, of func(*T) *yamlform.Value) yamlform.Field[T] {
	return yamlform.Field[T]{Key: yamlform.Key{Name: name, Type: t, Doc: doc},
		Read: func(into *T, v yamlform.Value) { *of(into) = v }}
}

// LoadMapping reads a mapping file.
func LoadMapping(name string) (*Mapping, []*yamlform.Error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, []*yamlform.Error{{File: name, Msg: "cannot be read: " + err.Error()}}
	}
	defer func() { _ = f.Close() }() // it was only read
	data, err := io.ReadAll(io.LimitReader(f, maxMappingSize+1))
	switch {
	case err != nil:
		return nil, []*yamlform.Error{{File: name, Msg: "cannot be read: " + err.Error()}}
	case len(data) > maxMappingSize:
		return nil, []*yamlform.Error{{File: name, Msg: fmt.Sprintf("has more than %d bytes, which is too long for a mapping",
			maxMappingSize)}}
	}
	return ParseMapping(name, data)
}

// ParseMapping reads a mapping. The name is part of errors.
func ParseMapping(name string, data []byte) (*Mapping, []*yamlform.Error) {
	r := yamlform.NewReader(name, yamlform.Options{Places: places})
	doc, ok := r.ParseOne(data, "nothing in this file: write `format`, `domain` and `descriptors`",
		"a second YAML document: a mapping is one")
	if !ok {
		return nil, r.Errors()
	}
	c := &compiler{Reader: r, mapping: &Mapping{name: name}}
	var m mappingReading
	if read, _ := yamlform.Read(doc, mappingForm, &m); read {
		c.compile(&m, doc)
	}
	if r.Found() > 0 {
		return nil, r.Errors()
	}
	c.mapping.settle()
	return c.mapping, nil
}

// compiler makes a Mapping from the maps that were read.
type compiler struct {
	*yamlform.Reader
	mapping *Mapping
	needed  map[string]int // index in Mapping.fields by name
}

func (c *compiler) compile(n *mappingReading, top yamlform.Value) {
	m := c.mapping
	if !n.format.Given() {
		if c.Found() == 0 {
			top.Errorf("no `format`: write %s", yamlform.List(formatNames, "or"))
		}
		return // the fields are unknown
	}
	i, ok := n.format.Choice()
	if !ok {
		return
	}
	m.format = format(i)
	if !c.format(n) {
		return
	}
	c.time(n.time, top)
	switch {
	case !n.domain.Given():
		top.Errorf("no `domain`: write the domain of your rules")
	case n.domain.IsScalar():
		text, ok := n.domain.Text()
		m.domain = value{field: -1, literal: text}
		if ok && text == "" {
			n.domain.Errorf("`domain` is empty")
		}
	default:
		m.domain, _ = c.value(n.domain, valueForm)
	}
	all := c.hits(n.hits)
	if !n.descriptors.Given() || !n.descriptors.IsList() || n.descriptors.Len() == 0 {
		at := top
		if n.descriptors.Given() {
			at = n.descriptors
		}
		at.Errorf("`descriptors` must be a list of descriptors, each a list of entries")
	} else {
		for d := range n.descriptors.Items() {
			m.descriptors = append(m.descriptors, c.descriptor(d, all))
		}
	}
	if n.customer.Given() {
		v, _ := c.value(n.customer, valueForm)
		m.customer = &v
	}
	m.when = c.conditions(n.when)
}

// format reads the settings of the format. It returns false if fields cannot be looked up.
func (c *compiler) format(n *mappingReading) bool {
	m := c.mapping
	text := m.format == formatEnvoy || m.format == formatText
	nginx := m.format == formatNginx || m.format == formatApache
	m.own = n.pattern.Given()
	switch {
	case m.own && m.format == formatApache:
		n.pattern.Errorf("`pattern` is not for `apache`, which is the common and the combined format: write another " +
			"LogFormat in nginx's words with `format: nginx`, or with `format: text`")
	case m.own && !text && !nginx:
		n.pattern.Errorf("`pattern` is for the formats `envoy`, `text` and `nginx`, not `%s`", formatNames[m.format])
	}
	switch {
	case nginx:
		return c.logFormat(n)
	case text:
		written, at := envoyDefault, n.format
		if n.pattern.Given() {
			var ok bool
			if written, ok = n.pattern.Text(); !ok {
				return false
			}
			at = n.pattern
		} else if m.format == formatText {
			at.Errorf("the format `text` needs a `pattern`, written like a format of Envoy: `%%TIME%% %%CLIENT%% \"%%PATH%%\"`")
			return false
		}
		p, err := parsePattern(written)
		if err != nil {
			at.Errorf("`pattern`: %v", err)
			return false
		}
		m.pattern = p
	}
	return true
}

// logFormat reads the pattern of the formats that are written as nginx's are.
func (c *compiler) logFormat(n *mappingReading) bool {
	m := c.mapping
	written, at := nginxCombined, n.format
	switch {
	case m.format == formatApache:
		written = apacheCombined
	case n.pattern.Given():
		var ok bool
		if written, ok = n.pattern.Text(); !ok {
			return false
		}
		at = n.pattern
	}
	p, err := parseLogFormat(written)
	if err != nil {
		at.Errorf("`pattern`: %v", err)
		return false
	}
	if m.format == formatApache {
		p.escape, p.optional = escapeApache, p.operator("body_bytes_sent")
		p.what = "common or combined format"
	}
	m.pattern = p
	return true
}

// field finds or adds a field.
func (c *compiler) field(v yamlform.Value) int {
	name, ok := v.Text()
	if !ok {
		return -1
	}
	m := c.mapping
	if m.pattern != nil {
		i := m.pattern.operator(name)
		switch {
		case i == severalOperators:
			v.Errorf("several operators of the pattern are called %s: write one of them in full, with what stands in brackets",
				yamlform.Quote(name))
			return -1
		case i < 0:
			what := "the pattern has no operator"
			if m.pattern.nginx() {
				what = "the " + m.pattern.what + " has no variable"
			}
			v.Errorf("%s", unknownField{what, name, m.pattern.names})
			return -1
		}
		return c.operator(i, v)
	}
	return c.need(name, v)
}

// unknownField is a message about a field that a log does not have. It is made only if it is reported, because there
// may be many names.
type unknownField struct {
	what, name string
	names      func() []string // the names that exist
}

const (
	maxSimilar = 1000 // how many names are compared with an unknown one
	maxListed  = 100  // how many names a message lists
)

func (u unknownField) String() string {
	names := u.names()
	if near := yamlform.Closest(u.name, names[:min(maxSimilar, len(names))]); near != "" {
		return fmt.Sprintf("%s %s: did you mean `%s`?", u.what, yamlform.Quote(u.name), near)
	}
	if more := len(names) - maxListed; more > 0 {
		return fmt.Sprintf("%s %s: there are %s, and %d more", u.what, yamlform.Quote(u.name),
			yamlform.List(names[:maxListed], "and"), more)
	}
	return fmt.Sprintf("%s %s: there are %s", u.what, yamlform.Quote(u.name), yamlform.List(names, "and"))
}

// need returns the index of the field with that name. It adds a new field to the fields that lines are searched for.
func (c *compiler) need(name string, at yamlform.Value) int {
	if i, known := c.needed[name]; known {
		return i
	}
	if c.needed == nil {
		c.needed = make(map[string]int)
	}
	m := c.mapping
	c.needed[name] = len(m.fields)
	m.fields = append(m.fields, field{name: name, at: at.Position()})
	return len(m.fields) - 1
}

func (c *compiler) operator(i int, at yamlform.Value) int {
	op := &c.mapping.pattern.ops[i]
	if op.field < 0 {
		op.field = c.need(op.name, at)
	}
	return op.field
}

func (c *compiler) header(v yamlform.Value) int {
	name, ok := v.Text()
	if !ok {
		return -1
	}
	p := c.mapping.pattern
	if p == nil {
		v.Errorf("`header` is for the formats `envoy`, `text`, `nginx` and `apache`: write `field` and the name that it " +
			"has in the log")
		return -1
	}
	i := p.header(name)
	if i < 0 && p.nginx() {
		v.Errorf("the %s has no $%s: the log does not have this header", p.what, strings.Join(variables(name), " or $"))
		return -1
	}
	if i < 0 {
		v.Errorf("the pattern has no %%REQ(%s)%%: the log does not have this header", strings.ToUpper(name))
		return -1
	}
	return c.operator(i, v)
}

func (c *compiler) time(v, top yamlform.Value) {
	m := c.mapping
	t := timeReading{field: v}
	if v.Given() && v.IsMap() {
		t = timeReading{}
		yamlform.Read(v, timeForm, &t)
	}
	switch {
	case t.field.Given():
		m.time = c.field(t.field)
		if m.pattern != nil && m.pattern.nginx() && m.time >= 0 && m.time < len(m.fields) {
			m.layout.kind = nginxLayout(m.fields[m.time].name)
		}
	case m.format == formatEnvoy && m.pattern.operator("START_TIME") >= 0:
		at := v
		if !at.Given() {
			at = top
		}
		m.time = c.operator(m.pattern.operator("START_TIME"), at)
	case m.pattern != nil && m.pattern.nginx():
		c.nginxTime(v, top)
	case v.Given():
		v.Errorf("no `field` in `time`: write the field that says when a request happened")
	default:
		top.Errorf("no `time`: write the field that says when a request happened")
	}
	if t.zone.Given() {
		m.layout.zone, _ = t.zone.Zone()
	}
	if t.layout.Given() {
		c.layout(t.layout, t.zone.Given())
	}
}

// nginxTime takes the time from the best of nginx's variables that the format has.
func (c *compiler) nginxTime(v, top yamlform.Value) {
	m := c.mapping
	if !v.Given() {
		v = top
	}
	for _, t := range times {
		if i := m.pattern.operator(t.name); i >= 0 {
			m.time, m.layout.kind = c.operator(i, v), t.kind
			return
		}
	}
	v.Errorf("the log_format has no time: put $time_local, $time_iso8601 or $msec into it, or write the field that has " +
		"the time as `time`")
}

// nginxLayout returns how nginx writes the time into a variable.
func nginxLayout(variable string) layoutKind {
	for _, t := range times {
		if strings.EqualFold(t.name, variable) {
			return t.kind
		}
	}
	return layoutRFC3339
}

func (c *compiler) layout(v yamlform.Value, zone bool) {
	name, ok := v.Text()
	if !ok {
		return
	}
	if i := slices.Index(layoutNames, name); i >= 0 {
		c.mapping.layout.kind = layoutKind(i)
		return
	}
	// A custom layout without a year or a minute cannot be right: such times are incomplete.
	sample := time.Date(2019, 11, 23, 18, 47, 31, 0, time.UTC)
	back, err := time.Parse(name, sample.Format(name))
	if err != nil || back.Format(time.DateTime) != sample.Format(time.DateTime) {
		if near := yamlform.Closest(name, layoutNames); near != "" {
			v.Errorf("unknown `layout` %s: did you mean `%s`?", yamlform.Quote(name), near)
			return
		}
		v.Errorf("`layout` %s does not have date and time to the second: write %s, or how a log would write "+
			"2006-01-02 15:04:05",
			yamlform.Quote(name), yamlform.List(layoutNames, "or"))
		return
	}
	c.mapping.layout.kind, c.mapping.layout.custom = layoutCustom, name
	if !zone && !hasZone(name) {
		v.Errorf("`layout` %s does not have a time zone: add a `zone`, UTC for example", yamlform.Quote(name))
	}
}

// hasZone reports whether times of a layout contain their zone.
func hasZone(custom string) bool {
	at := time.Date(2019, 11, 23, 18, 47, 31, 0, time.FixedZone("", 5*60*60))
	back, err := time.Parse(custom, at.Format(custom))
	return err == nil && back.Equal(at)
}

func (c *compiler) value(at yamlform.Value, form *yamlform.Form[valueReading]) (value, valueReading) {
	var v valueReading
	if read, _ := yamlform.Read(at, form, &v); !read {
		return value{}, v
	}
	out := value{field: -1}
	sources := 0
	for _, source := range []yamlform.Value{v.field, v.header, v.literal} {
		if source.Given() {
			sources++
		}
	}
	if sources != 1 {
		at.Errorf("%s has one of `field`, `header` and `value`, this has %d", form.What, sources)
		return out, v
	}
	switch {
	case v.literal.Given():
		var ok bool
		if out.literal, ok = v.literal.Text(); ok && out.literal == "" {
			v.literal.Errorf("`value` is empty")
		}
		for _, at := range []yamlform.Value{v.part, v.regex, v.fallback} {
			if at.Given() {
				at.Errorf("`part`, `regex` and `default` are for values from the log, not for a `value`")
			}
		}
		return out, v
	case v.field.Given():
		out.field = c.field(v.field)
	default:
		out.field = c.header(v.header)
	}
	if v.part.Given() {
		i, _ := v.part.Choice()
		out.part = fieldPart(i)
	}
	if v.regex.Given() {
		if out.regex = compileRegex("regex", v.regex); out.regex != nil {
			out.group = min(out.regex.NumSubexp(), 1)
		}
	}
	if v.fallback.Given() {
		out.fallback, _ = v.fallback.Text()
	}
	return out, v
}

func compileRegex(name string, v yamlform.Value) *regexp.Regexp {
	text, ok := v.Text()
	if !ok {
		return nil
	}
	re, err := regexp.Compile(text)
	if err != nil {
		v.Errorf("`%s`: %v", name, err)
	}
	return re
}

func (c *compiler) descriptor(v yamlform.Value, all *hitsMap) descriptorMap {
	d := descriptorMap{hits: all}
	entries := v
	if v.IsMap() {
		var read descriptorReading
		yamlform.Read(v, descriptorForm, &read)
		entries = read.entries
		d.when = c.conditions(read.when)
		if read.hits.Given() {
			d.hits = c.hits(read.hits)
		}
	}
	if !entries.Given() || !entries.IsList() || entries.Len() == 0 {
		at := entries
		if !at.Given() {
			at = v
		}
		at.Errorf("a descriptor is a list of entries like {key: path, field: path}, or a map with such a list as `entries`")
		return d
	}
	for item := range entries.Items() {
		from, read := c.value(item, entryForm)
		entry := entryMap{value: from}
		if !read.key.Given() {
			if item.IsMap() {
				item.Errorf("an entry without a `key`")
			}
		} else if text, ok := read.key.Text(); ok {
			if entry.key = text; text == "" {
				read.key.Errorf("`key` is empty")
			}
		}
		if read.skipIfAbsent.Given() {
			entry.skipIfAbsent = read.skipIfAbsent.Flag()
		}
		d.entries = append(d.entries, entry)
	}
	return d
}

func (c *compiler) hits(v yamlform.Value) *hitsMap {
	if !v.Given() {
		return nil
	}
	h := hitsReading{field: v}
	if v.IsMap() {
		h = hitsReading{}
		yamlform.Read(v, hitsForm, &h)
	}
	out := &hitsMap{field: -1, fallback: 1}
	if h.field.Given() {
		out.field = c.field(h.field)
	} else if !h.fallback.Given() {
		v.Errorf("`hits` has neither a `field` nor a `default`")
	}
	if h.fallback.Given() {
		out.fallback, _ = h.fallback.Number()
	}
	return out
}

func (c *compiler) conditions(v yamlform.Value) []condition {
	if !v.Given() {
		return nil
	}
	var all []condition
	for item := range v.Items() {
		from, read := c.value(item, conditionForm)
		cond := condition{value: from, present: true}
		tests := 0
		if read.oneOf.Given() {
			if cond.oneOf = read.oneOf.Texts(); len(cond.oneOf) == 0 {
				read.oneOf.Errorf("`is` names no value")
			}
			tests++
		}
		if read.matches.Given() {
			cond.regex = compileRegex("matches", read.matches)
			tests++
		}
		if read.present.Given() {
			cond.present = read.present.Flag()
			tests++
		}
		if read.not.Given() {
			cond.not = read.not.Flag()
		}
		if tests != 1 && item.IsMap() {
			item.Errorf("a condition has one of `is`, `matches` and `present`, this has %d", tests)
		}
		all = append(all, cond)
	}
	return all
}
