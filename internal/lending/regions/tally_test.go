package regions_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/limiter"
)

const eventual = `
domain: d
descriptors:
  - key: fixed
    rate_limit: {unit: minute, requests_per_unit: 300, regions: {mode: eventual}}
  - key: sliding
    rate_limit: {unit: minute, requests_per_unit: 300, algorithm: sliding_window, regions: {mode: eventual}}
`

// demand lets each of the regions take a hit every tenth of a second for a while. It returns the passed hits of each.
func (w *world) demand(d time.Duration, pair string, names ...string) map[string]int64 {
	passed := make(map[string]int64)
	for end := time.Now().Add(d); time.Now().Before(end); pass(100 * time.Millisecond) {
		for _, name := range names {
			got, err := w.in(name).ask(1, pair)
			if err != nil {
				w.t.Fatal(err)
			}
			if got.Code == limiter.OK {
				passed[name]++
			}
		}
	}
	return passed
}

func sum(passed map[string]int64) (n int64) {
	for _, hits := range passed {
		n += hits
	}
	return n
}

// unseenAt is the largest number of hits that pass in the two other regions, at 10 a second each, before a region hears
// of them: during an interval and a round trip.
const unseenAt = 2 * 10 * (1 + 2*0.04)

func TestTalliesAddUp(t *testing.T) {
	// 10 s before its end, a sixth of the minute before still counts
	for pair, least := range map[string]int64{"fixed=x": 285, "sliding=x": 240} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, eventual, "a b c", 1)
			for range 3 { // 30 hits a second: 300 in 10 seconds
				nextMinute()
				if n := sum(w.demand(50*time.Second, pair, "a", "b", "c")); n < least || float64(n) > 300+unseenAt {
					t.Errorf("%s: %d of 300 passed in all regions", pair, n)
				}
			}
			d, err := w.in("a").ask(1, pair)
			if err != nil || d.Code != limiter.OverLimit || d.Statuses[0].Remaining != 0 || d.Statuses[0].RetryAfter <= 0 || d.Statuses[0].RetryAfter > time.Minute {
				t.Errorf("%s: after the limit was reached: %+v, %v", pair, d.Statuses, err)
			}
		})
	}
}

// A region sees the hits of the others soon after it has asked, even if it has used nothing itself.
func TestTalliesAreShown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, eventual, "a b", 1)
		nextMinute()
		w.in("a").wants(120, "fixed=x", limiter.OK, 180)
		w.in("b").wants(0, "fixed=x", limiter.OK, 300) // it asks
		pass(100 * time.Millisecond)
		w.in("b").wants(10, "fixed=x", limiter.OK, 170)
		w.in("b").wants(200, "fixed=x", limiter.OverLimit, 170)
		seen, err := w.in("b").Peek(t.Context(), time.Now(), "d", &limiter.Descriptor{Entries: entries("fixed=x")})
		if err != nil || seen.List[0].Used != 130 {
			t.Errorf("a look shows %+v, %v", seen.List, err)
		}
	})
}

// A region that is cut off uses its part of the remaining hits, in this window and the next. Later all is as before.
func TestTalliesOfARegionThatIsCutOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, eventual, "a b c", 1)
		nextMinute()
		passed := w.demand(5*time.Second, "fixed=x", "a", "b", "c") // 150 are left
		w.setCut("c", true)
		later := w.demand(40*time.Second, "fixed=x", "a", "b", "c")
		// Until a region counts as silent, neither side notices the cut.
		if all := sum(passed) + sum(later); float64(all) > 300+3*unseenAt+unseenAt || all < 270 {
			t.Errorf("%d of 300 passed, %v and %v after the cut", all, passed, later)
		}
		if later["c"] < 50 || later["c"] > 50+3*10+10 {
			t.Errorf("%d passed in the region that was cut off: its part of 150 is 50", later["c"])
		}
		nextMinute()
		if next := w.demand(50*time.Second, "fixed=x", "a", "b", "c"); next["c"] != 100 || sum(next) > 300 {
			t.Errorf("%v passed in the next window: 100 is the part of each region that does not hear of all others", next)
		}
		w.setCut("c", false)
		w.demand(2*time.Second, "fixed=x", "a", "b", "c")
		nextMinute()
		if next := sum(w.demand(50*time.Second, "fixed=x", "a", "b", "c")); next < 285 || float64(next) > 300+unseenAt {
			t.Errorf("%d of 300 passed after all is well", next)
		}
	})
}

// An unused counter costs nothing, and a busy one costs a question a second to each other region.
func TestTalliesAskOnceASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, eventual, "a b c", 1)
		w.demand(20*time.Second, "fixed=x", "a")
		before := w.calls.Load()
		if before < 2*17 || before > 2*20 {
			t.Errorf("%d questions in 20 s to two regions", before)
		}
		pass(time.Minute)
		if now := w.calls.Load(); now != before {
			t.Errorf("%d questions without requests", now-before)
		}
	})
}
