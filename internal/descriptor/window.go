package descriptor

import "time"

// Window is the span of time that a limit counts in: Multiplier units, on the clock or on a calendar.
type Window struct {
	Unit       Unit
	Multiplier uint32 // 0 means 1

	// Location makes the windows follow the calendar of a time zone: local midnight, ISO weeks, real months and years.
	// Nil means windows of one length, counted from the Unix epoch. Only for units of a day and longer, multiplier 1.
	Location *time.Location

	// Named says that the protocol's name of the unit means this window although it follows a calendar: that is so for
	// months where the operator wants all of them to be real ones.
	Named bool
}

// Length is the window's length. For a calendar window it is the nominal one; Bounds gives the real one.
func (w Window) Length() time.Duration {
	return w.Unit.Length() * time.Duration(max(w.Multiplier, 1))
}

// WholeUnit is the unit if the window is exactly one of it by the clock, or Named, else UnitUnknown: what the protocol's
// current_limit can express.
func (w Window) WholeUnit() Unit {
	if w.Location != nil && !w.Named || w.Multiplier > 1 {
		return UnitUnknown
	}
	return w.Unit
}

// CalendarMonth makes a window of one month, by the clock, the month of the calendar in UTC that the protocol's unit
// MONTH names. It says whether it did.
func (w *Window) CalendarMonth() bool {
	if w.Unit != Month || w.Multiplier > 1 || w.Location != nil {
		return false
	}
	w.Location, w.Named = time.UTC, true
	return true
}

// Bounds returns the start (inclusive) and the end (exclusive) of the window that holds now, in microseconds since the
// Unix epoch. now is in the same unit.
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

// calendar returns the bounds of the calendar window that holds now. A window begins when the local date first reaches
// its first day, so windows neither overlap nor leave a gap where a zone changes its offset around midnight: a day that
// the zone skips has no window, and what a zone repeats of an ended day belongs to the next one.
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

// widestOffset is more than any zone has ever been ahead of UTC, in seconds.
const widestOffset = 16 * 60 * 60

// firstInstant is when the clocks of a zone first show the beginning of a day or a later time, in microseconds. Month
// and day may overflow, as in time.Date. It does not ask time.Date for local midnight, which answers with the day
// before where midnight is skipped, and with either of the two where it happens twice.
func firstInstant(zone *time.Location, y int, m time.Month, d int) int64 {
	midnight := time.Date(y, m, d, 0, 0, 0, 0, time.UTC).Unix() // as the clocks show it
	for t := time.Unix(midnight-widestOffset, 0).In(zone); ; {
		_, offset := t.Zone()
		_, change := t.ZoneBounds()
		if !change.IsZero() && !change.After(t) {
			// At the end of a year that a zone's rule describes, ZoneBounds can name the instant itself.
			change = t.Add(time.Minute)
		}
		first := max(t.Unix(), midnight-int64(offset))
		if change.IsZero() || first < change.Unix() {
			return first * int64(time.Second/time.Microsecond)
		}
		t = change
	}
}
