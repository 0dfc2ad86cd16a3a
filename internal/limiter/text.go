package limiter

import (
	"strconv"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// draftName returns the quoted name of a limit, which the draft requires: the limit's own name, or one made from its window.
func draftName(l *descriptor.Limit) string {
	name := l.Name
	if name == "" {
		if name = l.Window.Unit.String(); l.Algorithm == descriptor.Concurrency {
			name = "in-flight"
		} else if l.Window.Multiplier > 1 {
			name = strconv.FormatUint(uint64(l.Window.Multiplier), 10) + "-" + name
		}
	}
	return string(appendQuoted(nil, name))
}

// appendQuoted appends a string in the syntax of structured fields: printable ASCII, with quotes and backslashes escaped.
// Other characters cannot be expressed and become question marks. A name that is too long for a header is cut.
func appendQuoted(b []byte, s string) []byte {
	b = append(b, '"')
	n := 0
	for _, r := range s {
		if n++; n > descriptor.MaxNameInHeader {
			break
		}
		switch {
		case r == '"' || r == '\\':
			b = append(b, '\\', byte(r))
		case r < ' ' || r > '~':
			b = append(b, '?')
		default:
			b = append(b, byte(r))
		}
	}
	return append(b, '"')
}

func seconds(d time.Duration) string {
	return strconv.FormatInt(int64(max(ceilSeconds(d), 0)/time.Second), 10)
}

// appendPrintable appends a name, or the beginning of a long one. Characters that no header may have become question marks.
func appendPrintable(b []byte, name string) []byte {
	most := len(b) + descriptor.MaxNameInHeader
	for _, r := range name {
		if len(b) == most {
			break
		}
		if r < ' ' || r > '~' {
			r = '?'
		}
		b = append(b, byte(r))
	}
	return b
}

// unixCeil returns a time in whole seconds since 1970, rounded up: a client that comes then does not come too early.
func unixCeil(t time.Time) int64 {
	s := t.Unix()
	if t.Nanosecond() > 0 {
		s++
	}
	return s
}

// windowSeconds returns a window's length in seconds: an int64, or a float64 if it is no whole number of them.
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
