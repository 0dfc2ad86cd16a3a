package accesslog

import (
	"fmt"
	"io"
	"math"
	"os"
	"regexp"
	"strings"
	"time"

	"gopkg.in/yaml.v3"

	"github.com/ratelimitd/ratelimitd/internal/config"
)

const maxMappingSize = 1 << 20

// What a map has while it is read, before it is known which fields there are.
type (
	mappingNode struct {
		format      format
		formatAt    *yaml.Node
		pattern     *yaml.Node
		columns     *yaml.Node
		delimiter   *yaml.Node
		time        *yaml.Node
		domain      *yaml.Node
		descriptors *yaml.Node
		hits        *yaml.Node
		caller      *yaml.Node
		when        *yaml.Node
	}
	timeNode struct {
		field        *yaml.Node
		layout, zone *yaml.Node
	}
	valueNode struct {
		field, header, literal   *yaml.Node
		part, regex, fallback    *yaml.Node
		key, skipIfAbsent        *yaml.Node // of an entry
		oneOf, matches, not, has *yaml.Node // of a condition
	}
	descriptorNode struct{ entries, when, hits *yaml.Node }
	hitsNode       struct{ field, fallback *yaml.Node }
)

// The language: which keys stand where.
var (
	mappingShape    shape[mappingNode]
	timeShape       shape[timeNode]
	valueShape      shape[valueNode]
	entryShape      shape[valueNode]
	conditionShape  shape[valueNode]
	descriptorShape shape[descriptorNode]
	hitsShape       shape[hitsNode]

	// places tells somebody who put a key into the wrong map where it belongs.
	places []config.Place
)

// node keeps a value for later.
func node[T any](name string, of func(*T) **yaml.Node) key[T] {
	return key[T]{name, func(_ *reader, into *T, n *yaml.Node) { *of(into) = n }}
}

func init() {
	mappingShape = shape[mappingNode]{"a mapping", []key[mappingNode]{
		{"format", func(r *reader, m *mappingNode, n *yaml.Node) {
			i, ok := r.choice("format", n, formatNames)
			if m.format = format(i); ok {
				m.formatAt = n
			}
		}},
		node("pattern", func(m *mappingNode) **yaml.Node { return &m.pattern }),
		node("columns", func(m *mappingNode) **yaml.Node { return &m.columns }),
		node("delimiter", func(m *mappingNode) **yaml.Node { return &m.delimiter }),
		node("time", func(m *mappingNode) **yaml.Node { return &m.time }),
		node("domain", func(m *mappingNode) **yaml.Node { return &m.domain }),
		node("descriptors", func(m *mappingNode) **yaml.Node { return &m.descriptors }),
		node("hits", func(m *mappingNode) **yaml.Node { return &m.hits }),
		node("caller", func(m *mappingNode) **yaml.Node { return &m.caller }),
		node("when", func(m *mappingNode) **yaml.Node { return &m.when }),
	}}
	timeShape = shape[timeNode]{"`time`", []key[timeNode]{
		node("field", func(t *timeNode) **yaml.Node { return &t.field }),
		node("layout", func(t *timeNode) **yaml.Node { return &t.layout }),
		node("zone", func(t *timeNode) **yaml.Node { return &t.zone }),
	}}
	field := node("field", func(v *valueNode) **yaml.Node { return &v.field })
	header := node("header", func(v *valueNode) **yaml.Node { return &v.header })
	literal := node("value", func(v *valueNode) **yaml.Node { return &v.literal })
	part := node("part", func(v *valueNode) **yaml.Node { return &v.part })
	regex := node("regex", func(v *valueNode) **yaml.Node { return &v.regex })
	fallback := node("default", func(v *valueNode) **yaml.Node { return &v.fallback })
	valueShape = shape[valueNode]{"a value", []key[valueNode]{field, header, literal, part, regex, fallback}}
	entryShape = shape[valueNode]{"an entry", []key[valueNode]{
		node("key", func(v *valueNode) **yaml.Node { return &v.key }),
		field, header, literal, part, regex, fallback,
		node("skip_if_absent", func(v *valueNode) **yaml.Node { return &v.skipIfAbsent }),
	}}
	conditionShape = shape[valueNode]{"a condition", []key[valueNode]{
		field, header, part,
		node("is", func(v *valueNode) **yaml.Node { return &v.oneOf }),
		node("matches", func(v *valueNode) **yaml.Node { return &v.matches }),
		node("present", func(v *valueNode) **yaml.Node { return &v.has }),
		node("not", func(v *valueNode) **yaml.Node { return &v.not }),
	}}
	descriptorShape = shape[descriptorNode]{"a descriptor", []key[descriptorNode]{
		node("entries", func(d *descriptorNode) **yaml.Node { return &d.entries }),
		node("when", func(d *descriptorNode) **yaml.Node { return &d.when }),
		node("hits", func(d *descriptorNode) **yaml.Node { return &d.hits }),
	}}
	hitsShape = shape[hitsNode]{"`hits`", []key[hitsNode]{
		node("field", func(h *hitsNode) **yaml.Node { return &h.field }),
		node("default", func(h *hitsNode) **yaml.Node { return &h.fallback }),
	}}
	places = []config.Place{
		mappingShape.place(),
		timeShape.place(),
		entryShape.place(),
		conditionShape.place(),
		descriptorShape.place(),
	}
}

// LoadMapping reads a mapping file.
func LoadMapping(name string) (*Mapping, []*config.Error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, []*config.Error{{File: name, Msg: "cannot be read: " + err.Error()}}
	}
	defer func() { _ = f.Close() }() // it was read only
	data, err := io.ReadAll(io.LimitReader(f, maxMappingSize+1))
	switch {
	case err != nil:
		return nil, []*config.Error{{File: name, Msg: "cannot be read: " + err.Error()}}
	case len(data) > maxMappingSize:
		return nil, []*config.Error{{File: name, Msg: fmt.Sprintf("has more than %d bytes, which is too long for a mapping", maxMappingSize)}}
	}
	return ParseMapping(name, data)
}

// ParseMapping reads a mapping. The name stands in errors.
func ParseMapping(name string, data []byte) (*Mapping, []*config.Error) {
	c := &compiler{reader: reader{Complaints: config.Complaints{File: name}}, mapping: &Mapping{name: name, comma: ','}}
	top := c.document(data)
	if top == nil {
		return nil, c.Sorted()
	}
	var n mappingNode
	if readMap(&c.reader, &mappingShape, &n, top) {
		c.compile(&n, top)
	}
	if len(c.Errs) > 0 {
		return nil, c.Sorted()
	}
	c.mapping.settle()
	return c.mapping, nil
}

// compiler makes a mapping of what was read.
type compiler struct {
	reader
	mapping *Mapping
}

func (c *compiler) compile(n *mappingNode, top *yaml.Node) {
	m := c.mapping
	if n.formatAt == nil {
		if len(c.Errs) == 0 {
			c.Errorf(top, "no `format`: write %s", config.List(formatNames, "or"))
		}
		return // which fields there are is not known
	}
	m.format = n.format
	if !c.format(n) {
		return
	}
	c.time(n.time, top)
	if n.domain == nil {
		c.Errorf(top, "no `domain`: write the domain of your rules")
	} else if n.domain.Kind == yaml.ScalarNode {
		text, _ := c.text("domain", n.domain)
		m.domain = value{field: -1, literal: text}
		if text == "" {
			c.Errorf(n.domain, "`domain` is empty")
		}
	} else {
		m.domain, _ = c.value(n.domain, &valueShape)
	}
	all := c.hits(n.hits)
	if n.descriptors == nil || n.descriptors.Kind != yaml.SequenceNode || len(n.descriptors.Content) == 0 {
		at := top
		if n.descriptors != nil {
			at = n.descriptors
		}
		c.Errorf(at, "`descriptors` must be a list of descriptors, each a list of entries")
	} else {
		for _, d := range c.list(n.descriptors) {
			m.descriptors = append(m.descriptors, c.descriptor(d, all))
		}
	}
	if n.caller != nil {
		v, _ := c.value(n.caller, &valueShape)
		m.caller = &v
	}
	m.when = c.conditions(n.when)
}

// format reads what belongs to the format alone; false if fields cannot be looked up.
func (c *compiler) format(n *mappingNode) bool {
	m := c.mapping
	text := m.format == formatEnvoy || m.format == formatText
	if n.pattern != nil && !text {
		c.Errorf(n.pattern, "`pattern` is for the formats `envoy` and `text`, this is `%s`", formatNames[m.format])
	}
	if m.format != formatCSV {
		for _, at := range []*yaml.Node{n.columns, n.delimiter} {
			if at != nil {
				c.Errorf(at, "`columns` and `delimiter` are for the format `csv`, this is `%s`", formatNames[m.format])
			}
		}
	}
	switch {
	case text:
		written, at := envoyDefault, n.formatAt
		if n.pattern != nil {
			var ok bool
			if written, ok = c.text("pattern", n.pattern); !ok {
				return false
			}
			at = n.pattern
		} else if m.format == formatText {
			c.Errorf(at, "the format `text` needs a `pattern`, written like a format of Envoy: `%%TIME%% %%CLIENT%% \"%%PATH%%\"`")
			return false
		}
		p, err := parsePattern(written)
		if err != nil {
			c.Errorf(at, "`pattern`: %v", err)
			return false
		}
		m.pattern = p
	case m.format == formatCSV:
		if n.delimiter != nil {
			s, ok := c.text("delimiter", n.delimiter)
			if !ok {
				return false
			}
			if m.comma, ok = parseDelimiter(s); !ok {
				c.Errorf(n.delimiter, "`delimiter` must be one character or `tab`, this is %s", config.Quote(s))
			}
		}
		if n.columns != nil {
			m.columns = c.texts("columns", n.columns)
		}
	}
	return true
}

// field finds or adds a field.
func (c *compiler) field(n *yaml.Node) int {
	name, ok := c.text("field", n)
	if !ok {
		return -1
	}
	m := c.mapping
	if m.pattern != nil {
		i := m.pattern.operator(name)
		switch {
		case i == -2:
			c.Errorf(n, "several operators of the pattern are called %s: write one of them in full, with what stands in brackets", config.Quote(name))
			return -1
		case i < 0:
			c.unknownField(n, name, m.pattern.names(), "the pattern has no operator %s")
			return -1
		}
		return c.operator(i, n)
	}
	if m.columns != nil {
		known := false
		for _, column := range m.columns {
			known = known || column == name
		}
		if !known {
			c.unknownField(n, name, m.columns, "there is no column %s")
			return -1
		}
	}
	return c.add(name, n)
}

func (c *compiler) unknownField(at *yaml.Node, name string, names []string, format string) {
	msg := fmt.Sprintf(format, config.Quote(name))
	if near := config.Closest(name, names); near != "" {
		c.Errorf(at, "%s: did you mean `%s`?", msg, near)
		return
	}
	c.Errorf(at, "%s: there are %s", msg, config.List(names, "and"))
}

func (c *compiler) add(name string, at *yaml.Node) int {
	m := c.mapping
	for i := range m.fields {
		if m.fields[i].name == name {
			return i
		}
	}
	m.fields = append(m.fields, field{name: name, at: c.Position(at)})
	return len(m.fields) - 1
}

func (c *compiler) operator(i int, at *yaml.Node) int {
	op := &c.mapping.pattern.ops[i]
	if op.field < 0 {
		op.field = c.add(op.name, at)
	}
	return op.field
}

func (c *compiler) header(n *yaml.Node) int {
	name, ok := c.text("header", n)
	if !ok {
		return -1
	}
	p := c.mapping.pattern
	if p == nil {
		c.Errorf(n, "`header` is for the formats `envoy` and `text`: write `field` and the name that it has in the log")
		return -1
	}
	i := p.header(name)
	if i < 0 {
		c.Errorf(n, "the pattern has no %%REQ(%s)%%: the log does not tell this header", strings.ToUpper(name))
		return -1
	}
	return c.operator(i, n)
}

func (c *compiler) time(n, top *yaml.Node) {
	m := c.mapping
	t := timeNode{field: n}
	if n != nil && n.Kind == yaml.MappingNode {
		t = timeNode{}
		readMap(&c.reader, &timeShape, &t, n)
	}
	switch {
	case t.field != nil:
		m.time = c.field(t.field)
	case m.format == formatEnvoy && m.pattern.operator("START_TIME") >= 0:
		at := n
		if at == nil {
			at = top
		}
		m.time = c.operator(m.pattern.operator("START_TIME"), at)
	case n != nil:
		c.Errorf(n, "no `field` in `time`: write the field that says when a request happened")
	default:
		c.Errorf(top, "no `time`: write the field that says when a request happened")
	}
	if t.zone != nil {
		if name, ok := c.text("zone", t.zone); ok {
			zone, err := time.LoadLocation(name)
			if err != nil || name == "" || name == "Local" {
				c.Errorf(t.zone, "unknown `zone` %s: write a name like `UTC` or `Asia/Seoul`", config.Quote(name))
			}
			m.layout.zone = zone
		}
	}
	if t.layout != nil {
		c.layout(t.layout)
	}
}

func (c *compiler) layout(n *yaml.Node) {
	name, ok := c.text("layout", n)
	if !ok {
		return
	}
	for i, known := range layoutNames {
		if known == name {
			c.mapping.layout.kind = layoutKind(i)
			return
		}
	}
	// What a custom layout does not write, it does not mean: one without a year and a minute cannot be right.
	sample := time.Date(2019, 11, 23, 18, 47, 31, 0, time.UTC)
	back, err := time.Parse(name, sample.Format(name))
	if err != nil || back.Format(time.DateTime) != sample.Format(time.DateTime) {
		known := config.List(layoutNames, "or")
		if near := config.Closest(name, layoutNames); near != "" {
			c.Errorf(n, "unknown `layout` %s: did you mean `%s`?", config.Quote(name), near)
			return
		}
		c.Errorf(n, "`layout` %s does not tell date and time to the second: write %s, or how a log would write 2006-01-02 15:04:05", config.Quote(name), known)
		return
	}
	c.mapping.layout.kind, c.mapping.layout.custom = layoutCustom, name
	if c.mapping.layout.zone == nil && !tellsZone(name) {
		c.Errorf(n, "`layout` %s does not tell a time zone: add a `zone`, UTC for example", config.Quote(name))
	}
}

// tellsZone says whether times of a layout carry their zone.
func tellsZone(custom string) bool {
	at := time.Date(2019, 11, 23, 18, 47, 31, 0, time.FixedZone("", 5*60*60))
	back, err := time.Parse(custom, at.Format(custom))
	return err == nil && back.Equal(at)
}

func (c *compiler) value(n *yaml.Node, s *shape[valueNode]) (value, valueNode) {
	var v valueNode
	if !readMap(&c.reader, s, &v, n) {
		return value{}, v
	}
	out := value{field: -1}
	sources := 0
	for _, at := range []*yaml.Node{v.field, v.header, v.literal} {
		if at != nil {
			sources++
		}
	}
	if sources != 1 {
		c.Errorf(n, "%s has one of `field`, `header` and `value`, this has %d", s.what, sources)
		return out, v
	}
	switch {
	case v.literal != nil:
		out.literal, _ = c.text("value", v.literal)
		if out.literal == "" {
			c.Errorf(v.literal, "`value` is empty")
		}
		for _, at := range []*yaml.Node{v.part, v.regex, v.fallback} {
			if at != nil {
				c.Errorf(at, "`part`, `regex` and `default` are for what comes from the log, this is a `value`")
			}
		}
		return out, v
	case v.field != nil:
		out.field = c.field(v.field)
	default:
		out.field = c.header(v.header)
	}
	if v.part != nil {
		i, _ := c.choice("part", v.part, partNames)
		out.part = part(i)
	}
	if v.regex != nil {
		if out.regex = c.regex("regex", v.regex); out.regex != nil {
			out.group = min(out.regex.NumSubexp(), 1)
		}
	}
	if v.fallback != nil {
		out.fallback, _ = c.text("default", v.fallback)
	}
	return out, v
}

func (c *compiler) regex(name string, n *yaml.Node) *regexp.Regexp {
	text, ok := c.text(name, n)
	if !ok {
		return nil
	}
	re, err := regexp.Compile(text)
	if err != nil {
		c.Errorf(n, "`%s`: %v", name, err)
	}
	return re
}

func (c *compiler) descriptor(n *yaml.Node, all *hitsMap) descriptorMap {
	d := descriptorMap{hits: all}
	entries := n
	if n.Kind == yaml.MappingNode {
		var dn descriptorNode
		readMap(&c.reader, &descriptorShape, &dn, n)
		entries = dn.entries
		d.when = c.conditions(dn.when)
		if dn.hits != nil {
			d.hits = c.hits(dn.hits)
		}
	}
	if entries == nil || entries.Kind != yaml.SequenceNode || len(entries.Content) == 0 {
		at := entries
		if at == nil {
			at = n
		}
		c.Errorf(at, "a descriptor is a list of entries like {key: path, field: path}, or a map with such a list as `entries`")
		return d
	}
	for _, e := range c.list(entries) {
		v, en := c.value(e, &entryShape)
		entry := entryMap{value: v}
		if en.key == nil {
			if e.Kind == yaml.MappingNode {
				c.Errorf(e, "an entry without a `key`")
			}
		} else if entry.key, _ = c.text("key", en.key); entry.key == "" {
			c.Errorf(en.key, "`key` is empty")
		}
		if en.skipIfAbsent != nil {
			entry.skipIfAbsent = c.flag("skip_if_absent", en.skipIfAbsent)
		}
		d.entries = append(d.entries, entry)
	}
	return d
}

func (c *compiler) hits(n *yaml.Node) *hitsMap {
	if n == nil {
		return nil
	}
	h := hitsNode{field: n}
	if n.Kind == yaml.MappingNode {
		h = hitsNode{}
		readMap(&c.reader, &hitsShape, &h, n)
	}
	out := &hitsMap{field: -1, fallback: 1}
	if h.field != nil {
		out.field = c.field(h.field)
	} else if h.fallback == nil {
		c.Errorf(n, "`hits` has neither a `field` nor a `default`")
	}
	if h.fallback != nil {
		if err := h.fallback.Decode(&out.fallback); err != nil || out.fallback > math.MaxUint32 {
			c.Errorf(h.fallback, "`default` must be a whole number from 0 to %d, this is %s", uint32(math.MaxUint32), config.KindOf(h.fallback))
		}
	}
	return out
}

func (c *compiler) conditions(n *yaml.Node) []condition {
	if n == nil {
		return nil
	}
	var all []condition
	for _, item := range c.list(n) {
		v, cn := c.value(item, &conditionShape)
		cond := condition{value: v, present: true}
		asked := 0
		if cn.oneOf != nil {
			if cond.oneOf = c.texts("is", cn.oneOf); len(cond.oneOf) == 0 {
				c.Errorf(cn.oneOf, "`is` names no value")
			}
			asked++
		}
		if cn.matches != nil {
			cond.regex = c.regex("matches", cn.matches)
			asked++
		}
		if cn.has != nil {
			cond.present = c.flag("present", cn.has)
			asked++
		}
		if cn.not != nil {
			cond.not = c.flag("not", cn.not)
		}
		if asked != 1 && item.Kind == yaml.MappingNode {
			c.Errorf(item, "a condition has one of `is`, `matches` and `present`, this has %d", asked)
		}
		all = append(all, cond)
	}
	return all
}
