package descriptor

import (
	"fmt"
	"strconv"
	"strings"
)

// Words says what a limit is, for people: "5 per 30 seconds, token bucket, burst 10".
func (l *Limit) Words() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d per %s, %s", l.Requests, l.Window.Words(), strings.ReplaceAll(l.Algorithm.String(), "_", " "))
	if l.Window.Location != nil {
		b.WriteString(" on the calendar of " + l.Window.Location.String())
	}
	if l.FirstHit && l.Algorithm == FixedWindow {
		b.WriteString(" from the first hit")
	}
	switch l.Algorithm {
	case SlidingWindow:
		if l.Precision > 1 {
			fmt.Fprintf(&b, ", precision %d", l.Precision)
		}
	case TokenBucket:
		fmt.Fprintf(&b, ", burst %d", l.Burst)
		if l.Interval {
			b.WriteString(", refilled at intervals")
			if l.FirstHit {
				b.WriteString(" from the first hit")
			}
		}
	case LeakyBucket:
		fmt.Fprintf(&b, ", %d may wait", l.Burst)
		switch l.NoDelay {
		case 0:
		case NoDelayAll:
			b.WriteString(" without delay")
		default:
			b.WriteString(", " + strconv.FormatUint(uint64(l.NoDelay), 10) + " of them without delay")
		}
	}
	switch l.CountDenied {
	case DeniedCount:
		b.WriteString(", refused hits count")
	case DeniedDrop:
		b.WriteString(", refused hits do not count")
	}
	if l.Lease {
		b.WriteString(", leased")
	}
	return b.String()
}

// Words is the window's length for people: "minute", "30 seconds".
func (w Window) Words() string {
	if w.Multiplier > 1 {
		return strconv.FormatUint(uint64(w.Multiplier), 10) + " " + w.Unit.String() + "s"
	}
	return w.Unit.String()
}
