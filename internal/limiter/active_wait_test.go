package limiter_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/backend/memory"
	"github.com/ratelimitd/ratelimitd/internal/backend/overlimit"
	"github.com/ratelimitd/ratelimitd/internal/config/override"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
)

func daily(l *descriptor.Limit) { l.Window.Unit = descriptor.Day }

// activeAt gives the limits of a rule the times when they apply; nil means always.
func activeAt(times ...*descriptor.Active) func(*descriptor.Rule) {
	return func(r *descriptor.Rule) {
		r.Schedule = &descriptor.Schedule{Active: times}
		for i, a := range times {
			r.Limits[i].Scheduled = a != nil
		}
	}
}

// hours are those of a day.
func hours(begin, end uint16) *descriptor.Active {
	return &descriptor.Active{Begin: begin * 60, End: end * 60}
}

// A denied request would pass when its counter has room for it, or when the limit no longer applies. A limit of 0 has
// only the end of its active time.
func TestWaitEndsWithTheActiveTime(t *testing.T) {
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	quiet := &descriptor.Active{Begin: 21 * 60, End: 8 * 60, Zone: berlin}
	sunday := &descriptor.Active{Days: descriptor.DayBit(6)}
	at := func(day, hour, minute, second int) time.Time {
		return time.Date(2026, 11, day, hour, minute, second, 0, time.UTC)
	}
	monday := 23
	for name, c := range map[string]struct {
		limits []descriptor.Limit
		active []*descriptor.Active
		now    time.Time
		hits   int64
		wait   time.Duration
		reset  time.Duration
	}{
		"a used up day": {
			[]descriptor.Limit{fixedLimit("", 1, daily)}, []*descriptor.Active{{Begin: 10 * 60, End: 12*60 + 50}}, at(monday, 12, 49, 26), 1, 34 * time.Second, 34 * time.Second,
		},
		"the window ends first": {
			[]descriptor.Limit{fixedLimit("", 1)}, []*descriptor.Active{hours(10, 13)}, at(monday, 12, 49, 26), 1, 34 * time.Second, 34 * time.Second,
		},
		"none in quiet hours": {
			[]descriptor.Limit{fixedLimit("", 0, daily)}, []*descriptor.Active{quiet}, at(monday, 21, 0, 0), 1, 10 * time.Hour, 10 * time.Hour,
		},
		"none until a date": {
			[]descriptor.Limit{fixedLimit("", 0)}, []*descriptor.Active{{Until: at(25, 0, 0, 0).Unix()}}, at(monday, 12, 0, 0), 1, 36 * time.Hour, 36 * time.Hour,
		},
		"none, without an end": {
			[]descriptor.Limit{fixedLimit("", 0)}, []*descriptor.Active{{From: at(20, 0, 0, 0).Unix()}}, at(monday, 12, 0, 30), 1, backend.Never, 30 * time.Second,
		},
		"more hits than the limit": {
			[]descriptor.Limit{fixedLimit("", 3, daily)}, []*descriptor.Active{hours(10, 13)}, at(monday, 12, 0, 0), 5, time.Hour, time.Hour,
		},
		"the limit beside it denies for longer": {
			[]descriptor.Limit{fixedLimit("all", 1, daily), fixedLimit("noon", 1, hourly)}, []*descriptor.Active{nil, hours(10, 13)}, at(monday, 12, 30, 0), 1, 11*time.Hour + 30*time.Minute, 11*time.Hour + 30*time.Minute,
		},
		"Sunday after quiet hours, and quiet hours after Sunday": {
			[]descriptor.Limit{fixedLimit("quiet", 0, daily), fixedLimit("sunday", 0, daily)}, []*descriptor.Active{quiet, sunday}, at(21, 22, 0, 0), 1, 33 * time.Hour, 9 * time.Hour,
		},
		"none all day, in turns": {
			[]descriptor.Limit{fixedLimit("day", 0), fixedLimit("night", 0)}, []*descriptor.Active{hours(6, 18), hours(18, 6)}, at(monday, 12, 0, 0), 1, backend.Never, 6 * time.Hour,
		},
		"a limit in shadow does not lengthen it": {
			[]descriptor.Limit{fixedLimit("quiet", 0, daily), fixedLimit("sunday", 0, daily, inShadow)}, []*descriptor.Active{quiet, sunday}, at(21, 22, 0, 0), 1, 9 * time.Hour, 9 * time.Hour,
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, limiter.Settings{Headers: descriptor.HeadersRetryAfter}, listNode("k", c.limits, activeAt(c.active...)))
			f.now = c.now
			for s := f.ask(0, "k=a"); s.Remaining > 0 && s.Remaining >= uint64(c.hits); s = f.ask(0, "k=a") {
				f.ask(int64(s.Remaining), "k=a")
			}
			req := request(uint32(c.hits), "k=a")
			d := f.decide(req)
			if s := d.Statuses[0]; s.Code != limiter.OverLimit || s.RetryAfter != c.wait || s.Reset != c.reset {
				t.Fatalf("%s, wait %s, reset %s; want %s and %s", s.Code, s.RetryAfter, s.Reset, c.wait, c.reset)
			}
			if c.wait == backend.Never {
				if len(d.Headers) != 0 {
					t.Errorf("headers: %v", d.Headers)
				}
				return
			}
			if want := fmt.Sprint(int(c.wait.Seconds())); len(d.Headers) != 1 || d.Headers[0].Value != want {
				t.Errorf("headers: %v, want %s s", d.Headers, want)
			}
			f.now = c.now.Add(c.wait - time.Microsecond)
			if d := f.decide(req); d.Code != limiter.OverLimit || d.Statuses[0].UntilReset() != time.Second {
				t.Errorf("1 us before: %s, %s", d.Code, d.Statuses[0].UntilReset())
			}
			f.now = c.now.Add(c.wait)
			if d := f.decide(req); d.Code != limiter.OK {
				t.Errorf("after the wait: %s", d.Code)
			}
		})
	}
}

// untilOne is the time from noon, a few seconds after 12, until 13:00.
const untilOne = 59*time.Minute + 50*time.Second

// The reset of a request that passes is not after the active time. Operators see the same times.
func TestResetEndsWithTheActiveTime(t *testing.T) {
	f := newFixture(t, limiter.Settings{}, listNode("k", []descriptor.Limit{fixedLimit("", 1, daily)}, activeAt(hours(10, 13))))
	if s := f.ask(1, "k=a"); s.Code != limiter.OK || s.Reset != untilOne {
		t.Errorf("%s, reset %s", s.Code, s.Reset)
	}
	if k := f.peek("k=a").List[0]; k.Wait != untilOne || k.Reset != untilOne {
		t.Errorf("wait %s, reset %s", k.Wait, k.Reset)
	}
	f.now = noon.Add(untilOne)
	if k := f.peek("k=a").List[0]; k.Wait != 0 || k.Used != 1 {
		t.Errorf("not active: wait %s, %d used", k.Wait, k.Used)
	}
}

// A blocked customer waits for the end of the active time of the rule's only limit. With a second limit, the block
// would continue.
func TestBlockedEndsWithTheActiveTime(t *testing.T) {
	f := newFixture(t, limiter.Settings{}, listNode("one", []descriptor.Limit{fixedLimit("", 1)}, activeAt(hours(10, 13)), overridable),
		listNode("two", []descriptor.Limit{fixedLimit("noon", 1, hourly), fixedLimit("all", 1)}, activeAt(hours(10, 13), nil), overridable))
	f.override("d.one", "", override.Numbers{Kind: override.Blocked}, "one=a")
	f.override("d.two", "", override.Numbers{Kind: override.Blocked}, "two=a")
	if s := f.ask(1, "one=a"); s.Code != limiter.OverLimit || s.RetryAfter != untilOne {
		t.Errorf("one limit: %s, wait %s", s.Code, s.RetryAfter)
	}
	if s := f.ask(1, "two=a"); s.Code != limiter.OverLimit || s.RetryAfter != backend.Never {
		t.Errorf("two limits: %s, wait %s", s.Code, s.RetryAfter)
	}
}

// A denial in the denial cache ends with the active time, and applies again when the limit does.
func TestOverLimitCacheAndActiveTime(t *testing.T) {
	for requests := range uint64(2) {
		cache := overlimit.New(overlimit.Options{Store: memory.New(memory.Options{})})
		f := newFixtureOn(t, cache, limiter.Settings{}, listNode("k", []descriptor.Limit{fixedLimit("", requests, func(l *descriptor.Limit) { l.Window.Unit = descriptor.Week })}, activeAt(hours(10, 13))))
		f.ask(1, "k=a")
		f.ask(1, "k=a")
		for day := range 2 {
			f.now = noon.AddDate(0, 0, day)
			if s := f.ask(1, "k=a"); s.Code != limiter.OverLimit || s.RetryAfter != untilOne {
				t.Errorf("limit %d, day %d: %s, wait %s", requests, day, s.Code, s.RetryAfter)
			}
			if !f.peek("k=a").List[0].Cached && requests > 0 {
				t.Errorf("limit %d, day %d: the cache was not asked", requests, day)
			}
			f.now = f.now.Add(untilOne)
			if s := f.ask(1, "k=a"); s.Code != limiter.OK {
				t.Errorf("limit %d, day %d, not active: %s", requests, day, s.Code)
			}
		}
	}
}

// Two limits of one window that apply at different times count apart.
func TestActiveLimitsOfOneWindow(t *testing.T) {
	f := newFixture(t, limiter.Settings{}, listNode("k", []descriptor.Limit{fixedLimit("morning", 3, daily), fixedLimit("afternoon", 5, daily)}, activeAt(hours(8, 12), hours(14, 18))))
	for _, c := range []struct {
		hour int
		left uint64
	}{{9, 3}, {15, 5}} {
		f.now = time.Date(2026, 3, 10, c.hour, 0, 0, 0, time.UTC)
		f.want(f.ask(int64(c.left), "k=a"), limiter.OK, 0)
		f.want(f.ask(1, "k=a"), limiter.OverLimit, 0)
	}
}
