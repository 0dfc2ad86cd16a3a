package terminal

import (
	"fmt"
	"strings"
	"time"
)

const day = 24 * time.Hour

// Span formats a duration with the precision that people need, rounded up: 1d12h, 3m20s, 2.5s, 17ms, 430us.
func Span(d time.Duration) string {
	if d < 0 {
		return "-" + Span(-d)
	}
	switch {
	case d >= time.Minute:
		d = roundUp(d, time.Second)
	case d >= 10*time.Second:
		d = roundUp(d, 100*time.Millisecond)
	case d >= 10*time.Millisecond:
		d = roundUp(d, time.Millisecond)
	default:
		d = roundUp(d, time.Microsecond)
	}
	if d < time.Minute {
		return strings.Replace(d.String(), "µs", "us", 1)
	}
	var b strings.Builder
	for _, part := range []struct {
		of   time.Duration
		name string
	}{{day, "d"}, {time.Hour, "h"}, {time.Minute, "m"}, {time.Second, "s"}} {
		if n := d / part.of; n > 0 {
			fmt.Fprintf(&b, "%d%s", n, part.name)
			d -= n * part.of
		}
	}
	return b.String()
}

func roundUp(d, unit time.Duration) time.Duration {
	if rest := d % unit; rest > 0 {
		return d - rest + unit
	}
	return d
}
