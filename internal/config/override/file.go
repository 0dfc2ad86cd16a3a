package override

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/ratelimitd/ratelimitd/internal/config/entries"
	"github.com/ratelimitd/ratelimitd/internal/config/yamlform"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// MaxFileSize is how many bytes a file of overrides may have.
const MaxFileSize = 16 << 20

// Placed is an override of a file, with its position.
type Placed struct {
	Override
	At yamlform.Position
}

// reading is an override while it is being read.
type reading struct {
	Override
	kinds []yamlform.Value // values of the keys of which exactly one must be given
	burst yamlform.Value
}

type fileReading struct{ overrides yamlform.Value }

// The language of files of overrides. Each row is one key: it reads the key's value, and the schema and the table in
// docs/do/overrides.md come from it too.
var (
	fileForm     *yamlform.Form[fileReading]
	overrideForm *yamlform.Form[reading]
)

func init() {
	text := yamlform.Type{Kind: yamlform.Text}
	flag := yamlform.Type{Kind: yamlform.Flag}
	instant := yamlform.Type{Kind: yamlform.Text, Pattern: `[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt].*`, Form: "a time (RFC 3339)"}
	kind := func(k Kind, read func(r *reading, v yamlform.Value) bool) func(*reading, yamlform.Value) {
		return func(r *reading, v yamlform.Value) {
			if read(r, v) {
				r.Kind = k
				r.kinds = append(r.kinds, v)
			}
		}
	}
	flagged := func(_ *reading, v yamlform.Value) bool { return v.Flag() }

	fileForm = yamlform.NewForm("file", "the top of a file of overrides", yamlform.Field[fileReading]{
		Key: yamlform.Key{Name: "overrides", Type: yamlform.MapsOf("override"), Required: true,
			Doc: "the overrides, or `[]`"},
		Read: func(f *fileReading, v yamlform.Value) { f.overrides = v },
	})
	overrideForm = yamlform.NewForm("override", "an override", []yamlform.Field[reading]{
		{Key: yamlform.Key{Name: "domain", Type: text, Required: true, Doc: "the domain of the rule"},
			Read: func(r *reading, v yamlform.Value) { r.Domain, _ = v.Text() }},
		{Key: yamlform.Key{Name: "rule", Type: text, Required: true,
			Doc: "the rule's path, as `ratelimitd explain` shows it"},
			Read: func(r *reading, v yamlform.Value) { r.Rule, _ = v.Text() }},
		{Key: yamlform.Key{Name: "limit", Type: text,
			Doc: "the `name` of one of several limits. Without it, all of them. `requests_per_unit` needs it"},
			Read: func(r *reading, v yamlform.Value) { r.Limit, _ = v.Text() }},
		{Key: yamlform.Key{Name: "entries", Type: entries.Type, Required: true,
			Doc: "the customer's descriptor, exactly as in the request"},
			Read: func(r *reading, v yamlform.Value) { r.Entries, _ = entries.Read(v) }},
		{Key: yamlform.Key{Name: "requests_per_unit", Type: yamlform.Uint53(0), Doc: "replaces the rule's number"},
			Read: kind(Replace, func(r *reading, v yamlform.Value) bool {
				n, ok := v.Number()
				r.Requests = n
				return ok
			})},
		{Key: yamlform.Key{Name: "burst", Type: yamlform.Uint53(1),
			Default: "the rule's, or `requests_per_unit`", Doc: "the bucket's size, with `requests_per_unit`"},
			Read: func(r *reading, v yamlform.Value) {
				r.burst = v
				n, _ := v.Number()
				r.Burst = n
			}},
		{Key: yamlform.Key{Name: "factor", Type: yamlform.Type{Kind: yamlform.Decimal, Most: MaxFactor},
			Doc: "multiplies the rule's numbers"},
			Read: kind(Scale, func(r *reading, v yamlform.Value) bool {
				n, ok := v.Millionths()
				r.Requests = n
				return ok
			})},
		{Key: yamlform.Key{Name: "unlimited", Type: flag, Doc: "every request passes"},
			Read: kind(Unlimited, flagged)},
		{Key: yamlform.Key{Name: "blocked", Type: flag, Doc: "every request is denied"},
			Read: kind(Blocked, flagged)},
		{Key: yamlform.Key{Name: "not_before", Type: instant, Default: "now", Doc: "when it starts"},
			Read: func(r *reading, v yamlform.Value) { r.NotBefore = readSeconds(v, "not_before") }},
		{Key: yamlform.Key{Name: "expires_at", Type: instant, Default: "never", Doc: "when it ends"},
			Read: func(r *reading, v yamlform.Value) { r.ExpiresAt = readSeconds(v, "expires_at") }},
		{Key: yamlform.Key{Name: "reason", Type: text, Doc: fmt.Sprintf("why, in at most %d bytes", MaxText)},
			Read: func(r *reading, v yamlform.Value) { r.Reason, _ = v.Text() }},
		{Key: yamlform.Key{Name: "author", Type: text, Doc: "who changed it last"},
			Read: func(r *reading, v yamlform.Value) { r.Author, _ = v.Text() }},
		{Key: yamlform.Key{Name: "version", Type: yamlform.Between(0, math.MaxInt64),
			Doc: "leave it out, ratelimitd writes it"},
			Read: func(r *reading, v yamlform.Value) {
				n, _ := v.Number()
				r.Version = int64(n)
			}},
		{Key: yamlform.Key{Name: "changed_at", Type: instant, Doc: "leave it out, ratelimitd writes it"},
			Read: func(r *reading, v yamlform.Value) { r.Changed, _ = readTime(v, "changed_at") }},
	}...)
}

// Language returns the language of files of overrides.
func Language() yamlform.Language {
	return yamlform.Language{Maps: []*yamlform.Map{&fileForm.Map, &overrideForm.Map}}
}

// Item returns the map of one override, for languages that have a list of them.
func Item() *yamlform.Map { return &overrideForm.Map }

// ReadFile reads a file of overrides: YAML, or the form for programs with one override on each line. In addition to
// errors it returns the overrides that have none.
func ReadFile(name string, data []byte) ([]Placed, []*yamlform.Error) {
	if len(data) > MaxFileSize {
		return nil, []*yamlform.Error{{File: name, Msg: fmt.Sprintf("larger than %d MiB: keep this many overrides in Redis",
			MaxFileSize>>20)}}
	}
	if areLines(data) {
		return readLines(name, data)
	}
	r := yamlform.NewReader(name, yamlform.Options{Places: []*yamlform.Map{&overrideForm.Map, &fileForm.Map}})
	doc, ok := r.ParseOne(data, "no `overrides`: write `overrides: []` if there are none",
		"a second YAML document: put all overrides into one")
	if !ok {
		return nil, r.Errors()
	}
	var f fileReading
	var all []Placed
	read, unknown := yamlform.Read(doc, fileForm, &f)
	switch {
	case f.overrides.Given():
		all = ReadList(f.overrides)
	case read && !unknown:
		doc.Errorf("no `overrides`: write `overrides: []` if there are none")
	}
	return all, r.Errors()
}

// readLines reads the overrides that Lines yields.
func readLines(name string, data []byte) (all []Placed, errs []*yamlform.Error) {
	var before firsts
	for p, err := range Lines(name, bytes.NewReader(data)) {
		if wrong, ok := errors.AsType[*yamlform.Error](err); ok {
			return all, append(errs, wrong)
		}
		if twice := before.twice(&p); twice != "" {
			errs = append(errs, p.At.Errorf("%s", twice))
			continue
		}
		all = append(all, p)
	}
	return all, errs
}

// firsts are the places of the overrides that were read.
type firsts map[string]yamlform.Position

// twice records an override. It returns a mistake if an earlier one has the same identity.
func (f *firsts) twice(p *Placed) string {
	if *f == nil {
		*f = make(firsts)
	}
	key := identityKey(&p.Identity)
	if first, twice := (*f)[key]; twice {
		return "a second override for the same rule and entries: the first is " + first.Near()
	}
	(*f)[key] = p.At
	return ""
}

// ReadList reads a list of overrides. It reports errors to the value's reader, and skips invalid overrides.
func ReadList(list yamlform.Value) []Placed {
	if !list.IsList() {
		list.Errorf("`overrides` must be a list, not %s: start each override with `- domain:`", list.What())
		return nil
	}
	all := make([]Placed, 0, list.Len())
	var before firsts
	for v := range list.Items() {
		o, ok := readOverride(v)
		if !ok {
			continue
		}
		p := Placed{o, v.Position()}
		if twice := before.twice(&p); twice != "" {
			v.Errorf("%s", twice)
			continue
		}
		all = append(all, p)
	}
	return all
}

func readOverride(v yamlform.Value) (Override, bool) {
	var r reading
	before := v.Reader().Found()
	if read, _ := yamlform.Read(v, overrideForm, &r); !read {
		return Override{}, false
	}
	if len(r.kinds) > 1 {
		r.kinds[1].Errorf("write only one of `requests_per_unit`, `factor`, `unlimited` and `blocked`")
	}
	if r.burst.Given() && r.Kind != Replace {
		r.burst.Errorf("`burst` belongs to `requests_per_unit`: write both, or neither")
	}
	if v.Reader().Found() == before {
		if err := r.Validate(); err != nil {
			v.Errorf("%v", err)
		}
	}
	return r.Override, v.Reader().Found() == before
}

func readTime(v yamlform.Value, name string) (time.Time, bool) {
	t, err := time.Parse(time.RFC3339Nano, strings.ToUpper(v.Written()))
	if err != nil {
		v.Errorf("`%s` must be a time like 2026-03-01T12:00:00Z or 2026-03-01T12:00:00+02:00, not %s", name, v.What())
	}
	return t.UTC(), err == nil
}

// readSeconds reads a time as seconds since the Unix epoch.
func readSeconds(v yamlform.Value, name string) int64 {
	t, ok := readTime(v, name)
	if !ok {
		return 0
	}
	at, err := Second(t)
	if err != nil {
		v.Errorf("`%s`: %v", name, err)
	}
	return at
}

// AppendYAML appends overrides as a file that ReadFile reads back. All of them must be valid.
func AppendYAML(b []byte, overrides []Override) []byte {
	if len(overrides) == 0 {
		return append(b, "overrides: []\n"...)
	}
	b = append(b, "overrides:\n"...)
	for i := range overrides {
		b = overrides[i].appendYAML(b)
	}
	return b
}

func (o *Override) appendYAML(b []byte) []byte {
	b = appendScalar(append(b, "  - domain: "...), o.Domain)
	line := func(key string) { b = append(append(append(b, "\n    "...), key...), ": "...) }
	text := func(key, text string) {
		if text != "" {
			line(key)
			b = appendScalar(b, text)
		}
	}
	number := func(key string, n uint64) {
		line(key)
		b = fmt.Appendf(b, "%d", n)
	}
	seconds := func(key string, at int64) {
		if at != 0 {
			line(key)
			b = time.Unix(at, 0).UTC().AppendFormat(b, time.RFC3339)
		}
	}
	text("rule", o.Rule)
	text("limit", o.Limit)
	b = appendEntries(append(b, "\n    entries:"...), o.Entries)
	switch o.Kind {
	case Replace:
		number("requests_per_unit", o.Requests)
		if o.Burst != 0 {
			number("burst", o.Burst)
		}
	case Scale:
		line("factor")
		b = append(b, Factor(o.Requests)...)
	case Unlimited:
		line("unlimited")
		b = append(b, "true"...)
	case Blocked:
		line("blocked")
		b = append(b, "true"...)
	}
	seconds("not_before", o.NotBefore)
	seconds("expires_at", o.ExpiresAt)
	text("reason", o.Reason)
	text("author", o.Author)
	if o.Version != 0 {
		number("version", uint64(o.Version))
	}
	if !o.Changed.IsZero() {
		line("changed_at")
		b = o.Changed.UTC().AppendFormat(b, time.RFC3339Nano)
	}
	return append(b, '\n')
}

// Factor writes a factor in millionths as people do: 1,500,000 is 1.5.
func Factor(millionths uint64) string {
	text := fmt.Sprintf("%d.%06d", millionths/One, millionths%One)
	return strings.TrimSuffix(strings.TrimRight(text, "0"), ".")
}

// appendEntries appends entries as one text where that can be read back, and else as a list.
func appendEntries(b []byte, all []descriptor.Entry) []byte {
	if writableAsText(all) {
		return appendScalar(append(b, ' '), entries.Format(all))
	}
	const longKey = 128 // YAML takes keys of at most 1024 bytes without a question mark; an escape has ten
	for _, e := range all {
		b = append(b, "\n      - "...)
		if len(e.Key) > longKey/2 {
			b = append(appendQuoted(append(b, "? "...), e.Key), "\n        : "...)
		} else {
			b = append(appendQuoted(b, e.Key), ": "...)
		}
		b = appendQuoted(b, e.Value)
	}
	return b
}

// writableAsText reports whether entries.Parse restores the entries from the text that entries.Format writes.
func writableAsText(all []descriptor.Entry) bool {
	return !slices.ContainsFunc(all, func(e descriptor.Entry) bool {
		return e.Key == "" || e.Key[0] == ' ' || strings.Contains(e.Key, "=")
	})
}

// appendScalar appends a text, without quotes where that is plain to see.
func appendScalar(b []byte, s string) []byte {
	letter := func(c byte) bool { return c|0x20 >= 'a' && c|0x20 <= 'z' }
	bare := s != "" && letter(s[0])
	for i := 0; bare && i < len(s); i++ {
		bare = letter(s[i]) || '0' <= s[i] && s[i] <= '9' || strings.IndexByte("._-/=,", s[i]) >= 0
	}
	if bare {
		switch strings.ToLower(s) { // words that are no text to YAML
		case "null", "true", "false", "yes", "no", "on", "off", "y", "n":
		default:
			return append(b, s...)
		}
	}
	return appendQuoted(b, s)
}

// appendQuoted appends a text in quotes, on one line. Invisible characters are escaped.
func appendQuoted(b []byte, s string) []byte {
	b = append(b, '"')
	for _, r := range s {
		switch {
		case r == '"', r == '\\':
			b = append(b, '\\', byte(r))
		case r == '\n':
			b = append(b, `\n`...)
		case r == '\t':
			b = append(b, `\t`...)
		case unicode.IsPrint(r):
			b = fmt.Appendf(b, "%c", r)
		case r <= 0xff:
			b = fmt.Appendf(b, `\x%02x`, r)
		case r <= 0xffff:
			b = fmt.Appendf(b, `\u%04x`, r)
		default:
			b = fmt.Appendf(b, `\U%08x`, r)
		}
	}
	return append(b, '"')
}
