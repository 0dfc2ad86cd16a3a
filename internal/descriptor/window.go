package descriptor

import "time"

// Window is the span of time that a limit counts in: Multiplier units, on the clock or on a calendar.
type Window struct {
	// Location makes the windows follow the calendar of a time zone: local midnight, ISO weeks, real months and years. It
	// is only for units of a day and longer, with multiplier 1. Nil means windows of equal length, counted from the Unix
	// epoch.
	Location *time.Location

	Multiplier uint32 // 0 means 1
	Unit       Unit

	// Named means that the protocol's unit name stands for this window although it follows a calendar. It is set for
	// months if the operator wants all of them to be calendar months.
	Named bool
}

// Length returns the window's length. For a calendar window it is the nominal length; Bounds returns the real bounds.
func (w Window) Length() time.Duration {
	return w.Unit.Length() * time.Duration(max(w.Multiplier, 1))
}

// WholeUnit returns the unit if the window is exactly one unit on the clock, or Named. Otherwise it returns UnitUnknown: the
// protocol's current_limit cannot express such a window.
func (w Window) WholeUnit() Unit {
	if w.Location != nil && !w.Named || w.Multiplier > 1 || !w.Unit.OnWire() {
		return UnitUnknown
	}
	return w.Unit
}

// CalendarMonth turns a window of one month on the clock into the calendar month in UTC, which the protocol's unit MONTH
// then stands for. It reports whether it changed the window.
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

// calendar returns the bounds of the calendar window that contains now. A window begins when the local date first reaches
// its first day. So windows neither overlap nor leave a gap when a zone changes its offset around midnight: a day that the
// zone skips has no window, and the repeated part of a day that has ended belongs to the next day.
func (w Window) calendar(now int64) (start, end int64) {
	y, m, d := time.UnixMicro(now).In(w.Location).Date()
	var months, days int // of one window
	switch w.Unit {
	case Week:
		weekday := time.Date(y, m, d, 0, 0, 0, 0, time.UTC).Weekday()
		d -= int(weekday+6) % 7 // back to Monday
		days = 7
	case Month:
		d, months = 1, 1
	case Year:
		m, d, months = time.January, 1, 12
	default:
		days = 1
	}
	start = firstInstant(w.Location, y, m, d)
	for {
		m, d = m+time.Month(months), d+days
		end = firstInstant(w.Location, y, m, d)
		if now < end {
			return start, end
		}
		start = end
	}
}

// widestOffset is in seconds. No zone has ever been that far ahead of UTC.
const widestOffset = 16 * 60 * 60

// firstInstant returns the time, in microseconds, when the clocks of a zone first show the beginning of a day or later. Month
// and day may overflow, as in time.Date. It does not use time.Date for local midnight: that returns a time on the day
// before if midnight is skipped, and either of the two midnights if there are two.
func firstInstant(zone *time.Location, y int, m time.Month, d int) int64 {
	midnight := time.Date(y, m, d, 0, 0, 0, 0, time.UTC).Unix() // as the clocks show it
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
