package descriptor

import "time"

// Window is the span of time that a limit counts in: Multiplier units, on the clock or on a calendar.
type Window struct {
	// Location makes the windows follow the calendar of a time zone: local midnight, weeks, real months and years. It is
	// only for units of a day and longer. Windows of several units are counted from 1 January 1970, of weeks from the week
	// of that day. So a window of 3 months is a quarter of a year. Nil means windows of equal length, counted from the
	// Unix epoch.
	Location *time.Location

	Multiplier uint32 // 0 means 1
	Unit       Unit

	// WeekStart is the first day of the weeks of a calendar, as days after Monday: 6 is Sunday.
	WeekStart uint8

	// Named means that the protocol's unit name stands for this window although it follows a calendar. It is set for
	// months if the operator wants all of them to be calendar months.
	Named bool
}

// Length returns the window's length. For a calendar window it is the nominal length; LengthAt returns the real one.
func (w Window) Length() time.Duration {
	return w.Unit.Length() * time.Duration(max(w.Multiplier, 1))
}

// LengthAt returns the length of the window that contains a time. Months, years and days on the calendar have different
// lengths.
func (w Window) LengthAt(now time.Time) time.Duration {
	if w.Location == nil {
		return w.Length()
	}
	start, end := w.Bounds(now.UnixMicro())
	return time.Duration(end-start) * time.Microsecond
}

// OnWire returns the unit and the multiplier of the protocol's current_limit: 0 means 1. The unit is UnitUnknown if the
// protocol cannot express the window: a calendar's, unless it is Named, or milliseconds.
func (w Window) OnWire() (unit Unit, multiplier uint32) {
	switch {
	case w.Location != nil && !w.Named || !w.Unit.OnWire():
		return UnitUnknown, 0
	case w.Multiplier == 1:
		return w.Unit, 0
	}
	return w.Unit, w.Multiplier
}

// CalendarMonth turns a window of one month on the clock into the calendar month in UTC, which the protocol's unit
// MONTH then stands for. It reports whether it changed the window.
func (w *Window) CalendarMonth() bool {
	if w.Unit != Month || w.Multiplier > 1 || w.Location != nil {
		return false
	}
	w.Location, w.Named = time.UTC, true
	return true
}

// Bounds returns the start (inclusive) and the end (exclusive) of the window that contains now. All three are in
// microseconds since the Unix epoch.
func (w Window) Bounds(now int64) (start, end int64) {
	if w.Location != nil {
		return w.calendar(now)
	}
	length := w.Length().Microseconds()
	if length <= 0 {
		return now, now
	}
	phase := now % length
	if phase < 0 {
		phase += length
	}
	return now - phase, now - phase + length
}

// calendar returns the bounds of the calendar window that contains now. A window starts when the local date first
// reaches its first day. So windows neither overlap nor leave a gap when a zone changes its offset around midnight: a
// day that the zone skips has no window, and the repeated part of a day that has ended belongs to the next day.
func (w Window) calendar(now int64) (start, end int64) {
	for number := w.Number(now); ; number++ {
		if end = w.begins(number + 1); now < end {
			return w.begins(number), end
		}
	}
}

// Number numbers the windows of a calendar. It returns the number of the window with the local date at now.
func (w Window) Number(now int64) int64 {
	y, m, d := time.UnixMicro(now).In(w.Location).Date()
	n := int64(max(w.Multiplier, 1))
	switch w.Unit {
	case Month:
		if n > 1 {
			return floorDiv(int64(y-1970)*12+int64(m-time.January), n)
		}
		return int64(y)*12 + int64(m)
	case Year:
		if n > 1 {
			return floorDiv(int64(y-1970), n)
		}
		return int64(y)
	}
	days := time.Date(y, m, d, 0, 0, 0, 0, time.UTC).Unix() / 86400
	if w.Unit == Week {
		days = floorDiv(days+w.weekToEpoch(), 7)
	}
	return floorDiv(days, n)
}

// begins returns the start of the window with a number.
func (w Window) begins(number int64) int64 {
	n := int64(max(w.Multiplier, 1))
	y, m, d := 1970, time.January, 1
	switch first := int(number * n); { // number of its first unit
	case w.Unit == Month && n > 1:
		m += time.Month(first)
	case w.Unit == Month: // counters in use have these numbers, with January of the year 0 as 1
		y, m = 0, time.Month(first)
	case w.Unit == Year && n > 1:
		y += first
	case w.Unit == Year:
		y = first
	case w.Unit == Week:
		d += 7*first - int(w.weekToEpoch())
	default:
		d += first
	}
	return firstInstant(w.Location, y, m, d)
}

// weekToEpoch is the number of days from the start of a week to the Unix epoch. The epoch was a Thursday, 3 days after
// a Monday.
func (w Window) weekToEpoch() int64 { return (7 + 3 - int64(w.WeekStart)) % 7 }

func floorDiv(a, b int64) int64 {
	if q := a / b; a%b >= 0 {
		return q
	}
	return a/b - 1
}

// widestOffset is in seconds. No zone has ever been that far ahead of UTC.
const widestOffset = 16 * 60 * 60

// firstInstant returns the time, in microseconds, when the clocks of a zone first show the start of a day or later.
// Month and day may overflow, as in time.Date. It does not use time.Date for local midnight: that returns a time on the
// day before if midnight is skipped, and either of the two midnights if midnight is repeated.
func firstInstant(zone *time.Location, y int, m time.Month, d int) int64 {
	midnight := time.Date(y, m, d, 0, 0, 0, 0, time.UTC).Unix() // local midnight, as if the zone were UTC
	for t := time.Unix(midnight-widestOffset, 0).In(zone); ; {
		_, offset := t.Zone()
		_, change := t.ZoneBounds()
		if !change.IsZero() && !change.After(t) {
			// At the end of a year that a zone's rule describes, ZoneBounds can return this instant itself.
			change = t.Add(time.Minute)
		}
		first := max(t.Unix(), midnight-int64(offset))
		if change.IsZero() || first < change.Unix() {
			return first * int64(time.Second/time.Microsecond)
		}
		t = change
	}
}
