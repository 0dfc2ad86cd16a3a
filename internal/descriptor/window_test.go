package descriptor

import (
	"testing"
	"time"
	_ "time/tzdata" // the zones of these tests must not depend on the machine

	"pgregory.net/rapid"
)

func zone(t testing.TB, name string) *time.Location {
	t.Helper()
	loc, err := time.LoadLocation(name)
	if err != nil {
		t.Fatal(err)
	}
	return loc
}

func micro(t testing.TB, at string) int64 {
	t.Helper()
	parsed, err := time.Parse(time.RFC3339Nano, at)
	if err != nil {
		t.Fatal(err)
	}
	return parsed.UnixMicro()
}

func TestClockWindow(t *testing.T) {
	for _, c := range []struct {
		window     Window
		now        string
		start, end string
	}{
		{Window{Unit: Second}, "2026-03-01T12:00:00.999999Z", "2026-03-01T12:00:00Z", "2026-03-01T12:00:01Z"},
		{Window{Unit: Second, Multiplier: 30}, "2026-03-01T12:00:30Z", "2026-03-01T12:00:30Z", "2026-03-01T12:01:00Z"},
		{Window{Unit: Minute, Multiplier: 1}, "2026-03-01T12:00:59Z", "2026-03-01T12:00:00Z", "2026-03-01T12:01:00Z"},
		{Window{Unit: Minute, Multiplier: 5}, "2026-03-01T12:09:59Z", "2026-03-01T12:05:00Z", "2026-03-01T12:10:00Z"},
		{Window{Unit: Hour}, "2026-03-01T12:30:00Z", "2026-03-01T12:00:00Z", "2026-03-01T13:00:00Z"},
		{Window{Unit: Day}, "2026-03-01T12:30:00Z", "2026-03-01T00:00:00Z", "2026-03-02T00:00:00Z"},
		// The epoch was a Thursday, and so is every week's first day; months have 30 days, years 365.
		{Window{Unit: Week}, "2026-03-01T12:30:00Z", "2026-02-26T00:00:00Z", "2026-03-05T00:00:00Z"},
		{Window{Unit: Month}, "1970-01-31T00:00:00Z", "1970-01-31T00:00:00Z", "1970-03-02T00:00:00Z"},
		{Window{Unit: Year}, "1973-01-01T00:00:00Z", "1972-12-31T00:00:00Z", "1973-12-31T00:00:00Z"},
		// Before the epoch windows still hold their instant.
		{Window{Unit: Minute}, "1969-12-31T23:59:59.999999Z", "1969-12-31T23:59:00Z", "1970-01-01T00:00:00Z"},
	} {
		start, end := c.window.Bounds(micro(t, c.now))
		if start != micro(t, c.start) || end != micro(t, c.end) {
			t.Errorf("%v × %d at %s: [%s, %s), want [%s, %s)", c.window.Unit, c.window.Multiplier, c.now, text(start), text(end), c.start, c.end)
		}
	}
}

func text(at int64) string { return time.UnixMicro(at).UTC().Format(time.RFC3339Nano) }

func TestWindowWithoutUnit(t *testing.T) {
	if start, end := (Window{}).Bounds(7); start != 7 || end != 7 {
		t.Errorf("a window without a unit has bounds [%d, %d), want an empty one at 7", start, end)
	}
}

func TestWindowsOnTheWire(t *testing.T) {
	for _, c := range []struct {
		window     Window
		unit       Unit
		multiplier uint32
	}{
		{Window{Unit: Hour}, Hour, 0},
		{Window{Unit: Hour, Multiplier: 1}, Hour, 0},
		{Window{Unit: Hour, Multiplier: 2}, Hour, 2},
		{Window{Unit: Millisecond, Multiplier: 2000}, UnitUnknown, 0},
		{Window{Unit: Day, Location: time.UTC, Multiplier: 2}, UnitUnknown, 0},
		{Window{Unit: Month, Location: time.UTC, Named: true}, Month, 0},
	} {
		if unit, multiplier := c.window.OnWire(); unit != c.unit || multiplier != c.multiplier {
			t.Errorf("%+v is %d %v, want %d %v", c.window, multiplier, unit, c.multiplier, c.unit)
		}
	}
}

// Each case was worked out by hand from the zone's published changes.
func TestCalendarWindow(t *testing.T) {
	for _, c := range []struct {
		name       string
		zone       string
		unit       Unit
		now        string
		start, end string
	}{
		{"no daylight saving", "Asia/Seoul", Day, "2026-03-01T14:59:59.999999Z", "2026-03-01T00:00:00+09:00", "2026-03-02T00:00:00+09:00"},
		{"a day of 23 hours", "America/New_York", Day, "2026-03-08T12:00:00Z", "2026-03-08T00:00:00-05:00", "2026-03-09T00:00:00-04:00"},
		{"a day of 25 hours", "America/New_York", Day, "2026-11-01T12:00:00Z", "2026-11-01T00:00:00-04:00", "2026-11-02T00:00:00-05:00"},
		{"an hour of daylight saving is half", "Australia/Lord_Howe", Day, "2026-04-04T20:00:00Z", "2026-04-05T00:00:00+11:00", "2026-04-06T00:00:00+10:30"},
		{"midnight skipped", "America/Sao_Paulo", Day, "2017-10-15T12:00:00Z", "2017-10-15T01:00:00-02:00", "2017-10-16T00:00:00-02:00"},
		{"the day before midnight is skipped", "America/Sao_Paulo", Day, "2017-10-14T12:00:00Z", "2017-10-14T00:00:00-03:00", "2017-10-15T01:00:00-02:00"},
		{"23:00 happens twice", "America/Sao_Paulo", Day, "2017-02-19T02:30:00Z", "2017-02-18T00:00:00-02:00", "2017-02-19T00:00:00-03:00"},
		{"midnight happens twice", "America/Havana", Day, "2026-11-01T04:30:00Z", "2026-11-01T00:00:00-04:00", "2026-11-02T00:00:00-05:00"},
		{"the second midnight", "America/Havana", Day, "2026-11-01T05:00:00Z", "2026-11-01T00:00:00-04:00", "2026-11-02T00:00:00-05:00"},
		{"back over midnight at 00:01", "America/St_Johns", Day, "2010-11-07T02:45:00Z", "2010-11-07T00:00:00-02:30", "2010-11-08T00:00:00-03:30"},
		{"the day before a skipped day", "Pacific/Apia", Day, "2011-12-30T09:59:59Z", "2011-12-29T00:00:00-10:00", "2011-12-31T00:00:00+14:00"},
		{"the day after a skipped day", "Pacific/Apia", Day, "2011-12-30T10:00:00Z", "2011-12-31T00:00:00+14:00", "2012-01-01T00:00:00+14:00"},
		{"a week without its Friday", "Pacific/Apia", Week, "2011-12-30T12:00:00Z", "2011-12-26T00:00:00-10:00", "2012-01-02T00:00:00+14:00"},
		{"a leap year's February", "Europe/Berlin", Month, "2028-02-29T12:00:00Z", "2028-02-01T00:00:00+01:00", "2028-03-01T00:00:00+01:00"},
		{"a common year's February", "Europe/Berlin", Month, "2027-02-28T22:59:59Z", "2027-02-01T00:00:00+01:00", "2027-03-01T00:00:00+01:00"},
		{"a century without a leap day", "UTC", Month, "2100-02-28T23:59:59Z", "2100-02-01T00:00:00Z", "2100-03-01T00:00:00Z"},
		{"a month with daylight saving", "Europe/Berlin", Month, "2026-03-15T00:00:00Z", "2026-03-01T00:00:00+01:00", "2026-04-01T00:00:00+02:00"},
		{"December", "Asia/Seoul", Month, "2026-12-31T14:59:59Z", "2026-12-01T00:00:00+09:00", "2027-01-01T00:00:00+09:00"},
		{"a year", "Asia/Seoul", Year, "2027-12-31T15:00:00Z", "2028-01-01T00:00:00+09:00", "2029-01-01T00:00:00+09:00"},
		{"a week begins on Monday", "UTC", Week, "2026-03-02T00:00:00Z", "2026-03-02T00:00:00Z", "2026-03-09T00:00:00Z"},
		{"a week ends with Sunday", "UTC", Week, "2026-03-01T23:59:59Z", "2026-02-23T00:00:00Z", "2026-03-02T00:00:00Z"},
		{"a week over the year's end", "UTC", Week, "2027-01-01T00:00:00Z", "2026-12-28T00:00:00Z", "2027-01-04T00:00:00Z"},
		{"a week with daylight saving", "America/New_York", Week, "2026-03-08T12:00:00Z", "2026-03-02T00:00:00-05:00", "2026-03-09T00:00:00-04:00"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := Window{Unit: c.unit, Location: zone(t, c.zone)}
			start, end := w.Bounds(micro(t, c.now))
			if start != micro(t, c.start) || end != micro(t, c.end) {
				t.Errorf("at %s: [%s, %s), want [%s, %s)", c.now, local(start, w), local(end, w), c.start, c.end)
			}
		})
	}
}

func local(at int64, w Window) string {
	return time.UnixMicro(at).In(w.Location).Format(time.RFC3339Nano)
}

// oddZones are zones whose clocks change at or around midnight, skip or repeat days, or change by odd amounts.
var oddZones = []string{
	"UTC", "Europe/Berlin", "America/New_York", "Asia/Seoul", "Asia/Kolkata", "Asia/Kathmandu",
	"America/Sao_Paulo", "America/Asuncion", "America/Santiago", "America/Scoresbysund", "Atlantic/Azores",
	"Africa/Cairo", "Africa/Casablanca", "Africa/Monrovia", "Asia/Beirut", "Asia/Damascus", "Asia/Amman", "Asia/Gaza", "Asia/Tehran",
	"America/Havana", "America/St_Johns", "America/Toronto", "America/Caracas", "Asia/Pyongyang",
	"Australia/Lord_Howe", "Antarctica/Troll", "Antarctica/Casey", "Europe/Dublin", "Europe/Moscow",
	"Pacific/Apia", "Pacific/Fakaofo", "Pacific/Kwajalein", "Pacific/Enderbury", "Pacific/Chatham", "Asia/Manila", "America/Juneau",
}

// dayStarts finds by brute force when each local day of a zone starts: the first minute, between two instants, at which
// the zone's clocks show that day or a later one. It reads nothing but the offset at each minute. Days that the zone
// skips start where the next one does. Days are numbered from 1970-01-01.
func dayStarts(loc *time.Location, from, to time.Time) map[int64]int64 {
	const minute, day = 60, 24 * 60 * 60 // the zones of these tests have whole minutes in the years asked for
	local := func(at int64) int64 {
		_, offset := time.Unix(at, 0).In(loc).Zone()
		return (at + int64(offset)) / day
	}
	starts := make(map[int64]int64)
	reached := local(from.Unix())
	for at := from.Unix(); at < to.Unix(); at += minute {
		for ; reached < local(at); reached++ {
			starts[reached+1] = time.Unix(at, 0).UnixMicro()
		}
	}
	return starts
}

func naive(t time.Time) time.Time {
	y, m, d := t.Date()
	return time.Date(y, m, d, 0, 0, 0, 0, time.UTC)
}

func TestCalendarDaysAgainstBruteForce(t *testing.T) {
	years := []int{1993, 1994, 2011, 2017, 2026}
	if testing.Short() {
		years = []int{2011, 2026}
	}
	for _, name := range oddZones {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := Window{Unit: Day, Location: zone(t, name)}
			for _, y := range years {
				from := time.Date(y-1, 12, 28, 0, 0, 0, 0, time.UTC)
				to := time.Date(y+1, 1, 5, 0, 0, 0, 0, time.UTC)
				starts := dayStarts(w.Location, from, to)
				for d := time.Date(y, 1, 1, 0, 0, 0, 0, time.UTC); d.Year() == y; d = d.AddDate(0, 0, 1) {
					number := d.Unix() / (24 * 60 * 60)
					start, end := starts[number], starts[number+1]
					if start == end {
						continue // skipped
					}
					for _, now := range []int64{start, start + 1, start + 30*time.Minute.Microseconds(), (start + end) / 2, end - 1} {
						if s, e := w.Bounds(now); s != start || e != end {
							t.Fatalf("at %s: [%s, %s), want [%s, %s)", local(now, w), local(s, w), local(e, w), local(start, w), local(end, w))
						}
					}
				}
			}
		})
	}
}

// For any window and instant: the window contains the instant, its neighbours touch it, and every instant in it has the
// same window.
func TestWindowsAreAPartition(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := anyWindow(t)
		now := rapid.Int64Range(micro1942, micro2500).Draw(t, "now")
		start, end := w.Bounds(now)
		if now < start || now >= end {
			t.Fatalf("[%d, %d) does not hold %d", start, end, now)
		}
		inside := rapid.Int64Range(start, end-1).Draw(t, "inside")
		for _, at := range []int64{start, inside, end - 1} {
			if s, e := w.Bounds(at); s != start || e != end {
				t.Fatalf("[%d, %d) at %d, yet [%d, %d) at %d", start, end, now, s, e, at)
			}
		}
		if s, _ := w.Bounds(end); s != end {
			t.Fatalf("the window after [%d, %d) begins at %d", start, end, s)
		}
		if _, e := w.Bounds(start - 1); e != start {
			t.Fatalf("the window before [%d, %d) ends at %d", start, end, e)
		}

		shortest, longest := w.Length(), w.Length()
		if w.Location != nil {
			// A zone that skips a day makes two of its windows 24 hours shorter than they are long; one that turns
			// back repeats as much.
			shortest, longest = shortest-26*time.Hour, longest+26*time.Hour
			n := time.Duration(max(w.Multiplier, 1))
			switch w.Unit {
			case Day:
				shortest = max(shortest, time.Minute)
			case Month:
				shortest, longest = shortest-2*day, longest+n*day
			case Year:
				longest += (n/4 + 1) * day
			}
		}
		if length := time.Duration(end-start) * time.Microsecond; length < shortest || length > longest {
			t.Fatalf("a window of %v is %v long", w.Length(), length)
		}
	})
}

// Every calendar window starts where the local date changes, and on the first day of its week, month or year unless the
// zone skipped that day.
func TestCalendarWindowsBeginOnTheirDay(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := calendarWindow(t)
		start, _ := w.Bounds(rapid.Int64Range(micro1980, micro2500).Draw(t, "now"))
		first := time.UnixMicro(start).In(w.Location)
		before := time.UnixMicro(start - 1).In(w.Location)
		if naive(first).Equal(naive(before)) {
			t.Fatalf("the window begins at %s, in the middle of a day", first)
		}
		isFirst := map[Unit]bool{
			Day:   true,
			Week:  first.Weekday() == time.Weekday((int(w.WeekStart)+1)%7),
			Month: first.Day() == 1,
			Year:  first.YearDay() == 1,
		}
		if !isFirst[w.Unit] && first.Hour() == 0 && before.AddDate(0, 0, 1).Day() == first.Day() {
			t.Fatalf("a %v begins on %s", w.Unit, first)
		}
	})
}

func TestCalendarWindowsOfSeveralUnits(t *testing.T) {
	for _, c := range []struct {
		w               Window
		now, start, end string
	}{
		{Window{Unit: Month, Multiplier: 3}, "2026-11-23T10:00:00Z", "2026-10-01T00:00:00Z", "2027-01-01T00:00:00Z"},
		{Window{Unit: Month, Multiplier: 2}, "2026-03-01T00:00:00Z", "2026-03-01T00:00:00Z", "2026-05-01T00:00:00Z"},
		{Window{Unit: Month, Multiplier: 24}, "2027-06-01T00:00:00Z", "2026-01-01T00:00:00Z", "2028-01-01T00:00:00Z"},
		{Window{Unit: Year, Multiplier: 2}, "2027-06-01T00:00:00Z", "2026-01-01T00:00:00Z", "2028-01-01T00:00:00Z"},
		{Window{Unit: Week}, "2026-11-22T10:00:00Z", "2026-11-16T00:00:00Z", "2026-11-23T00:00:00Z"}, // a Sunday
		{Window{Unit: Week, WeekStart: 6}, "2026-11-22T10:00:00Z", "2026-11-22T00:00:00Z", "2026-11-29T00:00:00Z"},
		{Window{Unit: Week, WeekStart: 6}, "2026-11-21T23:59:59Z", "2026-11-15T00:00:00Z", "2026-11-22T00:00:00Z"},
		{Window{Unit: Week, Multiplier: 2}, "1970-01-01T00:00:00Z", "1969-12-29T00:00:00Z", "1970-01-12T00:00:00Z"},
		{Window{Unit: Week, Multiplier: 2, WeekStart: 6}, "1970-01-01T00:00:00Z", "1969-12-28T00:00:00Z", "1970-01-11T00:00:00Z"},
		{Window{Unit: Day, Multiplier: 10}, "1970-01-10T23:00:00Z", "1970-01-01T00:00:00Z", "1970-01-11T00:00:00Z"},
	} {
		c.w.Location = time.UTC
		if start, end := c.w.Bounds(micro(t, c.now)); start != micro(t, c.start) || end != micro(t, c.end) {
			t.Errorf("%s, weeks from %d, at %s: [%s, %s), want [%s, %s)", c.w.Words(), c.w.WeekStart, c.now, local(start, c.w), local(end, c.w), c.start, c.end)
		}
	}
}

// The windows of a calendar are numbered one after the other: stores tell by the number which of two comes first.
func TestCalendarWindowsAreNumberedInOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := calendarWindow(t)
		start, end := w.Bounds(rapid.Int64Range(micro1980, micro2500).Draw(t, "now"))
		this, next := w.Number(start), w.Number(end)
		// a zone may skip a day
		if skipped := w.Unit == Day && w.Multiplier < 2; next != this+1 && (!skipped || next != this+2) {
			t.Fatalf("after %d comes %d", this, next)
		}
	})
}

const (
	micro1942 = -883612800e6
	micro1980 = 315532800e6
	micro2500 = 16725225600e6
)

func anyWindow(t *rapid.T) Window {
	if rapid.Bool().Draw(t, "calendar") {
		return calendarWindow(t)
	}
	unit := rapid.Uint8Range(uint8(Second), uint8(Week)).Draw(t, "unit")
	return Window{Unit: Unit(unit), Multiplier: rapid.Uint32Range(0, 100).Draw(t, "multiplier")}
}

// calendarWindow draws a window on a calendar, including windows of several units, and weeks that start on any day.
func calendarWindow(t *rapid.T) Window {
	w := Window{Unit: rapid.SampledFrom([]Unit{Day, Week, Month, Year}).Draw(t, "unit"), Location: drawZone(t)}
	w.Multiplier = rapid.SampledFrom([]uint32{0, 0, 1, 2, 3, 5, 6, 7, 12, 24}).Draw(t, "multiplier")
	if w.Unit == Week {
		w.WeekStart = rapid.Uint8Range(0, 6).Draw(t, "week start")
	}
	return w
}

func drawZone(t *rapid.T) *time.Location {
	name := rapid.SampledFrom(oddZones).Draw(t, "zone")
	loc, err := time.LoadLocation(name)
	if err != nil {
		t.Fatal(err)
	}
	return loc
}

func BenchmarkBounds(b *testing.B) {
	now := micro(b, "2026-03-08T12:00:00Z")
	for _, c := range []struct {
		name   string
		window Window
	}{
		{"clock", Window{Unit: Minute}},
		{"calendar-day", Window{Unit: Day, Location: zone(b, "America/New_York")}},
		{"calendar-month", Window{Unit: Month, Location: zone(b, "America/New_York")}},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				c.window.Bounds(now)
			}
		})
	}
}

// On the last day of a leap year that only a zone's rule describes, time.Time.ZoneBounds names the instant it was asked
// about as the zone's next change: looking for a window must get past it.
func TestLastDayOfALateLeapYear(t *testing.T) {
	for _, name := range oddZones {
		loc := zone(t, name)
		now := time.Date(2040, 12, 31, 12, 0, 0, 0, loc)
		start, end := Window{Unit: Day, Location: loc}.Bounds(now.UnixMicro())
		want := [2]int64{time.Date(2040, 12, 31, 0, 0, 0, 0, loc).UnixMicro(), time.Date(2041, 1, 1, 0, 0, 0, 0, loc).UnixMicro()}
		if got := [2]int64{start, end}; got != want {
			t.Errorf("%s: window %v, want %v", name, got, want)
		}
	}
}
