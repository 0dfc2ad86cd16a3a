package descriptor

import (
	"fmt"
	"math"
	"strings"
	"time"
)

// Active is when a limit applies. The zero value is always, in UTC.
type Active struct {
	From, Until int64 // seconds since the Unix epoch: from From on, and before Until; 0 without a bound

	// Days has a bit for each time.Weekday; 0 means every day. Begin and End are the hours of a day, in minutes from local
	// midnight: from Begin on, and before End. If End comes first, the hours end on the next day, and Days are the days on
	// which they start. If both are equal, they are the whole day.
	Days       uint8
	Begin, End uint16

	Zone *time.Location // time zone of days and hours; nil means UTC
}

// At reports whether the limit applies at a time. Days and hours are those of a clock in the zone. So an hour that the
// clock shows twice counts twice, and one that it skips does not count.
func (a *Active) At(now time.Time) bool {
	seconds := now.Unix()
	if a.From != 0 && seconds < a.From || a.Until != 0 && seconds >= a.Until {
		return false
	}
	if a.unbounded() {
		return true
	}
	days, minute := a.dayAndSecond(seconds)
	minute /= 60
	begin, end := int64(a.Begin), int64(a.End)
	switch {
	case begin == end:
	case begin < end && (minute < begin || minute >= end), begin > end && minute < begin && minute >= end:
		return false
	case begin > end && minute < end:
		days-- // the hours started on the day before
	}
	weekday := (days%7 + 7 + int64(time.Thursday)) % 7 // the Unix epoch was a Thursday
	return a.Days == 0 || a.Days&(1<<weekday) != 0
}

// unbounded reports whether the limit applies at all hours of all days.
func (a *Active) unbounded() bool { return a.Days == 0 && a.Begin == a.End }

const secondsPerDay = 24 * 60 * 60

// dayAndSecond returns the day since the Unix epoch and the second of the day that a clock in the zone shows.
func (a *Active) dayAndSecond(seconds int64) (day, second int64) {
	if a.Zone != nil && a.Zone != time.UTC {
		_, offset := time.Unix(seconds, 0).In(a.Zone).Zone()
		seconds += int64(offset)
	}
	day, second = seconds/secondsPerDay, seconds%secondsPerDay
	if second < 0 {
		return day - 1, second + secondsPerDay
	}
	return day, second
}

// Forever is longer than any wait.
const Forever time.Duration = math.MaxInt64

// Left returns how long a limit that applies now continues to apply, or most if that is longer.
func (a *Active) Left(now time.Time, most time.Duration) time.Duration {
	if a.Until != 0 {
		most = min(most, time.Unix(a.Until, 0).Sub(now))
	}
	if a.unbounded() {
		return most
	}
	// Days and hours repeat every week. A limit that applies for two weeks has no hour without it.
	for at := now.Unix(); at < now.Unix()+14*secondsPerDay; {
		at = a.change(at)
		left := time.Unix(at, 0).Sub(now)
		if left >= most || !a.At(time.Unix(at, 0)) {
			return min(left, most)
		}
	}
	return most
}

// change returns the next time after a time at which the limit may start or stop to apply: an hour of Begin or End, a
// midnight, or a change of the clock in the zone.
func (a *Active) change(seconds int64) int64 {
	_, second := a.dayAndSecond(seconds)
	next := seconds - second + secondsPerDay
	for _, minute := range [...]uint16{a.Begin, a.End} {
		at := seconds - second + int64(minute)*60
		if at <= seconds {
			at += secondsPerDay
		}
		next = min(next, at)
	}
	if a.Zone != nil && a.Zone != time.UTC {
		if _, end := time.Unix(seconds, 0).In(a.Zone).ZoneBounds(); !end.IsZero() {
			next = min(next, end.Unix())
		}
	}
	return next
}

// Words describes the time for people: "on saturday and sunday from 22:00 to 06:00 in Europe/Berlin, until 2026-12-24
// 00:00".
func (a *Active) Words() string {
	var parts []string
	zone := a.Zone
	if zone == nil {
		zone = time.UTC
	}
	var names []string
	for i, name := range WeekdayNames {
		if a.Days&(1<<weekdays[i]) != 0 {
			names = append(names, name)
		}
	}
	if len(names) > 0 {
		parts = append(parts, "on "+strings.Join(names, ", "))
	}
	if a.Begin != a.End {
		parts = append(parts, fmt.Sprintf("from %02d:%02d to %02d:%02d", a.Begin/60, a.Begin%60, a.End/60, a.End%60))
	}
	const form = "2006-01-02 15:04"
	if a.From != 0 {
		parts = append(parts, "since "+time.Unix(a.From, 0).In(zone).Format(form))
	}
	if a.Until != 0 {
		parts = append(parts, "until "+time.Unix(a.Until, 0).In(zone).Format(form))
	}
	return strings.Join(append(parts, "in "+zone.String()), " ")
}

// WeekdayNames are the days of the week in rule files, from Monday on.
var WeekdayNames = []string{"monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"}

// weekdays are the days of WeekdayNames.
var weekdays = []time.Weekday{time.Monday, time.Tuesday, time.Wednesday, time.Thursday, time.Friday, time.Saturday,
	time.Sunday}

// DayBit returns the bit in Active.Days of the day with this index in WeekdayNames.
func DayBit(i int) uint8 { return 1 << weekdays[i] }

// LimitWords describes a limit of the rule for people, with the time when it applies.
func (r *Rule) LimitWords(limit int) string {
	words := r.Limits[limit].Words()
	if s := r.ScaleOf(limit); s != nil {
		words += ", " + s.Words()
	}
	if c := r.ClassesOf(limit); c != nil {
		words += ", " + c.Words()
	}
	if a := r.ActiveTimes(limit); a != nil {
		words += ", only " + a.Words()
	}
	return words
}

// Schedule is when the limits of a rule apply.
type Schedule struct {
	Active []*Active // schedule of each limit; nil for always
}

// Scheduled reports whether a limit of the rule applies only at some times.
func (r *Rule) Scheduled() bool { return r.Schedule != nil }

// ActiveTimes returns when a limit of the rule applies, or nil if it always applies.
func (r *Rule) ActiveTimes(limit int) *Active {
	if r.Schedule == nil {
		return nil
	}
	return r.Schedule.Active[limit]
}

// ActiveAt reports whether a limit of the rule applies at a time.
func (r *Rule) ActiveAt(limit int, now time.Time) bool {
	a := r.ActiveTimes(limit)
	return a == nil || a.At(now)
}
