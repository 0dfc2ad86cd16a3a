package ruletest

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/config/yamlform"
)

// readSpan reads a duration that is not negative.
func readSpan(v yamlform.Value, name string) (time.Duration, bool) {
	if !v.IsScalar() {
		v.Errorf("`%s` must be a duration like 30s or 1d12h, not %s", name, v.What())
		return 0, false
	}
	d, err := parseSpan(v.Written())
	if err != nil {
		v.Errorf("`%s`: %v", name, err)
	}
	return d, err == nil
}

// readInstant reads a time: RFC 3339, or a date without a time, which means midnight UTC.
func readInstant(v yamlform.Value) time.Time {
	t, ok := parseInstant(v.Written())
	switch {
	case !ok:
		v.Errorf("`start` must be a time like 2026-03-01T12:00:00Z or a date like 2026-03-01, not %s", v.What())
	case t.Year() < 1970 || t.Year() > 2200:
		v.Errorf("`start` must lie between 1970 and 2200")
	}
	return t
}

func parseInstant(text string) (time.Time, bool) {
	for _, layout := range []string{time.RFC3339Nano, time.DateOnly} {
		if t, err := time.Parse(layout, text); err == nil {
			return t.UTC().Truncate(time.Microsecond), true
		}
	}
	return time.Time{}, false
}

const day = 24 * time.Hour

// parseSpan parses a duration: numbers with units, like 1d12h or 2.5s. The units are w (weeks), d (days), and Go's h,
// m, s, ms and us. The duration must be whole microseconds, because the engine has no finer time.
func parseSpan(s string) (time.Duration, error) {
	if s == "0" {
		return 0, nil
	}
	bad := fmt.Errorf("%s is not a duration: write numbers with units w, d, h, m, s, ms or us, like 30s or 1d12h",
		yamlform.Quote(s))
	if _, err := strconv.ParseFloat(s, 64); err == nil {
		return 0, fmt.Errorf("%s is a duration without a unit: did you mean %ss?", yamlform.Quote(s), yamlform.Clip(s))
	}
	total := time.Duration(0)
	for rest := s; rest != ""; {
		digits := len(rest) - len(strings.TrimLeft(rest, "0123456789."))
		after := strings.TrimLeft(rest[digits:], "abcdefghijklmnopqrstuvwxyzµμ")
		number, unit := rest[:digits], rest[digits:len(rest)-len(after)]
		rest = after
		scale := int64(1)
		switch unit {
		case "w":
			unit, scale = "h", 7*24
		case "d":
			unit, scale = "h", 24
		}
		d, err := time.ParseDuration(number + unit)
		if err != nil {
			return 0, bad
		}
		if d > (math.MaxInt64-total)/time.Duration(scale) {
			return 0, fmt.Errorf("%s is longer than 292 years", yamlform.Quote(s))
		}
		total += d * time.Duration(scale)
	}
	if s == "" {
		return 0, bad
	}
	if total%time.Microsecond != 0 {
		return 0, fmt.Errorf("%s is not a whole number of microseconds, the smallest unit of time here", yamlform.Quote(s))
	}
	return total, nil
}

// formatSpan writes a duration as parseSpan reads it: 1d12h, 2.5s, 0s.
func formatSpan(d time.Duration) string {
	if d < 0 {
		return "-" + formatSpan(-d)
	}
	var b strings.Builder
	if d >= day {
		fmt.Fprintf(&b, "%dd", d/day)
		d %= day
	}
	if d >= time.Hour {
		fmt.Fprintf(&b, "%dh", d/time.Hour)
		d %= time.Hour
	}
	if d >= time.Minute {
		fmt.Fprintf(&b, "%dm", d/time.Minute)
		d %= time.Minute
	}
	if d > 0 || b.Len() == 0 {
		b.WriteString(d.String())
	}
	return b.String()
}
