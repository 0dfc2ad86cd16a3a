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
	for i := range LimitFacts {
		if words := LimitFacts[i].words; words != nil {
			b.WriteString(words(&RuleLimit{Limit: l}))
		}
	}
	b.WriteString(l.EnforcementWords())
	return b.String()
}

// algorithmWords describes the settings that only the limit's algorithm has.
func (l *Limit) algorithmWords() string {
	if words := algorithms[l.Algorithm].words; words != nil {
		return words(l)
	}
	return ""
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

// CalendarWords names the calendar that the window follows: " on the calendar of UTC". It is empty for a window on the
// clock.
func (w Window) CalendarWords() string {
	return when(w.Location != nil, " on the calendar of "+w.Location.String())
}
