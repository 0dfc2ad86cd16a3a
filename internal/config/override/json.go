package override

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/ratelimitd/ratelimitd/internal/config/yamlform"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// Programs write an override in one form: in Redis, in the copy of it, in files with one on each line, and in answers
// of commands. It is protojson's form of ratelimitd.admin.v1.Override, with the names of the proto. It is read and
// written by hand, because startup reads up to a million overrides, and encoding/json takes 2 to 3 times as long.

// jsonField is a field of the form.
type jsonField struct {
	name  string
	write func(b []byte, o *Override) []byte // returns b as it is if the field is absent
	read  func(r *jsonReader, o *jsonOverride)
}

// jsonOverride is an override while it is read.
type jsonOverride struct {
	Override
	requests           *uint64
	factor             float64
	unlimited, blocked bool
}

// jsonForm has the fields in the order of the proto, and their names.
type jsonForm struct {
	fields []jsonField
	names  []string
}

var (
	jsonOnce sync.Once
	theForm  jsonForm

	jsonEntryNames = []string{"key", "value"}
)

// formOfJSON returns the form. The first call builds it, so that a program without overrides does not link the code for
// reading it.
func formOfJSON() *jsonForm {
	jsonOnce.Do(func() {
		theForm.fields = newJSONFields()
		for _, f := range theForm.fields {
			theForm.names = append(theForm.names, f.name)
		}
	})
	return &theForm
}

func newJSONFields() []jsonField {
	text := func(name string, of func(*Override) *string) jsonField {
		return jsonField{
			name, func(b []byte, o *Override) []byte { return appendJSONText(b, "", *of(o)) },
			func(r *jsonReader, o *jsonOverride) { *of(&o.Override) = string(r.raw()) },
		}
	}
	number := func(name string, is func(*Override) bool, of func(*Override) uint64,
		read func(r *jsonReader, o *jsonOverride)) jsonField {
		return jsonField{name, func(b []byte, o *Override) []byte {
			if !is(o) {
				return b
			}
			// numbers are quoted, because JavaScript and jq round large ones
			return append(strconv.AppendUint(append(b, '"'), of(o), 10), '"')
		}, read}
	}
	flag := func(name string, k Kind, of func(*jsonOverride) *bool) jsonField {
		return jsonField{name, func(b []byte, o *Override) []byte {
			if o.Kind != k {
				return b
			}
			return append(b, "true"...)
		}, func(r *jsonReader, o *jsonOverride) { *of(o) = r.bool() }}
	}
	second := func(name string, of func(*Override) *int64) jsonField {
		return jsonField{name, func(b []byte, o *Override) []byte {
			if *of(o) == 0 {
				return b
			}
			return appendJSONTime(b, time.Unix(*of(o), 0))
		}, func(r *jsonReader, o *jsonOverride) {
			at, err := Second(r.time())
			if err != nil {
				r.fail("%w", err)
			}
			*of(&o.Override) = at
		}}
	}
	return []jsonField{
		text("domain", func(o *Override) *string { return &o.Domain }),
		text("rule", func(o *Override) *string { return &o.Rule }),
		text("limit", func(o *Override) *string { return &o.Limit }),
		{"entries", appendJSONEntries, func(r *jsonReader, o *jsonOverride) { o.Entries = r.entries() }},
		number("requests_per_unit", func(o *Override) bool { return o.Kind == Replace },
			func(o *Override) uint64 { return o.Requests },
			func(r *jsonReader, o *jsonOverride) {
				n := r.whole(descriptor.MaxRequests)
				o.requests = &n
			}),
		number("burst", func(o *Override) bool { return o.Burst != 0 }, func(o *Override) uint64 { return o.Burst },
			func(r *jsonReader, o *jsonOverride) { o.Burst = r.whole(descriptor.MaxRequests) }),
		{"factor", func(b []byte, o *Override) []byte {
			if o.Kind != Scale {
				return b
			}
			return append(b, Factor(o.Requests)...)
		}, func(r *jsonReader, o *jsonOverride) { o.factor = r.decimal() }},
		flag("unlimited", Unlimited, func(o *jsonOverride) *bool { return &o.unlimited }),
		flag("blocked", Blocked, func(o *jsonOverride) *bool { return &o.blocked }),
		second("not_before", func(o *Override) *int64 { return &o.NotBefore }),
		second("expires_at", func(o *Override) *int64 { return &o.ExpiresAt }),
		text("reason", func(o *Override) *string { return &o.Reason }),
		text("author", func(o *Override) *string { return &o.Author }),
		number("version", func(o *Override) bool { return o.Version != 0 },
			func(o *Override) uint64 { return uint64(o.Version) },
			func(r *jsonReader, o *jsonOverride) { o.Version = int64(r.whole(math.MaxInt64)) }),
		{"changed_at", func(b []byte, o *Override) []byte {
			if o.Changed.IsZero() {
				return b
			}
			return appendJSONTime(b, o.Changed)
		}, func(r *jsonReader, o *jsonOverride) { o.Changed = r.time() }},
	}
}

// AppendJSON appends a valid override in the form for programs, on one line without its end.
func AppendJSON(b []byte, o *Override) []byte {
	start := len(b)
	jsonFields := formOfJSON().fields
	for i := range jsonFields {
		before := len(b)
		b = append(append(append(b, `,"`...), jsonFields[i].name...), `":`...)
		named := len(b)
		if b = jsonFields[i].write(b, o); len(b) == named {
			b = b[:before]
		}
	}
	b[start] = '{'
	return append(b, '}')
}

// appendJSONText appends a text after its name, and nothing for an empty one.
func appendJSONText(b []byte, name, s string) []byte {
	const hex = "0123456789abcdef"
	if s == "" {
		return b
	}
	b = append(append(b, name...), '"')
	plain := 0 // start of the text that needs no escape
	for i := range len(s) {
		c := s[i]
		if c >= ' ' && c != '"' && c != '\\' {
			continue
		}
		b = append(append(b, s[plain:i]...), '\\')
		plain = i + 1
		switch {
		case c >= ' ':
			b = append(b, c)
		case c >= '\b' && c <= '\r' && c != '\v':
			b = append(b, "btn.fr"[c-'\b'])
		default:
			b = append(b, 'u', '0', '0', hex[c>>4], hex[c&15])
		}
	}
	return append(append(b, s[plain:]...), '"')
}

func appendJSONEntries(b []byte, o *Override) []byte {
	for i, e := range o.Entries {
		b = append(b, "[,"[min(i, 1)])
		start := len(b)
		b = appendJSONText(appendJSONText(b, `,"key":`, e.Key), `,"value":`, e.Value)
		if len(b) == start {
			b = append(b, ',')
		}
		b[start] = '{'
		b = append(b, '}')
	}
	return append(b, ']')
}

// appendJSONTime appends a time with 0, 3, 6 or 9 digits after the second, as protojson does.
func appendJSONTime(b []byte, t time.Time) []byte {
	b = t.UTC().AppendFormat(append(b, '"'), time.RFC3339)
	if ns := t.Nanosecond(); ns != 0 {
		digits := strconv.Itoa(1_000_000_000 + ns)[1:]
		for strings.HasSuffix(digits, "000") {
			digits = digits[:len(digits)-3]
		}
		b = append(append(append(b[:len(b)-1], '.'), digits...), 'Z')
	}
	return append(b, '"')
}

// ReadJSON reads an override in the form for programs. A null or zero value counts as absent.
func ReadJSON(text []byte) (*Override, error) {
	o, col, err := readJSON(text)
	if err != nil {
		return nil, fmt.Errorf("column %d: %w", col, err)
	}
	return o, nil
}

// readJSON reads an override, or returns where in the text the error is, in characters from 1.
func readJSON(text []byte) (_ *Override, col int, _ error) {
	if !utf8.Valid(text) {
		return nil, 1, errors.New("it is not UTF-8")
	}
	r := jsonReader{text: text}
	var o jsonOverride
	form := formOfJSON()
	for i := range r.fields(form.names) {
		r.field = form.names[i]
		form.fields[i].read(&r, &o)
		r.field = ""
	}
	if r.next(); r.at < len(text) {
		r.fail("more than one JSON object: write one override on each line")
	}
	if r.err != nil {
		return nil, utf8.RuneCount(text[:r.token]) + 1, r.err
	}
	if err := o.Choose(o.requests, o.factor, o.unlimited, o.blocked); err != nil {
		return nil, 1, err
	}
	return &o.Override, 1, o.Validate()
}

// jsonReader reads JSON. After the first error it reads nothing more.
type jsonReader struct {
	text  []byte
	at    int
	token int    // start of the last token
	field string // field being read; empty between fields
	err   error
}

func (r *jsonReader) fail(format string, args ...any) {
	if r.err != nil {
		return
	}
	if r.err = fmt.Errorf(format, args...); r.field != "" {
		r.err = fmt.Errorf("%s: %w", r.field, r.err)
	}
}

// next returns the first byte of the next token; 0 at the end.
func (r *jsonReader) next() byte {
	if r.err != nil {
		return 0
	}
	for r.at < len(r.text) && (r.text[r.at] == ' ' || r.text[r.at] == '\t' || r.text[r.at] == '\r' ||
		r.text[r.at] == '\n') {
		r.at++
	}
	if r.token = r.at; r.at == len(r.text) {
		return 0
	}
	return r.text[r.at]
}

// take reads a token if it is the next one.
func (r *jsonReader) take(token string) bool {
	r.next()
	if r.err != nil || !bytes.HasPrefix(r.text[r.at:], []byte(token)) {
		return false
	}
	r.at += len(token)
	return true
}

// expect reads a token that must be there. Another one may be there too, for the message.
func (r *jsonReader) expect(token string, other ...string) {
	if !r.take(token) {
		r.fail("here must be %s", yamlform.List(append(other, token), "or"))
	}
}

// fields yields the fields of an object that are not null, as indexes in names.
func (r *jsonReader) fields(names []string) iter.Seq[int] {
	return func(yield func(int) bool) {
		var seen uint32
		r.expect("{")
		if r.take("}") {
			return
		}
		for r.err == nil {
			name := r.raw()
			i := slices.IndexFunc(names, func(n string) bool { return n == string(name) })
			switch {
			case i < 0:
				r.fail("unknown field %s%s", yamlform.Quote(string(name)), meant(string(name), slices.Clone(names)))
				return
			case seen>>i&1 != 0:
				r.fail("the field %s twice", names[i])
				return
			}
			seen |= 1 << i
			if r.expect(":"); r.err != nil {
				return
			}
			if !r.take("null") && !yield(i) {
				return
			}
			if r.take("}") {
				return
			}
			r.expect(",", "}")
		}
	}
}

func (r *jsonReader) entries() (all []descriptor.Entry) {
	if !r.take("[") {
		r.fail(`it must be a list like [{"key": "tenant", "value": "acme"}]`)
	}
	for r.err == nil && (len(all) > 0 || r.next() != ']') {
		var e descriptor.Entry
		for i := range r.fields(jsonEntryNames) {
			*[]*string{&e.Key, &e.Value}[i] = string(r.raw())
		}
		if all = append(all, e); len(all) > MaxEntries {
			r.fail("more than %d", MaxEntries)
		}
		if !r.take(",") {
			break
		}
	}
	r.expect("]", ",")
	return all
}

// raw reads a text. The bytes are valid as long as the text of the reader.
func (r *jsonReader) raw() []byte {
	if r.next() != '"' {
		r.fail("here must be a text in quotes")
		return nil
	}
	escaped := false
	for r.at++; r.at < len(r.text); r.at++ {
		switch c := r.text[r.at]; {
		case c == '"':
			if r.at++; !escaped {
				return r.text[r.token+1 : r.at-1]
			}
			return r.unescaped(r.text[r.token:r.at])
		case c == '\\':
			escaped = true
			r.at++
		case c < ' ':
			r.fail("a control character in a text: write it as \\u%04x", c)
			return nil
		}
	}
	r.at = len(r.text)
	r.fail("a text without its end")
	return nil
}

func (r *jsonReader) unescaped(quoted []byte) []byte {
	var s string
	if err := json.Unmarshal(quoted, &s); err != nil {
		r.fail("%w", err)
	}
	// encoding/json reads half of a surrogate pair as this character.
	if n := strings.Count(s, "\ufffd"); n > 0 && n > bytes.Count(quoted,
		[]byte("\ufffd"))+bytes.Count(bytes.ToLower(quoted), []byte(`\ufffd`)) {
		r.fail("half of a surrogate pair in a text")
	}
	return []byte(s)
}

// number returns the text of a number.
func (r *jsonReader) number() []byte {
	r.next()
	for r.at < len(r.text) && (r.text[r.at] >= '0' && r.text[r.at] <= '9' ||
		bytes.IndexByte([]byte("+-.eE"), r.text[r.at]) >= 0) {
		r.at++
	}
	return r.text[r.token:r.at]
}

// whole reads a whole number, with or without quotes.
func (r *jsonReader) whole(most uint64) uint64 {
	var text string
	if r.next() == '"' {
		text = string(r.raw())
	} else {
		text = string(r.number())
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil || n > most || len(text) > 1 && text[0] == '0' {
		r.fail("it must be a whole number from 0 to %d", most)
		return 0
	}
	return n
}

func (r *jsonReader) decimal() (n float64) {
	if json.Unmarshal(r.number(), &n) != nil {
		r.fail("it must be a number like 1.5")
	}
	return n
}

func (r *jsonReader) bool() bool {
	is := r.take("true")
	if !is && !r.take("false") {
		r.fail("it must be true or false")
	}
	return is
}

func (r *jsonReader) time() time.Time {
	t, err := time.Parse(time.RFC3339, string(r.raw()))
	if t = t.UTC(); err != nil || t.Year() < 1 || t.Year() > 9999 {
		r.fail("it must be a time like 2026-03-01T12:00:00Z")
	}
	return t
}
