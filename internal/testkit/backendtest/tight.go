package backendtest

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// runTight checks the times in the outcomes of one counter, while the clock goes forward. A denied take stays denied
// until its RetryAfter has passed, and then it passes. After MoreAfter more hits fit, and not before. After ResetAfter
// nothing is in use any more, or a window ends. Hits that are taken and refunded at the same time leave no trace,
// except under a concurrency limit, where a refund takes the oldest; peeks and denied takes leave none either.
func runTight(t *testing.T, open func(t testing.TB) backend.Store) {
	s := open(t)
	rapid.Check(t, func(rt *rapid.T) {
		l, began := DrawLimit(rt), time.Now()
		fail := func(format string, args ...any) {
			rt.Helper()
			if time.Since(began) > min(time.Minute, 2000*l.Window.Length()) {
				rt.Skip("Redis has dropped the counter by its own clock: CALLER_SLACK and SLACK_WINDOWS in states.lua")
			}
			rt.Fatalf(format, args...)
		}
		k := key(newCase(), "k", l)
		now := epoch.UnixMicro() + rapid.Int64Range(0, 30*24*3600*1_000_000).Draw(rt, "begin")
		take := func(hits int64) backend.Outcome {
			return one(rt, s, time.UnixMicro(now), backend.Take{Key: k, Limit: l, Hits: hits})
		}
		for range rapid.IntRange(1, 15).Draw(rt, "takes") {
			now += rapid.OneOf(
				rapid.Just(int64(0)), rapid.Int64Range(0, 3), rapid.Int64Range(0, l.Window.Length().Microseconds()),
				rapid.Int64Range(0, l.Window.Length().Microseconds()/int64(max(1, l.Requests))),
			).Draw(rt, "pause")
			before := take(0)
			hits := rapid.OneOf(
				rapid.Int64Range(1, 3), rapid.Int64Range(1, max(1, min(int64(l.Capacity()), 300))), rapid.Int64Range(-2, -1),
			).Draw(rt, "hits")
			o := take(hits)
			switch {
			case !o.Allowed && o.RetryAfter == backend.Never:
				if hits <= int64(l.Capacity()) {
					fail("%s: %d hits are said never to pass", limitText(l), hits)
				}
			case !o.Allowed:
				if after := take(0); after != before {
					fail("%s: a denied take changed %s into %s", limitText(l), outcomeText(&before), outcomeText(&after))
				}
				now += o.RetryAfter.Microseconds() - 1
				if early := take(hits); early.Allowed || early.RetryAfter != time.Microsecond {
					fail("%s: %d hits were to wait %v; a microsecond before: %s", limitText(l), hits, o.RetryAfter,
						outcomeText(&early))
				}
				now++
				if due := take(hits); !due.Allowed {
					fail("%s: %d hits were to wait %v; then: %s", limitText(l), hits, o.RetryAfter, outcomeText(&due))
				}
			case hits > 0 && l.Algorithm != descriptor.Concurrency && rapid.IntRange(0, 3).Draw(rt, "refund") == 0:
				take(-hits)
				if after := take(0); after.Used != before.Used || before.Used > 0 && after != before {
					fail("%s: taking and refunding %d hits changed %s into %s", limitText(l), hits, outcomeText(&before),
						outcomeText(&after))
				}
			}
		}
		peek := take(0)
		if peek.Used > 0 {
			capacity, begin := int64(l.Capacity()), now
			most := min(peek.Used+peek.Kept, capacity)
			now += peek.MoreAfter.Microseconds() - 1
			if early := take(0); early.Used+early.Kept < most {
				fail("%s: a microsecond before there is more in %v: %s", limitText(l), peek.MoreAfter, outcomeText(&early))
			}
			now++
			if due := take(0); due.Used+due.Kept >= most && capacity > 0 {
				fail("%s: there was to be more in %v, then: %s", limitText(l), peek.MoreAfter, outcomeText(&due))
			}
			now = begin
		}
		if peek.Used > 0 {
			now += peek.ResetAfter.Microseconds() - 1
			if early := take(0); early.Used == 0 && early.ResetAfter != time.Microsecond {
				fail("%s: a microsecond before a reset in %v: %s", limitText(l), peek.ResetAfter, outcomeText(&early))
			}
			now++
		}
		if after := take(0); peek.Used > 0 && after.Used != 0 {
			fail("%s: after a reset in %v: %s", limitText(l), peek.ResetAfter, outcomeText(&after))
		}
	})
}
