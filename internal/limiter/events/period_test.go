package events

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	_ "github.com/ratelimitd/ratelimitd/internal/testkit/rapidtest"
)

func TestPeriod(t *testing.T) {
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	window := func(u descriptor.Unit, n uint32) descriptor.Window { return descriptor.Window{Unit: u, Multiplier: n} }
	for name, c := range map[string]struct {
		limit      descriptor.Limit
		now        string
		ends       time.Duration
		start, end string
	}{
		"a window": {
			descriptor.Limit{Window: window(descriptor.Hour, 1)}, "2026-03-10T12:00:10Z", 59*time.Minute + 50*time.Second, "2026-03-10T12:00:00Z", "2026-03-10T13:00:00Z",
		},
		"a store whose clock is ahead": {
			descriptor.Limit{Window: window(descriptor.Hour, 1)}, "2026-03-10T12:59:59Z", 59*time.Minute + 58*time.Second, "2026-03-10T13:00:00Z", "2026-03-10T14:00:00Z",
		},
		"a store whose clock is behind": {
			descriptor.Limit{Window: window(descriptor.Hour, 1)}, "2026-03-10T13:00:01Z", 2 * time.Second, "2026-03-10T12:00:00Z", "2026-03-10T13:00:00Z",
		},
		"a counter that is empty": {
			descriptor.Limit{Window: window(descriptor.Hour, 1)}, "2026-03-10T13:00:01Z", 0, "2026-03-10T13:00:00Z", "2026-03-10T14:00:00Z",
		},
		"a short window": {
			descriptor.Limit{Window: window(descriptor.Second, 1)}, "2026-03-10T12:00:10.5Z", 500 * time.Millisecond, "2026-03-10T12:00:00Z", "2026-03-10T12:01:00Z",
		},
		"a day of 23 hours": {
			descriptor.Limit{Window: descriptor.Window{Unit: descriptor.Day, Location: berlin}}, "2026-03-29T10:00:00Z", 12 * time.Hour, "2026-03-28T23:00:00Z", "2026-03-29T22:00:00Z",
		},
		"a window from the first hit": {
			descriptor.Limit{Window: window(descriptor.Hour, 1), FirstHit: true}, "2026-03-10T12:30:00Z", 59 * time.Minute, "2026-03-10T12:00:00Z", "2026-03-10T13:00:00Z",
		},
		"a bucket": {
			descriptor.Limit{Window: window(descriptor.Minute, 5), Algorithm: descriptor.TokenBucket}, "2026-03-10T12:07:00Z", time.Second, "2026-03-10T12:05:00Z", "2026-03-10T12:10:00Z",
		},
		"a bucket with a short window": {
			descriptor.Limit{Window: window(descriptor.Second, 1), Algorithm: descriptor.TokenBucket}, "2026-03-10T12:07:30Z", time.Second, "2026-03-10T12:07:00Z", "2026-03-10T12:08:00Z",
		},
	} {
		now, err := time.Parse(time.RFC3339, c.now)
		if err != nil {
			t.Fatal(err)
		}
		start, end := period(&c.limit, now.UnixMicro(), now.Add(c.ends).UnixMicro(), time.Minute)
		if instant(start) != c.start || instant(end) != c.end {
			t.Errorf("%s: from %s to %s, want from %s to %s", name, instant(start), instant(end), c.start, c.end)
		}
	}
}

// Processes whose clocks differ find the same period of a window: less than a quarter of it is enough.
func TestPeriodDoesNotDependOnTheClock(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := descriptor.Limit{Window: descriptor.Window{
			Unit: rapid.SampledFrom([]descriptor.Unit{descriptor.Minute, descriptor.Hour, descriptor.Day, descriptor.Month}).Draw(t, "unit"), Multiplier: rapid.Uint32Range(1, 5).Draw(t, "multiplier"),
		}}
		if l.Window.Unit == descriptor.Month || l.Window.Unit == descriptor.Day && rapid.Bool().Draw(t, "calendar") {
			l.Window.Location = time.UTC
		}
		now := rapid.Int64Range(1e15, 2e15).Draw(t, "now")
		start, end := l.Window.Bounds(now)
		differs := rapid.Int64Range(-(end-start)/4, (end-start)/4).Draw(t, "differs")
		gotStart, gotEnd := period(&l, now+differs, end+differs, time.Minute)
		if gotStart != start || gotEnd != end {
			t.Fatalf("from %s to %s, want from %s to %s", instant(gotStart), instant(gotEnd), instant(start), instant(end))
		}
	})
}
