package limiter

import (
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// draftNames are the quoted names of the limits of one field of the draft.
type draftNames struct {
	last string
	all  map[string]bool // nil while last is the only one
}

// next returns the name of one more limit, which the draft requires: the limit's own name, or one made from its window.
// A name that is in use gets a number.
func (n *draftNames) next(l *descriptor.Limit) string {
	name := l.Name
	if name == "" {
		if name = l.Window.Unit.String(); l.Algorithm == descriptor.Concurrency {
			name = "in-flight"
		} else if l.Window.Multiplier > 1 {
			name = strconv.FormatUint(uint64(l.Window.Multiplier), 10) + "-" + name
		}
	}
	quoted := string(appendQuoted(nil, name, 0))
	switch {
	case n.last == "":
		n.last = quoted
		return quoted
	case n.all == nil:
		n.all = map[string]bool{n.last: true}
	}
	for number := len(n.all); n.all[quoted]; number++ { // every number below is in use, or of another name
		quoted = string(appendQuoted(nil, name, number+1))
	}
	n.all[quoted] = true
	return quoted
}

// appendQuoted appends a name in the syntax of structured fields: printable ASCII, with quotes and backslashes escaped,
// and with a number unless that is 0. A name that is too long for a header is cut.
func appendQuoted(b []byte, name string, number int) []byte {
	b = append(b, '"')
	begin := len(b)
	for i, r := range name {
		if len(b)-begin >= descriptor.MaxNameInHeader {
			break
		}
		if r == '"' || r == '\\' {
			b = append(b, '\\')
		}
		b = appendSendable(b, name[i:], r)
	}
	if number > 0 {
		b = strconv.AppendInt(append(b, '-'), int64(number), 10)
	}
	return append(b, '"')
}

// appendSendable appends the first character of a text, which is r. The bytes of a character that no header may have
// are written as in URLs, so that different names stay different.
func appendSendable(b []byte, text string, r rune) []byte {
	if ' ' <= r && r <= '~' {
		return append(b, byte(r))
	}
	_, size := utf8.DecodeRuneInString(text)
	return appendPercent(b, text[:size])
}

func appendPercent(b []byte, s string) []byte {
	const digits = "0123456789ABCDEF"
	for i := range len(s) {
		b = append(b, '%', digits[s[i]>>4], digits[s[i]&15])
	}
	return b
}

// SafeName returns a limit's name as the protocol has it: without control characters, quotes and backslashes. Envoy
// writes it between quotes into a header, as it is: a line break in it would start another header.
func SafeName(name string) string {
	if !strings.ContainsFunc(name, unsafe) {
		return name
	}
	b := make([]byte, 0, len(name)+8)
	for i := range len(name) {
		if c := name[i]; unsafe(rune(c)) {
			b = appendPercent(b, name[i:i+1])
		} else {
			b = append(b, c)
		}
	}
	return string(b)
}

func unsafe(r rune) bool { return r < ' ' || r == 0x7f || r == '"' || r == '\\' }

// appendInteger appends a number as an integer of structured fields.
func appendInteger(b []byte, n uint64) []byte {
	return strconv.AppendUint(b, min(n, descriptor.MaxHeaderInteger), 10)
}

func seconds(d time.Duration) string {
	return strconv.FormatInt(int64(max(ceilSeconds(d), 0)/time.Second), 10)
}

// appendPrintable appends a name, truncated if it is long.
func appendPrintable(b []byte, name string) []byte {
	most := len(b) + descriptor.MaxNameInHeader
	for i, r := range name {
		if len(b) >= most {
			break
		}
		b = appendSendable(b, name[i:], r)
	}
	return b[:min(len(b), most)]
}

// unixCeil returns a time in whole seconds since 1970, rounded up: a client that comes then does not come too early.
func unixCeil(t time.Time) int64 {
	s := t.Unix()
	if t.Nanosecond() > 0 {
		s++
	}
	return s
}

// windowSeconds returns a window's length in seconds: an int64, or a float64 for a fraction of a second.
func windowSeconds(d time.Duration) any {
	if d%time.Second != 0 {
		return d.Seconds()
	}
	return int64(d / time.Second)
}

// Millis returns a time in milliseconds, rounded up.
func Millis(d time.Duration) int64 { return int64((d + time.Millisecond - 1) / time.Millisecond) }

// ceilSeconds rounds up to whole seconds, so that a client that waits this long does not return too early.
func ceilSeconds(d time.Duration) time.Duration {
	return (d + time.Second - 1) / time.Second * time.Second
}
