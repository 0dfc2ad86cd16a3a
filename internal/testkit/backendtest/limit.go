package backendtest

import (
	"fmt"
	"strconv"
	"strings"
	"time"
	_ "time/tzdata" // time zones are the same on every machine

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// parseLimit reads REQUESTS/WINDOW, which is a fixed window on the clock. Words after commas make it another limit:
//
//	first_hit | in=ZONE | class=N,guaranteed=PERCENT:PERCENT... | sliding | precision=N | log | token | burst=N |
//	interval | leaky | nodelay=N | nodelay=all | places
//
// These allow reservations of at most ten minutes, which their end charges; max_share is in parts per million:
//
//	reservations | release | max_share=N | max_outstanding=N
func parseLimit(s string) (*descriptor.Limit, error) {
	words := strings.Split(s, ",")
	requests, window, ok := strings.Cut(words[0], "/")
	if !ok {
		return nil, fmt.Errorf("a limit is REQUESTS/WINDOW, not %q", words[0])
	}
	n, err := strconv.ParseUint(requests, 10, 53)
	if err != nil {
		return nil, err
	}
	l := &descriptor.Limit{Requests: n}
	if l.Window, err = parseWindow(window); err != nil {
		return nil, err
	}
	for _, word := range words[1:] {
		name, value, _ := strings.Cut(word, "=")
		n, notNumber := strconv.ParseUint(value, 10, 53)
		needed := error(nil)
		switch name {
		case "first_hit":
			l.FirstHit = true
		case "in":
			l.Window.Location, needed = time.LoadLocation(value)
		case "class":
			l.Algorithm, l.Classes.Class, needed = descriptor.SharedWindow, uint8(n), notNumber
		case "guaranteed":
			for i, percent := range strings.Split(value, ":") {
				p, err := strconv.ParseUint(percent, 10, 8)
				if err != nil {
					return nil, err
				}
				l.Classes.Percent[i] = uint8(p)
			}
		case "sliding":
			l.Algorithm = descriptor.SlidingWindow
		case "precision":
			l.Precision, needed = uint32(n), notNumber
		case "log":
			l.Algorithm = descriptor.SlidingLog
		case "token":
			l.Algorithm = descriptor.TokenBucket
		case "burst":
			l.Burst, needed = n, notNumber
		case "interval":
			l.Interval = true
		case "leaky":
			l.Algorithm = descriptor.LeakyBucket
		case "places":
			l.Algorithm = descriptor.Concurrency
		case "nodelay":
			if l.NoDelay = descriptor.NoDelayAll; value != "all" {
				l.NoDelay, needed = uint32(n), notNumber
			}
		case "reservations":
			allow(l)
		case "release":
			allow(l).Release = true
		case "max_share":
			allow(l).MaxShare, needed = uint32(n), notNumber
		case "max_outstanding":
			allow(l).MaxOutstanding, needed = int(n), notNumber
		default:
			return nil, fmt.Errorf("unknown word %q in the limit %q", word, s)
		}
		if needed != nil {
			return nil, needed
		}
	}
	if err := l.Compile(); err != nil {
		return nil, fmt.Errorf("compile limit %q: %w", s, err)
	}
	return l, nil
}

// allow returns the bounds of a limit's reservations. It allows reservations if the limit did not.
func allow(l *descriptor.Limit) *descriptor.Reservations {
	if l.Reservations == nil {
		bounds := descriptor.DefaultReservations()
		l.Reservations = &bounds
	}
	return l.Reservations
}

// Limit reads a limit in the form that the scripts use. It panics if there is a mistake in it.
func Limit(s string) *descriptor.Limit {
	l, err := parseLimit(s)
	if err != nil {
		panic(err)
	}
	return l
}

// limitText is the limit in the form that parseLimit reads.
func limitText(l *descriptor.Limit) string {
	b := fmt.Sprintf("%d/%v", l.Requests, l.Window.Length())
	if l.Algorithm == descriptor.SharedWindow {
		b += fmt.Sprintf(",class=%d,guaranteed=%s", l.Classes.Class,
			strings.ReplaceAll(strings.Trim(fmt.Sprint(l.Classes.Percent), "[]"), " ", ":"))
	}
	if l.FirstHit {
		b += ",first_hit"
	}
	if l.Window.Location != nil {
		b += ",in=" + l.Window.Location.String()
	}
	switch l.Algorithm {
	case descriptor.SlidingWindow:
		b += fmt.Sprintf(",sliding,precision=%d", l.Precision)
	case descriptor.SlidingLog:
		b += ",log"
	case descriptor.TokenBucket:
		b += fmt.Sprintf(",token,burst=%d", l.Burst)
	case descriptor.Concurrency:
		b += ",places"
	case descriptor.LeakyBucket:
		b += fmt.Sprintf(",leaky,burst=%d,nodelay=%d", l.Burst, l.NoDelay)
	}
	if l.Interval {
		b += ",interval"
	}
	if r := l.Reservations; r != nil {
		b += fmt.Sprintf(",reservations,max_share=%d,max_outstanding=%d", r.MaxShare, r.MaxOutstanding)
		if r.Release {
			b += ",release"
		}
	}
	return b
}

// key is the key that descriptor.KeyBuilder makes for the counter of a limit with this name.
func key(prefix, name string, l *descriptor.Limit) []byte {
	return descriptor.KeyBuilder{Prefix: prefix}.AppendKey(nil, name, nil, nil, l)
}

// parseWindow reads 10ms, 10s, 5m, 1h, 1d, 1w, 1mo or 1y.
func parseWindow(s string) (descriptor.Window, error) {
	digits := strings.TrimRight(s, "abcdefghijklmnopqrstuvwxyz")
	n, err := strconv.ParseUint(digits, 10, 32)
	if err != nil {
		return descriptor.Window{}, fmt.Errorf("read window %q: %w", s, err)
	}
	units := map[string]descriptor.Unit{
		"ms": descriptor.Millisecond, "s": descriptor.Second, "m": descriptor.Minute, "h": descriptor.Hour,
		"d": descriptor.Day,
		"w": descriptor.Week, "mo": descriptor.Month, "y": descriptor.Year,
	}
	unit, ok := units[s[len(digits):]]
	if !ok {
		return descriptor.Window{}, fmt.Errorf("read window %q: unknown unit", s)
	}
	return descriptor.Window{Unit: unit, Multiplier: uint32(n)}, nil
}

// EveryAlgorithm returns limits of n hits, one for every way to keep a counter. Their windows are so long that no hit
// leaves a window during a test, regardless of the test's clock.
func EveryAlgorithm(n int) map[string]*descriptor.Limit {
	return map[string]*descriptor.Limit{
		"fixed window":              Limit(fmt.Sprintf("%d/1y", n)),
		"fixed window, first hit":   Limit(fmt.Sprintf("%d/1y,first_hit", n)),
		"fixed window, calendar":    Limit(fmt.Sprintf("%d/1y,in=Asia/Seoul", n)),
		"fixed window, classes":     Limit(fmt.Sprintf("%d/1y,class=1,guaranteed=100", n)),
		"sliding window":            Limit(fmt.Sprintf("%d/1y,sliding", n)),
		"sliding window, precision": Limit(fmt.Sprintf("%d/1y,sliding,precision=5", n)),
		"sliding log":               Limit(fmt.Sprintf("%d/1y,log", n)),
		"token bucket":              Limit(fmt.Sprintf("1000/1y,token,burst=%d", n)),
		"token bucket, interval":    Limit(fmt.Sprintf("1000/1y,token,interval,burst=%d", n)),
		"leaky bucket":              Limit(fmt.Sprintf("1000/1y,leaky,burst=%d", n-1)),
		"leaky bucket, nodelay":     Limit(fmt.Sprintf("1000/1y,leaky,nodelay=all,burst=%d", n-1)),
		"concurrency":               Limit(fmt.Sprintf("%d/1y,places", n)),
	}
}
