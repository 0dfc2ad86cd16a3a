package descriptor

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	_ "github.com/ratelimitd/ratelimitd/internal/testkit/rapidtest"
)

// A limit is active when the clock of its zone shows one of its hours, on one of its days. The model asks package time
// for the date and the time of day.
func TestActiveAgreesWithTheClock(t *testing.T) {
	var zones []*time.Location
	for _, name := range []string{"UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata", "Australia/Lord_Howe", "Pacific/Apia"} {
		zones = append(zones, zone(t, name))
	}
	// Around changes of summer time, the day that Samoa left out, the epoch, and any time.
	around := []time.Time{time.Unix(0, 0), time.Date(2026, 3, 29, 1, 0, 0, 0, time.UTC), time.Date(2026, 10, 25, 1, 0, 0, 0, time.UTC),
		time.Date(2026, 3, 8, 7, 0, 0, 0, time.UTC), time.Date(2011, 12, 30, 10, 0, 0, 0, time.UTC), time.Date(2026, 4, 4, 15, 0, 0, 0, time.UTC)}
	rapid.Check(t, func(t *rapid.T) {
		minute := rapid.Uint16Range(0, 24*60)
		a := Active{Days: rapid.Uint8Range(0, 127).Draw(t, "days"), Begin: minute.Draw(t, "begin") % (24 * 60), End: minute.Draw(t, "end"), Zone: rapid.SampledFrom(zones).Draw(t, "zone")}
		now := rapid.SampledFrom(around).Draw(t, "around").Add(time.Duration(rapid.Int64Range(-3*86400, 3*86400).Draw(t, "seconds")) * time.Second)
		if rapid.Bool().Draw(t, "from") {
			a.From = max(now.Unix()+rapid.Int64Range(-2, 2).Draw(t, "since"), 1)
		}
		if rapid.Bool().Draw(t, "until") {
			a.Until = max(now.Unix()+rapid.Int64Range(-2, 2).Draw(t, "ends"), 1)
		}
		local := now.In(a.Zone)
		of, day := local.Hour()*60+local.Minute(), local.Weekday()
		begin, end := int(a.Begin), int(a.End)
		want := begin == end || begin < end && of >= begin && of < end || begin > end && (of >= begin || of < end)
		if begin > end && of < end {
			day = time.Date(local.Year(), local.Month(), local.Day(), 12, 0, 0, 0, time.UTC).AddDate(0, 0, -1).Weekday()
		}
		want = want && (a.Days == 0 || a.Days&(1<<day) != 0)
		want = want && (a.From == 0 || now.Unix() >= a.From) && (a.Until == 0 || now.Unix() < a.Until)
		if got := a.At(now); got != want {
			t.Fatalf("%+v at %s: %t, want %t", a, local, got, want)
		}
	})
}

// The end of the active time is the first minute at which the limit does not apply.
func TestActiveLeft(t *testing.T) {
	zones := []*time.Location{nil, time.UTC, zone(t, "Europe/Berlin"), zone(t, "Asia/Kolkata"), zone(t, "Australia/Lord_Howe"), zone(t, "Pacific/Apia")}
	around := []time.Time{time.Date(2026, 3, 29, 1, 0, 0, 0, time.UTC), time.Date(2026, 10, 25, 1, 0, 0, 0, time.UTC), time.Date(2011, 12, 30, 10, 0, 0, 0, time.UTC)}
	rapid.Check(t, func(t *rapid.T) {
		minute := rapid.Uint16Range(0, 24*60)
		a := Active{Days: rapid.Uint8Range(0, 127).Draw(t, "days"), Begin: minute.Draw(t, "begin") % (24 * 60), End: minute.Draw(t, "end"), Zone: rapid.SampledFrom(zones).Draw(t, "zone")}
		if rapid.Bool().Draw(t, "whole days") {
			a.Begin, a.End = 0, rapid.SampledFrom([]uint16{0, 24 * 60}).Draw(t, "midnight")
		}
		now := rapid.SampledFrom(around).Draw(t, "around").Add(time.Duration(rapid.Int64Range(-4*86400e6, 4*86400e6).Draw(t, "microseconds")) * time.Microsecond)
		// a week can lack its only hour: summer time
		for end := now.Add(15 * 24 * time.Hour); !a.At(now); now = now.Add(time.Minute) {
			if now.After(end) {
				t.Fatalf("%+v: never active in two weeks", a)
			}
		}
		if rapid.Bool().Draw(t, "until") {
			a.Until = now.Truncate(time.Minute).Unix() + 60*rapid.Int64Range(1, 20*24*60).Draw(t, "ends")
		}
		want := Forever
		for at, n := now.Truncate(time.Minute).Add(time.Minute), 0; n < 21*24*60; at, n = at.Add(time.Minute), n+1 {
			if !a.At(at) {
				want = at.Sub(now)
				break
			}
		}
		if got := a.Left(now, Forever); got != want {
			t.Fatalf("%+v at %s: %s, want %s", a, now, got, want)
		}
		most := time.Duration(rapid.Int64Range(1, int64(10*24*time.Hour)).Draw(t, "most"))
		if got := a.Left(now, most); got != min(want, most) {
			t.Fatalf("%+v at %s: %s of at most %s, want %s", a, now, got, most, min(want, most))
		}
	})
}

func TestActiveWords(t *testing.T) {
	berlin := zone(t, "Europe/Berlin")
	night := Active{Begin: 22 * 60, End: 6*60 + 30, Days: DayBit(5) | DayBit(6), Zone: berlin}
	sale := Active{From: time.Date(2026, 12, 1, 0, 0, 0, 0, berlin).Unix(), Until: time.Date(2026, 12, 24, 18, 0, 0, 0, berlin).Unix(), Zone: berlin}
	for want, a := range map[string]Active{
		"on saturday, sunday from 22:00 to 06:30 in Europe/Berlin":       night,
		"since 2026-12-01 00:00 until 2026-12-24 18:00 in Europe/Berlin": sale,
		"on monday in UTC": {Days: DayBit(0)},
	} {
		if got := a.Words(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// Trees in which a limit applies at other times mean something else.
func TestChecksumOfActive(t *testing.T) {
	seen := make(map[uint64]string)
	for i, a := range []*Active{nil, {Days: 1, Zone: time.UTC}, {Days: 2, Zone: time.UTC}, {From: 5, Zone: time.UTC}, {Until: 5, Zone: time.UTC}, {End: 5, Zone: time.UTC}, {Begin: 5, Zone: time.UTC}, {End: 5, Zone: zone(t, "Asia/Seoul")}} {
		rule := &Rule{Limits: []Limit{{Requests: 1, Window: Window{Unit: Minute}, Scheduled: a != nil}}}
		if a != nil {
			rule.Schedule = &Schedule{[]*Active{a}}
		}
		tree, err := Compile([]DomainSpec{{Name: "d", Children: []NodeSpec{{Key: "k", Rule: rule}}}}, Options{})
		if err != nil {
			t.Fatal(err)
		}
		name := fmt.Sprintf("%d: %+v", i, a)
		if other, twice := seen[tree.Checksum]; twice {
			t.Errorf("%s and %s have one checksum", name, other)
		}
		seen[tree.Checksum] = name
	}
}

// Limits that apply at some times have separate counters, even within one rule. A single limit keeps its counter, also
// while another limit is tried out next to it.
func TestKeysOfScheduledLimits(t *testing.T) {
	limits := []Limit{{Name: "all"}, {Name: "night", Scheduled: true}, {Name: "sun|day", Scheduled: true}, {Name: "new", Scheduled: true, Enforcement: EnforcedInShadow}}
	for n, want := range map[int][]string{
		2: {"d|k=a|f60", "d|k=a|fa60"},
		3: {"d|k=a|f60", "d|k=a|fa60~night", `d|k=a|fa60~sun\|day`},
		4: {"d|k=a|f60", "d|k=a|fa60~night", `d|k=a|fa60~sun\|day`, "d|k=a|fa60~~new"},
	} {
		if got := keysOfLimits(t, limits[:n]); !slices.Equal(got, want) {
			t.Errorf("%d limits: %q, want %q", n, got, want)
		}
	}
	if got, want := keysOfLimits(t, []Limit{limits[1], limits[3]}), []string{"d|k=a|fa60", "d|k=a|fa60~~new"}; !slices.Equal(got, want) {
		t.Errorf("one in shadow next to it: %q, want %q", got, want)
	}
}

func keysOfLimits(t *testing.T, limits []Limit) (keys []string) {
	t.Helper()
	rule := &Rule{Limits: slices.Clone(limits), Schedule: &Schedule{make([]*Active, len(limits))}}
	for i := range rule.Limits {
		rule.Limits[i].Window = Window{Unit: Minute}
		if rule.Limits[i].Scheduled {
			rule.Schedule.Active[i] = &Active{End: 60}
		}
	}
	tree, err := Compile([]DomainSpec{{Name: "d", Children: []NodeSpec{{Key: "k", Rule: rule}}}}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	entries := []Entry{{Key: "k", Value: "a"}}
	compiled := tree.Domain("d").Match(entries)
	for i := range compiled.Limits {
		keys = append(keys, string(KeyBuilder{}.AppendKey(nil, "d", entries, compiled, &compiled.Limits[i])))
	}
	return keys
}

func BenchmarkActive(b *testing.B) {
	a := Active{Begin: 22 * 60, End: 6 * 60, Days: 127, Zone: zone(b, "Europe/Berlin")}
	now := time.Date(2026, 3, 29, 1, 0, 0, 0, time.UTC)
	for b.Loop() {
		a.At(now)
	}
}

func BenchmarkActiveLeft(b *testing.B) {
	a := Active{Begin: 22 * 60, End: 6 * 60, Days: 127, Zone: zone(b, "Europe/Berlin")}
	now := time.Date(2026, 3, 29, 1, 0, 0, 0, time.UTC)
	for b.Loop() {
		a.Left(now, time.Minute)
	}
}
