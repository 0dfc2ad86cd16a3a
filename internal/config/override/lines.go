package override

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"math"
	"strconv"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/ratelimitd/ratelimitd/internal/config/entries"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// maxYAMLKey is how long a key of a YAML map may be on one line, if each byte is escaped: YAML allows 1,024 bytes.
const maxYAMLKey = 1000 / len(`\u0000`)

// maxLine bounds a line of a file, in bytes.
const maxLine = 1 << 20

// AppendLine appends an override as one line, which is an item of the list in a file of overrides, written as JSON. Lines reads it. ReadFile
// does too, unless entries cannot be written as key=value and one of their keys has more than maxYAMLKey bytes. A file of such lines may be of any
// size.
func AppendLine(b []byte, o *Override) []byte {
	b = appendJSON(append(b, `- {"domain":`...), o.Domain)
	text := func(key, text string) {
		if text != "" {
			b = appendJSON(append(b, key...), text)
		}
	}
	number := func(key string, n uint64) { b = strconv.AppendUint(append(b, key...), n, 10) }
	seconds := func(key string, at int64) {
		if at != 0 {
			b = append(time.Unix(at, 0).UTC().AppendFormat(append(b, key...), time.RFC3339), '"')
		}
	}
	text(`,"rule":`, o.Rule)
	text(`,"limit":`, o.Limit)
	b = append(b, `,"entries":`...)
	if writableAsText(o.Entries) {
		b = appendJSON(b, entries.Format(o.Entries))
	} else {
		for i, e := range o.Entries {
			b = appendJSON(append(b, "[,"[min(i, 1)], '{'), e.Key)
			b = append(appendJSON(append(b, ':'), e.Value), '}')
		}
		b = append(b, ']')
	}
	switch o.Kind {
	case Replace:
		number(`,"requests_per_unit":`, o.Requests)
		if o.Burst != 0 {
			number(`,"burst":`, o.Burst)
		}
	case Scale:
		b = append(append(b, `,"factor":`...), Factor(o.Requests)...)
	case Unlimited:
		b = append(b, `,"unlimited":true`...)
	case Blocked:
		b = append(b, `,"blocked":true`...)
	}
	seconds(`,"not_before":"`, o.NotBefore)
	seconds(`,"expires_at":"`, o.ExpiresAt)
	text(`,"reason":`, o.Reason)
	text(`,"author":`, o.Author)
	if o.Version != 0 {
		b = strconv.AppendInt(append(b, `,"version":`...), o.Version, 10)
	}
	if !o.Changed.IsZero() {
		b = append(o.Changed.UTC().AppendFormat(append(b, `,"changed_at":"`...), time.RFC3339Nano), '"')
	}
	return append(b, "}\n"...)
}

// appendJSON appends a JSON string that is a YAML string too. What cannot be seen is escaped, because YAML does not take some of
// it. encoding/json takes several times as long, which matters for a million lines.
func appendJSON(b []byte, s string) []byte {
	b = append(b, '"')
	for _, r := range s {
		switch {
		case r == '"', r == '\\':
			b = append(b, '\\', byte(r))
		case r >= ' ' && r < 0x7f:
			b = append(b, byte(r))
		case r > 0xffff || unicode.IsPrint(r):
			b = utf8.AppendRune(b, r)
		default:
			b = fmt.Appendf(b, `\u%04x`, r)
		}
	}
	return append(b, '"')
}

// line is an override as JSON, with the keys of a file.
type line struct {
	Domain    string      `json:"domain"`
	Rule      string      `json:"rule"`
	Limit     string      `json:"limit"`
	Entries   lineEntries `json:"entries"`
	Requests  *uint64     `json:"requests_per_unit"`
	Burst     uint64      `json:"burst"`
	Factor    float64     `json:"factor"`
	Unlimited bool        `json:"unlimited"`
	Blocked   bool        `json:"blocked"`
	NotBefore *time.Time  `json:"not_before"`
	ExpiresAt *time.Time  `json:"expires_at"`
	Reason    string      `json:"reason"`
	Author    string      `json:"author"`
	Version   int64       `json:"version"`
	Changed   *time.Time  `json:"changed_at"`
}

// lineEntries are entries in one of three forms: the two of a file, and a list of {"key": ..., "value": ...} as the admin API has it.
type lineEntries []descriptor.Entry

var errEntries = errors.New(`entries: write "key=value,key2=value2", or a list like [{"key": "value"}]`)

// UnmarshalJSON implements json.Unmarshaler.
func (l *lineEntries) UnmarshalJSON(data []byte) (err error) {
	*l = nil
	if data[0] == '"' {
		var text string
		if err := json.Unmarshal(data, &text); err != nil {
			return err //nolint:wrapcheck // Lines adds the file and the line
		}
		*l, err = entries.Parse(text)
		return err //nolint:wrapcheck // as above
	}
	var list []map[string]string
	if json.Unmarshal(data, &list) != nil {
		return errEntries
	}
	for _, one := range list {
		key, hasKey := one["key"]
		value, hasValue := one["value"]
		switch {
		case len(one) == 2 && hasKey && hasValue:
			*l = append(*l, descriptor.Entry{Key: key, Value: value})
		case len(one) == 1:
			for key, value := range one {
				*l = append(*l, descriptor.Entry{Key: key, Value: value})
			}
		default:
			return errEntries
		}
	}
	return nil
}

// parseLine reads a JSON object.
func parseLine(text []byte) (o Override, err error) {
	if !utf8.Valid(text) {
		return o, errors.New("it is not UTF-8")
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	var l line
	if err := d.Decode(&l); err != nil {
		return o, err //nolint:wrapcheck // Lines says where
	}
	if d.InputOffset() < int64(len(text)) {
		return o, errors.New("more than one value: write one override on each line")
	}
	o = Override{
		Identity: Identity{Domain: l.Domain, Rule: l.Rule, Limit: l.Limit, Entries: l.Entries},
		Numbers:  Numbers{Burst: l.Burst}, Reason: l.Reason, Author: l.Author, Version: l.Version,
	}
	kinds := 0
	kind := func(given bool, k Kind, requests uint64) {
		if given {
			kinds++
			o.Kind, o.Requests = k, requests
		}
	}
	kind(l.Unlimited, Unlimited, 0)
	kind(l.Blocked, Blocked, 0)
	kind(l.Factor != 0, Scale, uint64(min(max(math.Round(l.Factor*One), 0), math.MaxUint32)))
	if l.Requests != nil {
		kind(true, Replace, *l.Requests)
	}
	if kinds > 1 {
		return o, errors.New("write only one of requests_per_unit, factor, unlimited and blocked")
	}
	for _, t := range []struct {
		name string
		at   *time.Time
		to   *int64
	}{{"not_before", l.NotBefore, &o.NotBefore}, {"expires_at", l.ExpiresAt, &o.ExpiresAt}} {
		switch {
		case t.at == nil:
		case t.at.Nanosecond() != 0:
			return o, fmt.Errorf("%s: it must be a whole second", t.name)
		case t.at.Unix() <= 0:
			return o, fmt.Errorf("%s: it must lie between the years 1970 and 9999", t.name)
		default:
			*t.to = t.at.Unix()
		}
	}
	if l.Changed != nil {
		o.Changed = l.Changed.UTC()
	}
	return o, o.Validate()
}

// Lines reads overrides from lines. Each is a JSON object, without a prefix or after "- " as AppendLine writes it. Lines that are empty, comments or the
// beginning of the list are left out. It ends with the first error, which names the line; name is the name of the file.
func Lines(name string, from io.Reader) iter.Seq2[Override, error] {
	return func(yield func(Override, error) bool) {
		lines := bufio.NewScanner(from)
		lines.Buffer(make([]byte, 0, 64<<10), maxLine)
		n := 0
		fail := func(err error) { yield(Override{}, fmt.Errorf("%s:%d: %w", name, n, err)) }
		for lines.Scan() {
			n++
			text := bytes.TrimSpace(lines.Bytes())
			switch string(text) {
			case "", "overrides:", "overrides: []":
				continue
			}
			if text[0] == '#' {
				continue
			}
			text = bytes.TrimPrefix(text, []byte("- "))
			if text[0] != '{' {
				fail(fmt.Errorf(`no JSON object: a file of more than %d MiB has one override on each line, like {"domain": "api", ...}`, MaxFileSize>>20))
				return
			}
			o, err := parseLine(text)
			if _, ok := errors.AsType[*json.SyntaxError](err); ok {
				err = fmt.Errorf("no JSON object: %w: a file of more than %d MiB has one JSON object on each line", err, MaxFileSize>>20)
			}
			if err != nil {
				fail(err)
				return
			}
			if !yield(o, nil) {
				return
			}
		}
		switch err := lines.Err(); {
		case errors.Is(err, bufio.ErrTooLong):
			n++
			fail(fmt.Errorf("a line of more than %d KiB: write one override on each line", maxLine>>10))
		case err != nil:
			yield(Override{}, fmt.Errorf("read overrides: %w", err))
		}
	}
}
