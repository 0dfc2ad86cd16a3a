package report

import (
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/ratelimitd/ratelimitd/internal/authoring/simulate"
)

// number writes 1234567 as 1,234,567.
func number(n int64) string {
	s := strconv.FormatInt(n, 10)
	start := 0
	if n < 0 {
		start = 1
	}
	for i := len(s) - 3; i > start; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// percent writes a share as a percentage.
func percent(n, of int64) string {
	if of == 0 {
		return "-"
	}
	share := 100 * float64(n) / float64(of)
	switch {
	case n == 0:
		return "0%"
	case share < 0.01:
		return "<0.01%"
	case share > 99.99 && n < of:
		return ">99.99%"
	case share < 10:
		return strconv.FormatFloat(share, 'f', 2, 64) + "%"
	default:
		return strconv.FormatFloat(share, 'f', 1, 64) + "%"
	}
}

// counted writes 1 customer, 2 customers.
func counted(n int64, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return number(n) + " " + what + "s"
}

func moment(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05") }

// clip shortens a text to a number of characters; 0 means any length.
func clip(s string, most int) string {
	if most == 0 || utf8.RuneCountInString(s) <= most {
		return s
	}
	return string([]rune(s)[:most-3]) + "..."
}

// span writes the time that the log covers.
func span(r *simulate.Report) string {
	from, to := moment(r.From), moment(r.To)
	if from[:10] == to[:10] {
		to = to[11:]
	}
	return from + " to " + to + " UTC"
}

// by writes a limit and its number of denials: its rule, shortened to most characters (0 means any length), and the
// limit.
func by(r simulate.DeniedBy, most int) string {
	name := clip(r.Rule, most)
	if limit := rate(r.Name, r.Limit, r.Burst); limit != "" {
		name += ", " + limit
	}
	return name + " (" + number(r.Requests) + ")"
}

// rate writes a limit with its name and its burst, if it has them: "login 5 per minute, burst 10".
func rate(name, limit, burst string) string {
	text := strings.TrimSpace(name + " " + limit)
	if burst == "" {
		return text
	}
	if strings.HasSuffix(burst, "wait") {
		return text + ", " + burst
	}
	return text + ", burst " + burst
}

// mostly returns the limit that denied a customer most. With two directories it prefers the one that newly denied it
// most.
func mostly(c *simulate.Customer, most int) string {
	switch {
	case len(c.NewlyDeniedBy) > 0:
		return by(c.NewlyDeniedBy[0], most)
	case len(c.DeniedBy) > 0:
		return by(c.DeniedBy[0], most)
	case len(c.OldDeniedBy) > 0:
		return by(c.OldDeniedBy[0], most) + " before"
	}
	return ""
}
