package descriptor

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	_ "github.com/ratelimitd/ratelimitd/internal/rapidtest"
)

// A limit is active when the clock of its zone shows one of its hours, on one of its days. The model asks package time for the
// date and the time of day.
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

func BenchmarkActive(b *testing.B) {
	a := Active{Begin: 22 * 60, End: 6 * 60, Days: 127, Zone: zone(b, "Europe/Berlin")}
	now := time.Date(2026, 3, 29, 1, 0, 0, 0, time.UTC)
	for b.Loop() {
		a.At(now)
	}
}
