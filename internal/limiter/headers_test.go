package limiter_test

import (
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
)

// t of the header RateLimit is the time until more hits fit, under every algorithm. A caller who is refused one hit gets the same time in
// Retry-After.
func TestTimeUntilThereIsMore(t *testing.T) {
	for _, c := range []struct {
		name           string
		limit          descriptor.Limit
		first, refused string // RateLimit after the first of 60 hits, 10 minutes apart from the others, and after a refusal
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
			if got != c.refused {
				t.Errorf("the first refused request: %s, want %s", got, c.refused)
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
		refused := f.ask(1, "k=a")
		if wait := refused.UntilReset(); wait != unit.Length() {
			t.Errorf("per %s: a wait of %v", unit, wait)
		}
		if f.now = f.now.Add(refused.UntilReset() + time.Millisecond); f.ask(1, "k=a").Code != limiter.OK {
			t.Errorf("per %s: refused again at the time that the client was told", unit)
		}
	}
}

// Hits that are not requests have a unit of their own in RateLimit-Policy.
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
