package descriptor

import (
	"fmt"
	"strconv"
	"strings"
)

// Words describes a limit for people: "5 per 30 seconds, token bucket, burst 10".
func (l *Limit) Words() string {
	var b strings.Builder
	if l.Algorithm == Concurrency {
		fmt.Fprintf(&b, "%d in flight, each for at most %s", l.Requests, l.TTL())
	} else {
		fmt.Fprintf(&b, "%d per %s, %s", l.Requests, l.Window.Words(), strings.ReplaceAll(l.Algorithm.String(), "_", " "))
	}
	if l.Window.Location != nil {
		b.WriteString(" on the calendar of " + l.Window.Location.String())
		if l.Window.WeekStart > 0 {
			b.WriteString(", weeks from " + WeekStartNames[l.Window.WeekStart])
		}
	}
	if words := algorithms[l.Algorithm].words; words != nil {
		b.WriteString(words(l))
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
	b.WriteString(l.PenaltyWords())
	if l.Reservations != nil {
		b.WriteString(", reservations " + l.Reservations.Words())
	}
	b.WriteString(l.EnforcementWords())
	return b.String()
}

func fromFirstHit(l *Limit) string {
	if l.FirstHit {
		return " from the first hit"
	}
	return ""
}

func withoutDelay(l *Limit) string {
	switch l.NoDelay {
	case 0:
		return ""
	case NoDelayAll:
		return " without delay"
	default:
		return ", " + strconv.FormatUint(uint64(l.NoDelay), 10) + " of them without delay"
	}
}

// TTL returns how long a place of a concurrency limit stays taken, as rule files write it: "30s", "1m", "1h30m".
func (l *Limit) TTL() string { return words(l.Window.Length()) }

// Words returns the window's length for people: "minute", "30 seconds".
func (w Window) Words() string {
	if w.Multiplier > 1 {
		return strconv.FormatUint(uint64(w.Multiplier), 10) + " " + w.Unit.String() + "s"
	}
	return w.Unit.String()
}
