package regions_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/backend/memory"
	"github.com/ratelimitd/ratelimitd/internal/backend/region"
	"github.com/ratelimitd/ratelimitd/internal/backend/regions"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
)

// tallies are three regions whose limit is eventual, in virtual time.
type tallies struct {
	t     *testing.T
	limit descriptor.Limit
	of    map[string]*regions.Store
	asked atomic.Int64

	mu  sync.Mutex
	cut map[string]bool
}

// trip is how far the regions are from each other, one way.
const trip = 40 * time.Millisecond

func newTallies(t *testing.T, l descriptor.Limit) *tallies {
	t.Helper()
	l.Regions = &descriptor.Regions{Mode: descriptor.Eventual}
	l.CountDenied = descriptor.DeniedDrop
	if err := l.Compile(); err != nil {
		t.Fatal(err)
	}
	w := &tallies{t: t, limit: l, of: make(map[string]*regions.Store), cut: make(map[string]bool)}
	t.Cleanup(func() { time.Sleep(time.Second) }) //nolint:forbidigo // virtual time: questions are still on their way
	names := []string{"a", "b", "c"}
	for _, name := range names {
		s, err := regions.New(regions.Options{
			Region: name, Regions: names, Epoch: 1, Peers: trips{w, name}, Logger: slog.New(slog.DiscardHandler),
			Store: memory.New(memory.Options{}), Records: memory.NewRecords(0),
		})
		if err != nil {
			t.Fatal(err)
		}
		s.SetResolver(w)
		w.of[name] = s
	}
	return w
}

func (w *tallies) Resolve(time.Time, string, []descriptor.Entry, string) (backend.Counter, bool) {
	return backend.Counter{Key: keyOf("x"), Limit: &w.limit}, true
}

func (w *tallies) Rules(time.Time) uint64 { return 1 }

// trips is how a region reaches the others.
type trips struct {
	w    *tallies
	from string
}

func (l trips) Exchange(ctx context.Context, to string, epoch uint64, queries []regions.Query) ([]regions.Reply, error) {
	l.w.asked.Add(int64(len(queries)))
	l.w.mu.Lock()
	cut := l.w.cut[to] != l.w.cut[l.from]
	l.w.mu.Unlock()
	if cut {
		return nil, errors.New("cut off")
	}
	time.Sleep(trip) //nolint:forbidigo // virtual time
	defer time.Sleep(trip)
	return l.w.of[to].Answer(ctx, l.from, epoch, queries)
}

func (l trips) Consent(context.Context, string, *region.Epoch) (bool, error) {
	return false, errors.New("nobody asks for consent")
}

// setCut cuts a region off, or ends that.
func (w *tallies) setCut(name string, cut bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cut[name] = cut
}

// take makes a take of so many hits.
func (w *tallies) take(name string, hits int64) backend.Outcome {
	w.t.Helper()
	l := w.limit
	r := &backend.Request{
		Takes:    []backend.Take{{Key: keyOf("x"), Limit: &l, Hits: hits, Origin: originOf("x")}},
		Outcomes: make([]backend.Outcome, 1),
	}
	if err := backend.Await(w.t.Context(), w.of[name], time.Now(), r); err != nil {
		w.t.Fatal(err)
	}
	if r.Takes[0].Limit != &l {
		w.t.Error("a take came back with another limit")
	}
	l = descriptor.Limit{} // as the limiter does with the limit of an override
	return r.Outcomes[0]
}

// demand lets each of the regions take a hit each tenth of a second for a while. It returns how many passed in each.
func (w *tallies) demand(d time.Duration, names ...string) map[string]int64 {
	passed := make(map[string]int64)
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(100 * time.Millisecond) { //nolint:forbidigo // virtual time
		for _, name := range names {
			if w.take(name, 1).Allowed {
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

// unseenAt is the most that the two other regions admit of 10 hits a second each that a region has not heard of: for an interval and for
// the way there and back.
const unseenAt = 2 * 10 * (1 + 2*0.04)

var minute = descriptor.Window{Unit: descriptor.Minute}

// nextMinute waits until a minute begins.
func nextMinute() {
	time.Sleep(time.Until(time.Now().Truncate(time.Minute).Add(time.Minute))) //nolint:forbidigo // virtual time
}

func TestTalliesAddUp(t *testing.T) {
	for _, l := range []descriptor.Limit{
		{Requests: 300, Window: minute, Algorithm: descriptor.FixedWindow},
		{Requests: 300, Window: minute, Algorithm: descriptor.SlidingWindow},
	} {
		synctest.Test(t, func(t *testing.T) {
			w := newTallies(t, l)
			for range 3 { // of 30 hits a second, 300 in 10 seconds
				nextMinute()
				passed, least := sum(w.demand(50*time.Second, "a", "b", "c")), int64(285)
				if l.Algorithm == descriptor.SlidingWindow {
					least = 240 // 10 s before its end, a sixth of the minute before still counts
				}
				if passed < least || float64(passed) > 300+unseenAt {
					t.Errorf("%s: %d of 300 passed in all regions", l.Algorithm, passed)
				}
			}
			o := w.take("a", 1)
			if left := o.Remaining(300); o.Allowed || left != 0 || o.RetryAfter <= 0 || o.RetryAfter > time.Minute {
				t.Errorf("%s: after the limit was reached: %+v", l.Algorithm, o)
			}
		})
	}
}

// A region sees what the others have used a second after it was used, before it has used anything on its own.
func TestTalliesAreShown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTallies(t, descriptor.Limit{Requests: 300, Window: minute})
		nextMinute()
		if o := w.take("a", 120); !o.Allowed {
			t.Fatalf("%+v", o)
		}
		w.take("b", 0)                     // asks
		time.Sleep(100 * time.Millisecond) //nolint:forbidigo // virtual time
		if o := w.take("b", 10); !o.Allowed || o.Before != 120 || o.Used != 130 {
			t.Errorf("%+v: 120 are used in another region, and 10 here", o)
		}
		if o := w.take("b", 200); o.Allowed || o.Used != 130 || o.RetryAfter != backend.Never && o.RetryAfter > time.Minute {
			t.Errorf("%+v: 130 of 300 are used, 200 were asked for", o)
		}
		r := &backend.Request{Takes: []backend.Take{{Key: keyOf("x"), Limit: &w.limit, Hits: 1, Origin: originOf("x")}}, Outcomes: make([]backend.Outcome, 1)}
		if err := w.of["b"].Peek(t.Context(), time.Now(), r); err != nil || r.Outcomes[0].Used != 130 {
			t.Errorf("a look shows %+v, %v", r.Outcomes[0], err)
		}
	})
}

// A region that is cut off uses its part of what was left, in this window and in the next. Afterwards it is as before.
func TestTalliesOfARegionThatIsCutOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTallies(t, descriptor.Limit{Requests: 300, Window: minute})
		nextMinute()
		passed := w.demand(5*time.Second, "a", "b", "c") // 150 are left
		w.setCut("c", true)
		later := w.demand(40*time.Second, "a", "b", "c")
		// Until a region is found to be silent, the sides do not know of each other.
		if all := sum(passed) + sum(later); float64(all) > 300+3*unseenAt+unseenAt || all < 270 {
			t.Errorf("%d of 300 passed, %v and %v after the cut", all, passed, later)
		}
		if later["c"] < 50 || later["c"] > 50+3*10+10 {
			t.Errorf("%d passed in the region that was cut off: its part of 150 is 50", later["c"])
		}
		if o := w.take("c", 1); o.Allowed || o.RetryAfter > time.Second {
			t.Errorf("%+v: when the region is reached again, more may be left", o)
		}
		nextMinute()
		if next := w.demand(50*time.Second, "a", "b", "c"); next["c"] != 100 || sum(next) > 300 {
			t.Errorf("%v passed in the next window: 100 is the part of each region that does not hear of all others", next)
		}
		w.setCut("c", false)
		w.demand(2*time.Second, "a", "b", "c")
		nextMinute()
		if next := sum(w.demand(50*time.Second, "a", "b", "c")); next < 285 || float64(next) > 300+unseenAt {
			t.Errorf("%d of 300 passed after all is well", next)
		}
	})
}

// A counter that nobody asks for costs nothing, and one that is busy a question a second to each other region.
func TestTalliesAskOnceASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTallies(t, descriptor.Limit{Requests: 100_000, Window: minute})
		w.demand(20*time.Second, "a")
		before := w.asked.Load()
		if before < 2*17 || before > 2*20 {
			t.Errorf("%d questions in 20 s to two regions", before)
		}
		time.Sleep(time.Minute) //nolint:forbidigo // virtual time
		if now := w.asked.Load(); now != before {
			t.Errorf("%d questions without requests", now-before)
		}
	})
}

// The same on real Redis servers, with several replicas in a region: each of them hears of the others.
func TestTalliesInRedis(t *testing.T) {
	w := newWorld(t, setup{regions: 2, processes: 2})
	w.limit("x", descriptor.Limit{
		Requests: 100, Window: day, CountDenied: descriptor.DeniedDrop, Regions: &descriptor.Regions{Mode: descriptor.Eventual},
	})
	if o, err := w.take(w.of["a"][0], "x", 60, patience); err != nil || !o.Allowed {
		t.Fatalf("%+v, %v", o, err)
	}
	for _, p := range w.of["b"] {
		redistest.Eventually(t, "a replica hears of the other region", func(context.Context) error {
			if o, err := w.take(p, "x", 0, patience); err != nil || o.Used != 60 {
				return fmt.Errorf("%+v, %w", o, err)
			}
			return nil
		})
		if o, err := w.take(p, "x", 41, patience); err != nil || o.Allowed {
			t.Errorf("41 hits after 60 of 100: %+v, %v", o, err)
		}
	}
	if o, err := w.take(w.of["b"][1], "x", 40, patience); err != nil || !o.Allowed || o.Used != 100 {
		t.Errorf("40 hits after 60 of 100: %+v, %v", o, err)
	}
}

// The port of a region accepts no longer list, so nobody would answer.
func TestTooManyRegions(t *testing.T) {
	names := make([]string, 65)
	for i := range names {
		names[i] = fmt.Sprintf("r%d", i)
	}
	for n, ok := range map[int]bool{64: true, 65: false} {
		_, err := regions.New(regions.Options{Region: "r0", Regions: names[:n], Epoch: 1, Store: memory.New(memory.Options{}), Records: memory.NewRecords(0)})
		if (err == nil) != ok {
			t.Errorf("%d regions: %v", n, err)
		}
	}
}
