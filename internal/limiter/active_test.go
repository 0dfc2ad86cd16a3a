package limiter_test

import (
	"strings"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/config/override"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
	"github.com/ratelimitd/ratelimitd/internal/testkit/racetest"
)

// atNight gives a rule's last limit the hours from 22:00 to 6:00 in UTC.
func atNight(r *descriptor.Rule) {
	last := len(r.Limits) - 1
	r.Schedule = &descriptor.Schedule{Active: make([]*descriptor.Active, len(r.Limits))}
	r.Schedule.Active[last] = &descriptor.Active{Begin: 22 * 60, End: 6 * 60, Zone: time.UTC}
	r.Limits[last].Scheduled = true
}

func andOneAtNight(r *descriptor.Rule) {
	night := r.Limits[0]
	night.Name, night.Requests = "night", 2
	r.Limits = append(r.Limits, night)
	atNight(r)
}

var night = time.Date(2026, 3, 10, 22, 0, 0, 0, time.UTC)

// A limit denies and counts only while it is active. It has a separate counter.
func TestActiveLimits(t *testing.T) {
	for _, admission := range []descriptor.Admission{descriptor.Independent, descriptor.AllOrNothing} {
		f := newFixture(t, limiter.Settings{Admission: admission}, perMinute("one", "", 2, atNight), perMinute("two", "", 5, andOneAtNight))
		if s := f.ask(9, "one=a"); s.Code != limiter.OK || s.Limited || s.Rule != nil {
			t.Errorf("at noon: %+v", s)
		}
		f.want(f.ask(4, "two=a"), limiter.OK, 1)
		f.now = night
		f.want(f.ask(2, "one=a"), limiter.OK, 0)
		f.want(f.ask(1, "one=a"), limiter.OverLimit, 0)
		f.want(f.ask(2, "two=a"), limiter.OK, 0)
		if s := f.ask(1, "two=a"); s.Code != limiter.OverLimit || s.Limit.Name != "night" {
			t.Errorf("at night: %+v", s)
		}
		f.now = night.Add(8 * time.Hour)
		if s := f.ask(1, "two=a"); s.Code != limiter.OK || s.LimitIndex != 0 || s.Remaining != 4 {
			t.Errorf("in the morning: %+v", s)
		}
	}
}

// A rule replaces others only while one of its limits is active. A replaced limit stays replaced even while it is
// active.
func TestActiveAndReplaces(t *testing.T) {
	named := func(name string, replaces ...string) func(*descriptor.Rule) {
		return func(r *descriptor.Rule) { r.Name, r.Replaces = name, replaces }
	}
	f := newFixture(t, limiter.Settings{}, perMinute("all", "", 5, named("all")), perMinute("night", "", 2, named("other", "all"), atNight),
		perMinute("list", "", 5, andOneAtNight), perMinute("away", "", 3, named("away", "night")))
	ask := func(pairs ...string) []limiter.Status {
		req := &limiter.Request{Domain: "d"}
		for _, p := range pairs {
			req.Descriptors = append(req.Descriptors, limiter.Descriptor{Entries: entries(p)})
		}
		return f.decide(req).Statuses
	}
	if s := ask("all=a", "night=a"); !s[0].Limited || s[1].Limited {
		t.Errorf("at noon: %+v", s)
	}
	f.now = night
	if s := ask("all=a", "night=a"); s[0].Limited || !s[1].Limited {
		t.Errorf("at night: %+v", s)
	}
	if s := ask("list=a", "away=a"); s[0].Limit.Requests != 5 {
		t.Errorf("the limit at night is replaced: %+v", s)
	}
}

// Overrides change the numbers of limits that are active.
func TestActiveAndOverrides(t *testing.T) {
	f := newFixture(t, limiter.Settings{}, perMinute("one", "", 2, atNight, overridable), perMinute("two", "", 5, andOneAtNight, overridable))
	f.override("d.one", "", override.Numbers{Kind: override.Replace, Requests: 10}, "one=a")
	f.override("d.two", "night", override.Numbers{Kind: override.Replace, Requests: 3}, "two=a")
	f.override("d.two", "", override.Numbers{Kind: override.Unlimited}, "two=b")
	if s := f.ask(1, "one=a"); s.Limited {
		t.Errorf("at noon: %+v", s)
	}
	f.want(f.ask(1, "two=a"), limiter.OK, 4)
	f.now = night
	f.want(f.ask(1, "one=a"), limiter.OK, 9)
	f.want(f.ask(1, "two=a"), limiter.OK, 2)
	if s := f.ask(9, "two=b"); s.Code != limiter.OK || s.Limited {
		t.Errorf("unlimited: %+v", s)
	}
}

// A limit that is not active is not an enforced limit. While only a limit in shadow is active, clients see no limit and
// nothing is denied.
func TestActiveBesideShadow(t *testing.T) {
	for _, admission := range []descriptor.Admission{descriptor.Independent, descriptor.AllOrNothing} {
		f := newFixture(t, limiter.Settings{Admission: admission, Headers: descriptor.HeadersReference},
			listNode("k", []descriptor.Limit{fixedLimit("new", 1, hourly, inShadow), fixedLimit("now", 2)}, atNight))
		for i, notices := range []int{0, 1, 1} {
			if d := f.decide(request(1, "k=a")); d.Code != limiter.OK || len(d.Headers) != 0 || len(d.Notices) != notices {
				t.Errorf("request %d at noon: %s, %v, %v", i+1, d.Code, d.Headers, d.Notices)
			}
		}
		f.now = night
		for i, want := range []limiter.Code{limiter.OK, limiter.OK, limiter.OverLimit} {
			if d := f.decide(request(1, "k=a")); d.Code != want || d.Statuses[0].Limit.Name != "now" || len(d.Headers) != 3 {
				t.Errorf("request %d at night: %s, %+v", i+1, d.Code, d.Statuses[0])
			}
		}
	}
}

// Operators see when a limit applies, and whether it does now.
func TestPeekOfInactiveLimits(t *testing.T) {
	f := newFixture(t, limiter.Settings{}, perMinute("two", "", 5, andOneAtNight))
	for _, c := range []struct {
		now  time.Time
		away bool
	}{{noon, true}, {night, false}} {
		counters, err := f.Peek(t.Context(), c.now, "d", &limiter.Descriptor{Entries: entries("two=a")})
		if err != nil {
			t.Fatal(err)
		}
		if l := counters.List; len(l) != 2 || l[0].Inactive || l[1].Inactive != c.away || l[0].Key == l[1].Key {
			t.Errorf("%+v", l)
		} else if words := l[1].Words(); !strings.HasSuffix(words, ", only from 22:00 to 06:00 in UTC"+map[bool]string{true: " (not now)", false: " (now)"}[c.away]) {
			t.Error(words)
		}
	}
}

func TestActiveLimitsDoNotAllocate(t *testing.T) {
	f := newFixture(t, limiter.Settings{}, perMinute("two", "", 1<<30, andOneAtNight))
	req := &limiter.Request{Domain: "d", Descriptors: []limiter.Descriptor{{Entries: entries("two=a")}}}
	d := new(limiter.Decision)
	for _, now := range []time.Time{noon, night} {
		if got := testing.AllocsPerRun(100, func() {
			if err := f.Decide(t.Context(), now, req, d); err != nil {
				t.Fatal(err)
			}
		}); got > 0 && !racetest.On {
			t.Errorf("%v allocations", got)
		}
	}
}

// Peek and quota buckets apply overrides as decisions do: only overrides of limits that apply now.
func TestPeekAndOverridesOfInactiveLimits(t *testing.T) {
	f := newFixture(t, limiter.Settings{}, perMinute("one", "", 2, atNight, overridable), perMinute("two", "", 5, andOneAtNight, overridable))
	f.override("d.two", "night", override.Numbers{Kind: override.Blocked}, "two=a")
	f.override("d.two", "night", override.Numbers{Kind: override.Replace, Requests: 3}, "two=b")
	f.override("d.two", "night", override.Numbers{Kind: override.Unlimited}, "two=c")
	f.override("d.one", "", override.Numbers{Kind: override.Replace, Requests: 9}, "one=a")
	for _, at := range []time.Time{noon, night} {
		f.now = at
		for _, caller := range []string{"two=a", "two=b", "two=c"} {
			status, peeked := f.ask(0, caller), f.peek(caller)
			bucket, err := f.QuotaBucket(t.Context(), at, "d", entries(caller))
			if err != nil {
				t.Fatal(err)
			}
			blocked := caller == "two=a" && at.Equal(night)
			if denied := status.Limited && status.Limit.Requests == 0; denied != blocked || peeked.Blocked != blocked || bucket.Blocked != blocked {
				t.Errorf("%s at %s: blocked: decided %v, peeked %v, bucket %v", caller, at, denied, peeked.Blocked, bucket.Blocked)
			}
			want := map[string]uint64{"two=a": 2, "two=b": 3, "two=c": 2}[caller]
			if l := peeked.List[1]; l.Limit.Requests != want || l.Lifted != (caller == "two=c") {
				t.Errorf("%s at %s: %+v, want %d", caller, at, l, want)
			}
		}
	}
	d := limiter.Descriptor{Entries: entries("one=a"), HasLimit: true, Limit: limiter.RequestLimit{Requests: 4, Unit: int32(descriptor.Minute)}}
	for at, own := range map[time.Time]bool{noon: true, night: false} {
		counters, err := f.Peek(t.Context(), at, "d", &d)
		if err != nil || counters.FromRequest != own {
			t.Errorf("a request's own limit at %s: %+v, %v", at, counters, err)
		}
	}
}
