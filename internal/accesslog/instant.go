package accesslog

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/yamlform"
)

// instants reads times. Most lines of a log are of the day of the line before, so the day is worked out once.
type instants struct {
	layout layout
	date   [11]byte // as written, of the last time
	known  int      // how many bytes of date there are
	day    int64    // its midnight, in seconds since 1970
}

// The times that a log may tell, in microseconds since 1970.
var (
	earliest = time.Date(1970, 1, 1, 0, 0, 0, 0, time.UTC).UnixMicro()
	latest   = time.Date(2200, 1, 1, 0, 0, 0, 0, time.UTC).UnixMicro()
)

var errNoZone = errors.New("has no time zone: give the mapping's time a `zone`, UTC for example")

// parse reads a time, in microseconds since 1970.
func (p *instants) parse(b []byte) (int64, error) {
	at, err := p.read(b)
	switch {
	case errors.Is(err, errNoZone):
		return 0, fmt.Errorf("the time %s %w", yamlform.Quote(string(b)), err)
	case err != nil:
		return 0, fmt.Errorf("%s is no time like %s", yamlform.Quote(string(b)), p.layout.example())
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

func (p *instants) read(b []byte) (int64, error) {
	switch p.layout.kind {
	case layoutRFC3339:
		return p.rfc3339(b)
	case layoutCLF:
		return p.clf(b)
	case layoutUnix:
		return unix(b, 1_000_000)
	case layoutUnixMilli:
		return unix(b, 1000)
	case layoutUnixMicro:
		return unix(b, 1)
	case layoutUnixNano:
		n, err := strconv.ParseInt(string(b), 10, 64)
		return n / 1000, err
	}
	zone := p.layout.zone
	if zone == nil {
		zone = time.UTC
	}
	t, err := time.ParseInLocation(p.layout.custom, string(b), zone)
	return t.UnixMicro(), err
}

// unix reads a number of units of so many microseconds, with a fraction if there is one.
func unix(b []byte, unit int64) (int64, error) {
	i, whole := 0, int64(0)
	for ; i < len(b) && b[i]-'0' <= 9; i++ {
		if whole > 1<<53 {
			return 0, errNoTime
		}
		whole = whole*10 + int64(b[i]-'0')
	}
	if i == 0 || whole > latest/unit {
		return 0, errNoTime
	}
	at := whole * unit
	if i == len(b) {
		return at, nil
	}
	if b[i] != '.' || i+1 == len(b) {
		return 0, errNoTime
	}
	for i++; i < len(b) && b[i]-'0' <= 9; i++ {
		unit /= 10
		at += int64(b[i]-'0') * unit
	}
	if i < len(b) {
		return 0, errNoTime
	}
	return at, nil
}

// number reads so many digits; -1 if there are others.
func number(b []byte) int64 {
	n := int64(0)
	for _, c := range b {
		if c-'0' > 9 {
			return -1
		}
		n = n*10 + int64(c-'0')
	}
	return n
}

// remember gives the midnight of a date as written, working it out if it is another one than before.
func (p *instants) remember(b []byte, year, day int64, month time.Month) (int64, error) {
	t := time.Date(int(year), month, int(day), 0, 0, 0, 0, time.UTC)
	if year < 0 || day < 1 || month < 1 || month > 12 || t.Day() != int(day) {
		return 0, errNoTime
	}
	p.known = copy(p.date[:], b)
	p.day = t.Unix()
	return p.day, nil
}

// clock reads 15:04:05, in seconds; -1 if it is none.
func clock(b []byte) int64 {
	h, m, s := number(b[0:2]), number(b[3:5]), number(b[6:8])
	if b[2] != ':' || b[5] != ':' || h < 0 || h > 23 || m < 0 || m > 59 || s < 0 || s > 59 {
		return -1
	}
	return h*3600 + m*60 + s
}

// zone reads +0900 and +09:00, in seconds.
func zone(b []byte) (int64, bool) {
	if len(b) == 6 && b[3] == ':' {
		b = []byte{b[0], b[1], b[2], b[4], b[5]}
	}
	if len(b) != 5 || b[0] != '+' && b[0] != '-' {
		return 0, false
	}
	h, m := number(b[1:3]), number(b[3:5])
	if h < 0 || h > 23 || m < 0 || m > 59 {
		return 0, false
	}
	if b[0] == '-' {
		return -(h*3600 + m*60), true
	}
	return h*3600 + m*60, true
}

// rfc3339 reads 2006-01-02T15:04:05.999Z, with a blank in the place of T too.
func (p *instants) rfc3339(b []byte) (int64, error) {
	if len(b) < 19 || b[10] != 'T' && b[10] != 't' && b[10] != ' ' {
		return 0, errNoTime
	}
	day := p.day
	if p.known != 10 || string(p.date[:10]) != string(b[:10]) {
		if b[4] != '-' || b[7] != '-' {
			return 0, errNoTime
		}
		var err error
		month := number(b[5:7])
		if day, err = p.remember(b[:10], number(b[:4]), number(b[8:10]), time.Month(month)); err != nil {
			return 0, err
		}
	}
	seconds := clock(b[11:19])
	if seconds < 0 {
		return 0, errNoTime
	}
	micro := int64(0)
	rest := b[19:]
	if len(rest) > 1 && (rest[0] == '.' || rest[0] == ',') && rest[1]-'0' <= 9 {
		unit := int64(1_000_000)
		for rest = rest[1:]; len(rest) > 0 && rest[0]-'0' <= 9; rest = rest[1:] {
			unit /= 10
			micro += int64(rest[0]-'0') * unit
		}
	}
	at := (day+seconds)*1_000_000 + micro
	switch {
	case len(rest) == 1 && rest[0]|0x20 == 'z':
		return at, nil
	case len(rest) == 0:
		return p.local(at)
	}
	offset, ok := zone(rest)
	if !ok {
		return 0, errNoTime
	}
	return at - offset*1_000_000, nil
}

// local is what a time without a zone means.
func (p *instants) local(at int64) (int64, error) {
	if p.layout.zone == nil {
		return 0, errNoZone
	}
	if p.layout.zone == time.UTC {
		return at, nil
	}
	t := time.UnixMicro(at).UTC()
	return time.Date(t.Year(), t.Month(), t.Day(), t.Hour(), t.Minute(), t.Second(), t.Nanosecond(), p.layout.zone).UnixMicro(), nil
}

const months = "JanFebMarAprMayJunJulAugSepOctNovDec"

// clf reads the time of the common log format, 02/Jan/2006:15:04:05 -0700.
func (p *instants) clf(b []byte) (int64, error) {
	if len(b) < 20 || b[11] != ':' {
		return 0, errNoTime
	}
	day := p.day
	if p.known != 11 || string(p.date[:]) != string(b[:11]) {
		month := time.Month(0)
		for i := 0; i < len(months); i += 3 {
			if months[i:i+3] == string(b[3:6]) {
				month = time.Month(i/3 + 1)
			}
		}
		if b[2] != '/' || b[6] != '/' {
			return 0, errNoTime
		}
		var err error
		if day, err = p.remember(b[:11], number(b[7:11]), number(b[:2]), month); err != nil {
			return 0, err
		}
	}
	seconds := clock(b[12:20])
	if seconds < 0 {
		return 0, errNoTime
	}
	at := (day + seconds) * 1_000_000
	if len(b) == 20 {
		return p.local(at)
	}
	offset, ok := int64(0), false
	if b[20] == ' ' {
		offset, ok = zone(b[21:])
	}
	if !ok {
		return 0, errNoTime
	}
	return at - offset*1_000_000, nil
}
