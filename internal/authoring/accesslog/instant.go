package accesslog

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/config/yamlform"
)

// The bounds of the times in a log, in microseconds since 1970.
var (
	earliest = time.Date(1970, 1, 1, 0, 0, 0, 0, time.UTC).UnixMicro()
	latest   = time.Date(2200, 1, 1, 0, 0, 0, 0, time.UTC).UnixMicro()
)

var errNoZone = errors.New("has no time zone: give the mapping's time a `zone`, UTC for example")

// parse reads a time, in microseconds since 1970.
func (l *layout) parse(b []byte) (int64, error) {
	at, err := l.read(string(b))
	switch {
	case errors.Is(err, errNoZone):
		return 0, fmt.Errorf("the time %s %w", yamlform.Quote(string(b)), err)
	case err != nil:
		return 0, fmt.Errorf("%s is not a time like %s", yamlform.Quote(string(b)), l.example())
	case at < earliest || at >= latest:
		return 0, fmt.Errorf("the time %s does not lie between 1970 and 2200", yamlform.Quote(string(b)))
	}
	return at, nil
}

func (l *layout) example() string {
	switch l.kind {
	case layoutRFC3339:
		return "2026-03-01T12:00:00.5Z (rfc3339)"
	case layoutUnix:
		return "1772366400.5 (unix)"
	case layoutUnixMilli:
		return "1772366400500 (unix_ms)"
	case layoutUnixMicro:
		return "1772366400500000 (unix_us)"
	case layoutUnixNano:
		return "1772366400500000000 (unix_ns)"
	case layoutCLF:
		return "01/Mar/2026:12:00:00 +0000 (clf)"
	default:
		return l.custom
	}
}

var errNoTime = errors.New("no time")

func (l *layout) read(text string) (int64, error) {
	switch l.kind {
	case layoutRFC3339:
		return l.rfc3339(text)
	case layoutCLF:
		return l.clf(text)
	case layoutUnix:
		return unix(text, 1_000_000)
	case layoutUnixMilli:
		return unix(text, 1000)
	case layoutUnixMicro:
		return unix(text, 1)
	case layoutUnixNano:
		n, err := strconv.ParseInt(text, 10, 64)
		return n / 1000, err
	}
	t, err := time.ParseInLocation(l.custom, text, l.zoneOrUTC())
	return t.UnixMicro(), err
}

func (l *layout) zoneOrUTC() *time.Location {
	if l.zone == nil {
		return time.UTC
	}
	return l.zone
}

// unix reads a number of units, which may have a fraction. unit is the length of a unit in microseconds.
func unix(text string, unit int64) (int64, error) {
	whole, fraction, has := strings.Cut(text, ".")
	n, err := strconv.ParseUint(whole, 10, 63)
	if err != nil || int64(n) > latest/unit || has && fraction == "" {
		return 0, errNoTime
	}
	at := int64(n) * unit
	for _, c := range []byte(fraction) {
		if c < '0' || c > '9' {
			return 0, errNoTime
		}
		unit /= 10
		at += int64(c-'0') * unit
	}
	return at, nil
}

// The ways to write a zone at the end of a text.
type zoneForm uint8

const (
	zoneAbsent zoneForm = iota
	zoneColon           // +09:00 or Z
	zonePlain           // +0900
)

// zoneFormOf returns the form of the zone in a text. The first behind bytes of the text are the date and time.
func zoneFormOf(text string, behind int) zoneForm {
	signAt := func(i int) bool { return i >= behind && (text[i] == '+' || text[i] == '-') }
	switch n := len(text); {
	case n > behind && (text[n-1] == 'Z' || text[n-1] == 'z'), signAt(n - 6):
		return zoneColon
	case signAt(n - 5):
		return zonePlain
	default:
		return zoneAbsent
	}
}

// rfc3339 reads 2006-01-02T15:04:05.999Z, including with lower-case letters, a blank instead of the T, or +0900 instead
// of +09:00.
func (l *layout) rfc3339(text string) (int64, error) {
	const second = len("2006-01-02T15:04:05")
	if len(text) < second || text[10] != 'T' && text[10] != 't' && text[10] != ' ' {
		return 0, errNoTime
	}
	form := zoneFormOf(text, second)
	// convert to the standard's form, which is read fastest
	if text[10] != 'T' || text[len(text)-1] == 'z' || form == zonePlain {
		text = text[:10] + "T" + strings.ToUpper(text[11:])
		if form == zonePlain {
			text = text[:len(text)-2] + ":" + text[len(text)-2:]
		}
	}
	if form == zoneAbsent {
		return l.local("2006-01-02T15:04:05", text)
	}
	return zoned(time.RFC3339, text)
}

// zoned reads a time with a zone. Package time takes offsets of 24 hours too.
func zoned(layout, text string) (int64, error) {
	t, err := time.Parse(layout, text)
	if _, offset := t.Zone(); max(offset, -offset) >= 24*60*60 {
		return 0, errNoTime
	}
	return t.UnixMicro(), err
}

// clf reads the time of the common log format, 02/Jan/2006:15:04:05 -0700.
func (l *layout) clf(text string) (int64, error) {
	const date = "02/Jan/2006:15:04:05"
	layout := date + " -0700"
	switch zoneFormOf(text, len(date)) {
	case zoneAbsent:
		return l.local(date, text)
	case zoneColon:
		layout = date + " -07:00"
	}
	return zoned(layout, text)
}

// local reads a time without a zone. The time is in the mapping's zone.
func (l *layout) local(layout, text string) (int64, error) {
	t, err := time.ParseInLocation(layout, text, l.zoneOrUTC())
	if err == nil && l.zone == nil {
		err = errNoZone
	}
	return t.UnixMicro(), err
}
