package accesslog

import (
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/config/yamlform"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// Mapping describes how to make a request from a line of a log.
type Mapping struct {
	name    string // name of the file
	format  format
	pattern *pattern // pattern of a text format
	own     bool     // the mapping itself gives the pattern, not its format

	fields []field // fields to extract from a line
	paths  *path   // the fields as a tree, for JSON

	time   int // the index in fields of the time
	layout layout

	domain          value
	descriptors     []descriptorMap
	customer        *value     // nil means all of customerEntries
	customerEntries []entryMap // the entries that come from the log, each once
	when            []condition
}

type format uint8

const (
	formatEnvoy format = iota
	formatNginx
	formatApache
	formatText
	formatJSON
)

var formatNames = []string{"envoy", "nginx", "apache", "text", "json"}

// field is a field of a line that the mapping uses.
type field struct {
	name string
	at   yamlform.Position // where the mapping first names it
}

// value is a text that comes from a line, or from the mapping.
type value struct {
	field    int // index in Mapping.fields; -1 for a literal
	literal  string
	part     fieldPart
	regex    *regexp.Regexp // nil for the whole part
	group    int            // capture group of the regex
	fallback string         // used if the text is absent; empty without a fallback
}

// fieldPart is an often needed part of a field. It can be selected without a regular expression.
type fieldPart uint8

const (
	partAll     fieldPart = iota
	partAddress           // without the port
	partPath              // without the query
	partFirst             // the first element of a list with commas
	partLast
)

var partNames = []string{"all", "address", "path", "first", "last"}

// of returns this part of a text.
func (p fieldPart) of(s string) string {
	switch p {
	case partAddress:
		if strings.HasPrefix(s, "[") { // [2001:db8::1]:443
			if end := strings.IndexByte(s, ']'); end > 0 {
				return s[1:end]
			}
			return s
		}
		if colon := strings.LastIndexByte(s, ':'); colon >= 0 && strings.IndexByte(s, ':') == colon {
			return s[:colon]
		}
	case partPath:
		if end := strings.IndexAny(s, "?#"); end >= 0 {
			return s[:end]
		}
	case partFirst:
		first, _, _ := strings.Cut(s, ",")
		return strings.TrimSpace(first)
	case partLast:
		return strings.TrimSpace(s[strings.LastIndexByte(s, ',')+1:])
	}
	return s
}

// of returns the text for a line. It is empty if the text is absent.
func (v *value) of(fields []string) string {
	if v.field < 0 {
		return v.literal
	}
	s := fields[v.field]
	if s != "" && v.part != partAll {
		s = v.part.of(s)
	}
	if s != "" && v.regex != nil {
		s = v.match(s)
	}
	if s == "" {
		return v.fallback
	}
	return s
}

func (v *value) match(s string) string {
	at := v.regex.FindStringSubmatchIndex(s)
	if at == nil || at[2*v.group] < 0 {
		return ""
	}
	return s[at[2*v.group]:at[2*v.group+1]]
}

type descriptorMap struct {
	entries []entryMap
	when    []condition
	hits    *hitsMap // nil for the hits of the mapping
}

type entryMap struct {
	key          string
	value        value
	skipIfAbsent bool // an absent value drops only the entry; if false, it drops the descriptor
}

// hitsMap is the source of the number of hits.
type hitsMap struct {
	field    int // -1: always fallback
	fallback uint64
}

// condition decides whether a line, or a descriptor, is used.
type condition struct {
	value   value
	oneOf   []string       // empty if not checked
	regex   *regexp.Regexp // nil if not checked
	present bool           // it must be present, with any value
	not     bool           // inverts the condition
}

func (c *condition) holds(fields []string) bool {
	s := c.value.of(fields)
	var ok bool
	switch {
	case len(c.oneOf) > 0:
		ok = slices.Contains(c.oneOf, s)
	case c.regex != nil:
		ok = s != "" && c.regex.MatchString(s)
	default:
		ok = c.present == (s != "")
	}
	return ok != c.not
}

// settle precomputes everything that does not depend on a line.
func (m *Mapping) settle() {
	type identity struct {
		key   string
		value value
	}
	have := make(map[identity]struct{})
	for _, d := range m.descriptors {
		for _, e := range d.entries {
			if descriptor.ReservationEntry(e.key) { // it names one reservation, so it would make each of them a customer
				continue
			}
			id := identity{e.key, e.value}
			if _, twice := have[id]; e.value.field >= 0 && !twice {
				have[id] = struct{}{}
				m.customerEntries = append(m.customerEntries, e)
			}
		}
	}
	if m.format == formatJSON {
		names := make([]string, len(m.fields))
		for i := range m.fields {
			names[i] = m.fields[i].name
		}
		m.paths = newPaths(names)
	}
}

// counts reports whether requests may have a number of hits other than one.
func (m *Mapping) counts() bool {
	return slices.ContainsFunc(m.descriptors, func(d descriptorMap) bool { return d.hits != nil })
}

func allHold(conditions []condition, fields []string) bool {
	for i := range conditions {
		if !conditions[i].holds(fields) {
			return false
		}
	}
	return true
}

// layout is the format of times.
type layout struct {
	kind   layoutKind
	custom string         // layout of package time, for layoutCustom
	zone   *time.Location // zone of times that do not state one; nil if all times do
}

type layoutKind uint8

const (
	layoutRFC3339 layoutKind = iota
	layoutUnix
	layoutUnixMilli
	layoutUnixMicro
	layoutUnixNano
	layoutCLF
	layoutCustom
)

var layoutNames = []string{"rfc3339", "unix", "unix_ms", "unix_us", "unix_ns", "clf"}

// Advice suggests a fix if the lines of a log do not have the mapping's form. It may be empty.
func (m *Mapping) Advice() string {
	switch {
	case m.format == formatNginx && !m.own:
		return "lines must have nginx's combined format: if nginx.conf has a log_format, write it as the `pattern` of the " +
			"mapping, or as --pattern"
	case m.format == formatNginx:
		return "compare the `pattern` of the mapping, or --pattern, with the log_format in nginx.conf"
	case m.format == formatApache:
		return "lines must have Apache's common or combined format: write another LogFormat as the `pattern` of `format: " +
			"nginx` or `format: text`"
	case m.format == formatEnvoy && !m.own:
		return "lines must have Envoy's default format: if its configuration has a text_format, write it as the `pattern` " +
			"of the mapping, or as --pattern"
	case m.format == formatEnvoy:
		return "compare the `pattern` of the mapping, or --pattern, with the text_format in Envoy's configuration"
	}
	return ""
}
