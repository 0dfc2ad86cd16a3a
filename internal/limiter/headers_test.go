package limiter_test

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
)

// t of the header RateLimit is the time until more hits fit, under every algorithm. A client that is denied one hit
// gets the same time in Retry-After.
func TestTimeUntilThereIsMore(t *testing.T) {
	for _, c := range []struct {
		name          string
		limit         descriptor.Limit
		first, denied string // RateLimit after the first of 60 hits, 10 minutes apart from the others, and after a denial
	}{
		{"fixed window", descriptor.Limit{}, `"hour";r=59;t=3590`, `"hour";r=0;t=2990`},
		{"sliding window", descriptor.Limit{Algorithm: descriptor.SlidingWindow}, `"hour";r=59;t=3590`, `"hour";r=0;t=2990`},
		{"sliding log", descriptor.Limit{Algorithm: descriptor.SlidingLog}, `"hour";r=59;t=3600`, `"hour";r=0;t=3000`},
		{"token bucket", descriptor.Limit{Algorithm: descriptor.TokenBucket}, `"hour";r=59;t=60`, `"hour";r=0;t=60`},
		{"token bucket, refilled at intervals", descriptor.Limit{Algorithm: descriptor.TokenBucket, Interval: true}, `"hour";r=59;t=3590`, `"hour";r=0;t=2990`},
		{"leaky bucket", descriptor.Limit{Algorithm: descriptor.LeakyBucket, Burst: 59, NoDelay: descriptor.NoDelayAll}, `"hour";r=59;t=60`, `"hour";r=0;t=60`},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFixture(t, limiter.Settings{Headers: descriptor.HeadersIETF | descriptor.HeadersRetryAfter}, perMinute("k", "", 60, func(r *descriptor.Rule) {
				c.limit.Requests, c.limit.Window.Unit = 60, descriptor.Hour
				r.Limits[0] = c.limit
			}))
			f.now = f.now.Add(10 * time.Microsecond) // a tick of the log of an hour
			if got := header(f.decide(request(1, "k=a")), "RateLimit"); got != c.first {
				t.Errorf("the first request: %s, want %s", got, c.first)
			}
			f.now = f.now.Add(10 * time.Minute)
			for f.ask(1, "k=a").Code == limiter.OK {
			}
			d := f.decide(request(1, "k=a"))
			got := header(d, "RateLimit")
			if got != c.denied {
				t.Errorf("the first denied request: %s, want %s", got, c.denied)
			}
			if wait := header(d, "Retry-After"); `"hour";r=0;t=`+wait != got {
				t.Errorf("RateLimit: %s, but Retry-After: %s", got, wait)
			}
		})
	}
}

// 60 hits of one moment are all back an hour later, before a client can act on the answer.
func TestRetryAfterIsNoLongerThanTheWindowOfALog(t *testing.T) {
	for _, unit := range []descriptor.Unit{descriptor.Hour, descriptor.Day, descriptor.Week} {
		f := newFixture(t, limiter.Settings{Headers: descriptor.HeadersRetryAfter}, perMinute("k", "", 60, func(r *descriptor.Rule) {
			r.Limits[0].Algorithm, r.Limits[0].Window.Unit = descriptor.SlidingLog, unit
		}))
		f.now = f.now.Add(1234567 * time.Nanosecond)
		f.ask(60, "k=a")
		denied := f.ask(1, "k=a")
		if wait := denied.UntilReset(); wait != unit.Length() {
			t.Errorf("per %s: a wait of %v", unit, wait)
		}
		if f.now = f.now.Add(denied.UntilReset() + time.Millisecond); f.ask(1, "k=a").Code != limiter.OK {
			t.Errorf("per %s: denied again at the time that the client was told", unit)
		}
	}
}

// Hits that are not requests have a separate unit in RateLimit-Policy.
func TestUnitOfHits(t *testing.T) {
	f := newFixture(t, limiter.Settings{Headers: descriptor.HeadersIETF}, perMinute("k", "", 90), byModel(90))
	for _, c := range []struct {
		req  *limiter.Request
		want string
	}{
		{request(1, "k=a"), `"minute";q=90;w=60`},
		{request(0, "k=a"), `"minute";q=90;w=60`},
		{request(7, "k=a"), `"minute";q=90;w=60;qu="hits"`},
		{request(1, "model=small"), `"minute";q=90;w=60;qu="hits"`},
	} {
		if got := header(f.decide(c.req), "RateLimit-Policy"); got != c.want {
			t.Errorf("got %s, want %s", got, c.want)
		}
	}
}

func header(d *limiter.Decision, name string) string {
	for _, h := range d.Headers {
		if h.Key == name {
			return h.Value
		}
	}
	return ""
}

// families are the headers whose names and numbers the tests below compare.
const families = descriptor.HeadersReference | descriptor.HeadersDraft03 | descriptor.HeadersIETF

// withFamilies is a fixture whose headers are families and the window's length.
func withFamilies(t *testing.T, nodes ...descriptor.NodeSpec) *fixture {
	t.Helper()
	headers := &descriptor.Headers{Families: families, Own: []descriptor.OwnHeader{own("Window", descriptor.FieldWindow), own("Used", descriptor.FieldUsed)}}
	tree, err := descriptor.Compile([]descriptor.DomainSpec{{Name: "d", DomainSettings: descriptor.DomainSettings{Headers: headers}, Children: nodes}}, descriptor.Options{})
	if err != nil {
		t.Fatal(err)
	}
	f := newFixture(t, limiter.Settings{})
	f.Swap(tree, limiter.Settings{Explain: true})
	return f
}

func limitOf(l descriptor.Limit) func(*descriptor.Rule) {
	return func(r *descriptor.Rule) { r.Name, r.Limits[0] = l.Name, l }
}

// The window of a calendar limit is as long as the one that is: months, leap years, and days on which the clocks
// change.
func TestWindowsOfTheCalendarInHeaders(t *testing.T) {
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		at      string
		window  descriptor.Window
		seconds int64
	}{
		{"2026-01-01T00:00:00Z", descriptor.Window{Unit: descriptor.Month, Location: time.UTC}, 2678400},
		{"2026-02-01T00:00:00Z", descriptor.Window{Unit: descriptor.Month, Location: time.UTC}, 2419200},
		{"2026-02-01T00:00:00Z", descriptor.Window{Unit: descriptor.Month, Location: time.UTC, Named: true}, 2419200},
		{"2026-07-01T00:00:00Z", descriptor.Window{Unit: descriptor.Month, Multiplier: 3, Location: time.UTC}, 7948800},
		{"2028-01-01T00:00:00Z", descriptor.Window{Unit: descriptor.Year, Location: time.UTC}, 31622400},
		{"2026-10-24T22:00:00Z", descriptor.Window{Unit: descriptor.Day, Location: berlin}, 90000},
		{"2026-03-28T23:00:00Z", descriptor.Window{Unit: descriptor.Day, Location: berlin}, 82800},
		{"2026-03-22T23:00:00Z", descriptor.Window{Unit: descriptor.Week, Location: berlin}, 601200},
		{"2026-02-01T00:00:00Z", descriptor.Window{Unit: descriptor.Month}, 2592000},
	} {
		f := withFamilies(t, perMinute("k", "", 0, limitOf(descriptor.Limit{Name: "n", Requests: 5, Window: c.window})))
		if f.now, err = time.Parse(time.RFC3339, c.at); err != nil {
			t.Fatal(err)
		}
		d := f.decide(request(1, "k=a"))
		w := strconv.FormatInt(c.seconds, 10)
		for name, want := range map[string]string{"RateLimit-Policy": `"n";q=5;w=` + w, "X-RateLimit-Limit": "5, 5;w=" + w + `;name="n"`, "Window": w} {
			if got := header(d, name); got != want {
				t.Errorf("%s, %+v: %s: %s, want %s", c.at, c.window, name, got, want)
			}
		}
		decision, _ := d.Metadata["decision"].(map[string]any)
		if got := decision["window_seconds"]; got != c.seconds {
			t.Errorf("%s, %+v: the metadata has %v seconds, want %d", c.at, c.window, got, c.seconds)
		}
		if reset := d.Statuses[0].Reset; c.window.Location != nil && reset != time.Duration(c.seconds)*time.Second {
			t.Errorf("%s, %+v: the window ends in %v", c.at, c.window, reset)
		}
	}
}

// The names of two limits differ in the headers of an answer, and can be sent, for all names in rules.
func TestNamesOfLimitsInHeaders(t *testing.T) {
	named := func(name string) func(*descriptor.Rule) { return func(r *descriptor.Rule) { r.Name = name } }
	for _, c := range []struct {
		one, two, three    string // the names; two is the limit with the least left
		policies, deciding string
	}{
		{"분당", "하루", "", `"%EB%B6%84%EB%8B%B9";q=100;w=60, "%ED%95%98%EB%A3%A8";q=5;w=60, "minute";q=100;w=60`, `"%ED%95%98%EB%A3%A8";r=4;t=50`},
		{"", "", "", `"minute";q=100;w=60, "minute-2";q=5;w=60, "minute-3";q=100;w=60`, `"minute-2";r=4;t=50`},
		{"", "", "minute-2", `"minute";q=100;w=60, "minute-2";q=5;w=60, "minute-2-3";q=100;w=60`, `"minute-2";r=4;t=50`},
		{"minute-2", "", "", `"minute-2";q=100;w=60, "minute";q=5;w=60, "minute-3";q=100;w=60`, `"minute";r=4;t=50`},
		{"a\r\nb: c", "q\"o\t\\", "x\u00a0", `"a%0D%0Ab: c";q=100;w=60, "q\"o%09\\";q=5;w=60, "x%C2%A0";q=100;w=60`, `"q\"o%09\\";r=4;t=50`},
	} {
		f := withFamilies(t, perMinute("one", "", 100, named(c.one)), perMinute("two", "", 5, named(c.two)), perMinute("three", "", 100, named(c.three)))
		d := f.decide(&limiter.Request{Domain: "d", Descriptors: []limiter.Descriptor{amount(1, "one=a"), amount(1, "two=a"), amount(1, "three=a")}})
		if got := header(d, "RateLimit-Policy"); got != c.policies {
			t.Errorf("RateLimit-Policy: %s\nwant %s", got, c.policies)
		}
		if got := header(d, "RateLimit"); got != c.deciding {
			t.Errorf("RateLimit: %s, want %s", got, c.deciding)
		}
	}
	soft := func(l *descriptor.Limit) { l.Enforcement = descriptor.EnforcedSoftly }
	f := newFixture(t, limiter.Settings{}, listNode("k", []descriptor.Limit{fixedLimit("분당", 1, soft), fixedLimit("하루", 1, soft, hourly), fixedLimit("big", 99)}))
	f.ask(2, "k=a")
	d := f.decide(request(1, "k=a"))
	if got, want := header(d, "x-ratelimit-warning"), `"%EB%B6%84%EB%8B%B9";exceeded, "%ED%95%98%EB%A3%A8";exceeded`; got != want {
		t.Errorf("x-ratelimit-warning: %s, want %s", got, want)
	}
}

// Integers of structured fields have at most 15 digits. The other families have the numbers as they are.
func TestLargestNumbersInHeaders(t *testing.T) {
	f := withFamilies(t, perMinute("k", "", descriptor.MaxRequests))
	d := f.decide(request(1, "k=a"))
	for name, want := range map[string]string{
		"RateLimit-Policy": `"minute";q=999999999999999;w=60`, "RateLimit": `"minute";r=999999999999999;t=50`,
		"X-RateLimit-Limit": "9007199254740991, 9007199254740991;w=60", "RateLimit-Limit": "9007199254740991", "RateLimit-Remaining": "9007199254740990",
	} {
		if got := header(d, name); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
}

// A bucket is shown by its size and the time that fills it: the remaining hits refer to the size, and never exceed the
// limit.
func TestBucketsInHeaders(t *testing.T) {
	token, leaky := descriptor.TokenBucket, descriptor.LeakyBucket
	window := func(unit descriptor.Unit, n uint32) descriptor.Window {
		return descriptor.Window{Unit: unit, Multiplier: n}
	}
	for _, c := range []struct {
		limit           descriptor.Limit
		quota, w, first string
	}{
		{descriptor.Limit{Algorithm: token, Requests: 10, Window: window(descriptor.Second, 1), Burst: 100}, "100", "10", "99"},
		{descriptor.Limit{Algorithm: token, Requests: 10, Window: window(descriptor.Minute, 1), Burst: 1}, "1", "6", "0"},
		{descriptor.Limit{Algorithm: token, Requests: 10, Window: window(descriptor.Minute, 1), Burst: 10}, "10", "60", "9"},
		{descriptor.Limit{Algorithm: token, Requests: 7, Window: window(descriptor.Minute, 1), Burst: 10}, "10", "86", "9"},
		{descriptor.Limit{Algorithm: token, Requests: 10, Window: window(descriptor.Millisecond, 100), Burst: 100}, "100", "1", "99"},
		{descriptor.Limit{Algorithm: token, Requests: 10, Window: window(descriptor.Minute, 1), Burst: 25, Interval: true}, "25", "180", "24"},
		{descriptor.Limit{Algorithm: leaky, Requests: 1, Window: window(descriptor.Second, 1), Burst: 9, NoDelay: descriptor.NoDelayAll}, "10", "10", "9"},
		{descriptor.Limit{Algorithm: descriptor.SlidingLog, Requests: 9, Window: window(descriptor.Minute, 5)}, "9", "300", "8"},
	} {
		f := withFamilies(t, perMinute("k", "", 0, limitOf(c.limit)))
		d := f.decide(request(1, "k=a"))
		name, _, _ := strings.Cut(header(d, "RateLimit-Policy"), ";")
		for field, want := range map[string]string{
			"RateLimit-Limit": c.quota, "RateLimit-Remaining": c.first, "X-RateLimit-Remaining": c.first,
			"X-RateLimit-Limit": c.quota + ", " + c.quota + ";w=" + c.w, "RateLimit-Policy": name + ";q=" + c.quota + ";w=" + c.w,
		} {
			if got := header(d, field); got != want {
				t.Errorf("%+v: %s: %s, want %s", c.limit, field, got, want)
			}
		}
	}
}

// Hits that are kept for other classes are neither used nor left.
func TestUsedWithClasses(t *testing.T) {
	f := withFamilies(t, shared(100))
	f.ask(5, "kind=critical")
	d := f.decide(request(1, "kind=batch"))
	if used, left := header(d, "Used"), header(d, "RateLimit-Remaining"); used != "6" || left != "58" { // 36 are kept
		t.Errorf("%s used and %s left, want 6 and 58", used, left)
	}
}
