package regions_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/backend/region"
	"github.com/ratelimitd/ratelimitd/internal/backend/regions"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
)

// algorithms are limits of 600 that none of these tests outlives, by all algorithms that can be divided.
func algorithms() map[string]descriptor.Limit {
	return map[string]descriptor.Limit{
		"fixed":     {Requests: 600, Window: day},
		"first_hit": {Requests: 600, Window: day, FirstHit: true},
		"sliding":   {Requests: 600, Window: day, Algorithm: descriptor.SlidingWindow},
		"precise":   {Requests: 600, Window: day, Algorithm: descriptor.SlidingWindow, Precision: 4},
		"log":       {Requests: 600, Window: hour, Algorithm: descriptor.SlidingLog},
		"interval":  {Requests: 600, Burst: 600, Window: day, Algorithm: descriptor.TokenBucket, Interval: true},
	}
}

// storm makes takes of one hit in all processes at once until nothing is admitted any more, and returns how many were.
func (w *world) storm(name string) (admitted int64) {
	var n atomic.Int64
	var wg sync.WaitGroup
	for _, region := range w.names {
		for _, p := range w.of[region] {
			for range 4 {
				wg.Go(func() {
					for denied := 0; denied < 3; {
						o, err := w.take(p, name, 1, patience)
						switch {
						case err != nil:
							denied++ // nothing is granted at present
						case o.Allowed:
							n.Add(1)
							denied = 0
						default:
							denied++
						}
					}
				})
			}
		}
	}
	wg.Wait()
	return n.Load()
}

// In every mode and by every algorithm, all regions together admit the limit and no more, and all of it is used.
func TestExact(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{regions: 3, processes: 2})
	for kind, l := range algorithms() {
		for mode, limit := range map[string]descriptor.Limit{"escrow": escrow("a", l), "home": atHome("a", l)} {
			name := mode + " " + kind
			w.limit(name, limit)
			t.Run(name, func(t *testing.T) {
				admitted := w.storm(name)
				if admitted > 600 {
					t.Errorf("%d admitted, the limit is 600", admitted)
				}
				// Permits that one region holds while all others are denied are returned within a second or two, and used then.
				redistest.Eventually(t, "the rest is used", func(context.Context) error {
					if admitted += w.storm(name); admitted < 600 {
						return fmt.Errorf("%d admitted", admitted)
					}
					return nil
				})
				if admitted != 600 {
					t.Errorf("%d admitted, the limit is 600", admitted)
				}
			})
		}
	}
}

// In no window are more admitted than the limit, also while one ends: what is certainly in a window, because it began and ended there,
// is at most the limit.
func TestExactWindows(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{regions: 2, processes: 2})
	second := descriptor.Window{Unit: descriptor.Second}
	four := descriptor.Window{Unit: descriptor.Second, Multiplier: 4}
	limits := map[string]descriptor.Limit{
		"home": atHome("a", descriptor.Limit{Requests: 50, Window: second}), "escrow": escrow("a", descriptor.Limit{Requests: 200, Window: four}),
	}
	type window struct {
		limit string
		start int64
	}
	var mu sync.Mutex
	admitted := make(map[window]int64)
	var wg sync.WaitGroup
	end := time.Now().Truncate(4 * time.Second).Add(8 * time.Second).Add(200 * time.Millisecond)
	for name, l := range limits {
		w.limit(name, l)
		length := l.Window.Length().Microseconds()
		for _, region := range w.names {
			for _, p := range w.of[region] {
				wg.Go(func() {
					for time.Now().Before(end) {
						began := time.Now().UnixMicro()
						o, err := w.take(p, name, 1, patience)
						ended := time.Now().UnixMicro()
						if err == nil && o.Allowed && began/length == ended/length {
							mu.Lock()
							admitted[window{name, began / length}]++
							mu.Unlock()
						}
					}
				})
			}
		}
	}
	wg.Wait()
	whole := map[string]int64{}
	for at, n := range admitted {
		if most := int64(limits[at.limit].Requests); n > most {
			t.Errorf("%s: %d admitted in the window %d, the limit is %d", at.limit, n, at.start, most)
		}
		whole[at.limit] = max(whole[at.limit], n)
	}
	for name, l := range limits {
		if n := whole[name]; n < int64(l.Requests)*9/10 {
			t.Errorf("%s: at most %d of %d were admitted in any window", name, n, l.Requests)
		}
	}
}

// Messages that are lost or come twice make no hit count less than once.
func TestExactWhenMessagesAreLost(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{regions: 3, processes: 2})
	w.mu.Lock()
	w.lost, w.twice = 0.2, 0.2
	w.mu.Unlock()
	for mode, limit := range map[string]descriptor.Limit{"escrow": escrow("b", algorithms()["fixed"]), "home": atHome("b", algorithms()["fixed"])} {
		w.limit(mode, limit)
		admitted := int64(0)
		for range 5 {
			admitted += w.storm(mode)
		}
		if admitted > 600 || admitted < 300 {
			t.Errorf("%s: %d admitted of 600", mode, admitted)
		}
	}
}

// A region that was flushed does not get again what it held, and one that is cut off spends what it holds and then has no answer.
func TestExactWhenARegionFails(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{regions: 3, processes: 2})
	w.limit("x", escrow("a", algorithms()["fixed"]))
	b := w.of["b"][0]
	admitted := int64(0)
	for range 50 {
		if o, err := w.take(b, "x", 1, patience); err == nil && o.Allowed {
			admitted++
		}
	}
	if admitted != 50 {
		t.Fatalf("%d of 50 admitted", admitted)
	}
	if err := w.client("b").FlushAll(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	admitted += w.storm("x")
	if admitted > 600 {
		t.Errorf("%d admitted of 600 after a region was flushed", admitted)
	}

	w.limit("y", escrow("a", algorithms()["fixed"]))
	for range 50 {
		if _, err := w.take(b, "y", 1, patience); err != nil {
			t.Fatal(err)
		}
	}
	w.mu.Lock()
	w.cut["a"] = true
	w.mu.Unlock()
	spent, failed := 50, 0
	for range 1000 {
		o, err := w.take(b, "y", 1, 50*time.Millisecond)
		switch {
		case errors.Is(err, backend.ErrUnavailable):
			failed++
		case err != nil:
			t.Fatal(err)
		case o.Allowed:
			spent++
		}
	}
	if spent > 50+150 || failed == 0 {
		t.Errorf("%d admitted while the home was cut off, %d without an answer; all regions together hold 150", spent, failed)
	}
}

// When the clock of a region's Redis is set back, a process notices within a second or two, and the region gives up what it holds. Else its
// permits would last longer than the home believes.
func TestClockIsSetBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{regions: 2, processes: 2, clock: "b"})
	w.limit("x", escrow("a", algorithms()["fixed"]))
	b := w.of["b"][0]
	admitted := int64(0)
	for range 50 {
		o, err := w.take(b, "x", 1, patience)
		if err != nil {
			t.Fatal(err)
		}
		if o.Allowed {
			admitted++
		}
	}
	w.setClock(-30 * time.Second)
	client := w.client("b")
	redistest.Eventually(t, "the generation is raised, once", func(ctx context.Context) error {
		kept, err := client.Get(ctx, "{regions}:generation:{regions}").Bytes()
		if err == nil && (len(kept) != backend.RecordHead+1 || kept[backend.RecordHead] != 1) {
			err = fmt.Errorf("it is %x", kept)
		}
		return err
	})
	redistest.Eventually(t, "takes are answered again", func(context.Context) error {
		for _, p := range w.of["b"] {
			o, err := w.take(p, "x", 1, patience)
			if err != nil {
				return err
			}
			if o.Allowed {
				admitted++
			}
		}
		return nil
	})
	if admitted += w.storm("x"); admitted > 600 {
		t.Errorf("%d admitted of 600", admitted)
	}
}

// When all processes of a home are gone, the others spend what they hold. A process that starts there again continues with what its Redis
// has.
func TestHomeIsKilled(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{regions: 3, processes: 1})
	w.limit("x", escrow("a", algorithms()["fixed"]))
	admitted := int64(0)
	some := func(n int) (failed int) {
		for range n {
			for _, name := range []string{"b", "c"} {
				o, err := w.take(w.of[name][0], "x", 1, patience) // a take whose caller leaves may count
				switch {
				case err != nil:
					failed++
				case o.Allowed:
					admitted++
				}
			}
		}
		return failed
	}
	if failed := some(40); failed > 0 || admitted != 80 {
		t.Fatalf("%d admitted, %d without an answer", admitted, failed)
	}
	w.of["a"][0].stop()
	w.mu.Lock()
	w.of["a"] = nil
	w.mu.Unlock()
	if failed := some(200); failed == 0 || admitted > 80+150 {
		t.Errorf("%d admitted, %d without an answer, while the home was gone; all regions together hold 150", admitted, failed)
	}
	w.start("a", nil)
	w.awaitHomes()
	redistest.Eventually(t, "all is used", func(context.Context) error {
		if admitted += w.storm("x"); admitted < 600 {
			return fmt.Errorf("%d admitted", admitted)
		}
		return nil
	})
	if admitted != 600 {
		t.Errorf("%d admitted of 600", admitted)
	}
}

// A region without Redis keeps its account in the memory of its one process.
func TestRegionWithoutRedis(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{regions: 2, processes: 1, memory: "b"})
	w.limit("x", escrow("a", algorithms()["fixed"]))
	w.limit("y", atHome("b", algorithms()["fixed"]))
	for _, name := range []string{"x", "y"} {
		admitted := int64(0)
		redistest.Eventually(t, "all is used", func(context.Context) error {
			if admitted += w.storm(name); admitted < 600 {
				return fmt.Errorf("%d admitted", admitted)
			}
			return nil
		})
		if admitted != 600 {
			t.Errorf("%s: %d admitted of 600", name, admitted)
		}
	}
}

// Questions that no account can have asked, or that nobody may ask, are refused.
func TestBadQuestions(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{regions: 2, processes: 1})
	l := w.limit("x", escrow("a", algorithms()["fixed"]))
	w.limit("home", atHome("a", algorithms()["fixed"]))
	w.limit("far", escrow("b", algorithms()["fixed"]))
	a := w.of["a"][0]
	bucket := w.limit("bucket", escrow("a", slowBucket()))
	share := func(q region.ShareQuestion) regions.Query {
		return regions.Query{Domain: "test", Entries: []descriptor.Entry{{Key: "limit", Value: "bucket"}}, Limit: bucket.Tag(), Share: &q}
	}
	query := func(name string, q *region.Question) regions.Query {
		return regions.Query{Domain: "test", Entries: []descriptor.Entry{{Key: "limit", Value: name}}, Limit: l.Tag(), Permits: q}
	}
	good := region.Question{Incarnation: 7, Number: 1, Nonce: 9, Want: 1 << 30, Need: 1 << 50}
	hostile := good
	hostile.Grants = []region.Grant{{Incarnation: 7, Number: 1, Permits: 1, Used: 2}}
	for name, test := range map[string]struct {
		query regions.Query
		want  regions.Refusal
	}{
		"no rule":    {query("none", &good), regions.NoRule},
		"other mode": {query("home", &good), regions.OtherMode},
		"take":       {query("x", nil), regions.OtherMode},
		"other home": {query("far", &good), regions.OtherHome},
		"invalid":    {query("x", &hostile), regions.Invalid},
		"all of it":  {query("x", &good), regions.NotRefused},
		"negative":   {share(region.ShareQuestion{Incarnation: 7, Number: 1, Returned: -1}), regions.Invalid},
		"too many":   {share(region.ShareQuestion{Incarnation: 7, Number: 1, Returned: backend.MaxCount + 1}), regions.Invalid},
		"most":       {share(region.ShareQuestion{Incarnation: 7, Number: 1, Returned: backend.MaxCount}), regions.NotRefused},
	} {
		replies, err := a.Answer(t.Context(), "b", 1, []regions.Query{test.query})
		if err != nil || replies[0].Refused != test.want {
			t.Errorf("%s: %+v, %v", name, replies, err)
		}
	}
	again, err := a.Answer(t.Context(), "b", 1, []regions.Query{query("x", &good)})
	if err != nil || again[0].Permits.Result != region.Granted || again[0].Permits.Permits > 600 {
		t.Errorf("the same question again: %+v, %v", again[0].Permits, err)
	}
	if replies, err := a.Answer(t.Context(), "b", 9, []regions.Query{query("x", &good)}); err != nil || replies[0].Permits.Result != region.Outdated {
		t.Errorf("of another epoch: %+v, %v", replies, err)
	}
	if _, err := a.Answer(t.Context(), "z", 1, []regions.Query{query("x", &good)}); err == nil {
		t.Error("a region that is not in the list was answered")
	}
	if _, err := a.Answer(t.Context(), "b", 1, make([]regions.Query, regions.MaxQueries+1)); err == nil {
		t.Error("too many questions were answered")
	}
	if _, err := a.Consent(t.Context(), "b", &region.Epoch{Number: 1, Home: "a"}); err == nil {
		t.Error("a region asked for consent to another home")
	}
	// A region that remembers the highest number could never be a home again.
	if yes, err := a.Consent(t.Context(), "b", &region.Epoch{Number: math.MaxInt64, Home: "b", Regions: []string{"a", "b"}}); yes || err == nil || !strings.Contains(err.Error(), "is rejected") {
		t.Errorf("an epoch far above: %v, %v", yes, err)
	}
	if yes, err := a.Consent(t.Context(), "b", &region.Epoch{Number: 2_000_000_000, Home: "b", Regions: []string{"a", "b"}}); !yes || err != nil {
		t.Errorf("the seconds since 1970: %v, %v", yes, err)
	}
}

// A limit that is lowered at the home, and a caller who is blocked there, are known in the other region soon, although that holds permits.
func TestLoweredAndBlocked(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{regions: 2, processes: 2})
	b := w.of["b"][0]
	for _, name := range []string{"lowered", "blocked"} {
		own := w.limit(name, escrow("a", algorithms()["fixed"])) // what b still believes
		take := func() (backend.Outcome, error) { return w.takeUnder(b, name, own, 1, patience) }
		used := int64(0)
		for range 60 {
			if o, err := take(); err != nil || !o.Allowed {
				t.Fatalf("%s: %+v, %v", name, o, err)
			}
			used++
		}
		lower := *own
		if lower.Requests = 60; name == "blocked" {
			lower.Requests = 0
		}
		w.mu.Lock()
		w.limits[name] = &lower
		w.mu.Unlock()
		redistest.Eventually(t, name, func(context.Context) error {
			o, err := take()
			if err == nil && o.Allowed {
				used++
				err = errors.New("a take passes")
			}
			return err
		})
		if o, err := take(); err != nil || o.Allowed {
			t.Errorf("%s: %+v, %v after %d", name, o, err, used)
		}
	}
}

// Permits that a region does not use go back, and others use them.
func TestReturn(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{regions: 2, processes: 1})
	w.limit("x", escrow("a", algorithms()["fixed"]))
	b := w.of["b"][0]
	for range 20 { // so many that it is granted more than it needs
		if _, err := w.take(b, "x", 2, patience); err != nil {
			t.Fatal(err)
		}
	}
	redistest.Eventually(t, "all but 40 are left at the home", func(context.Context) error {
		o, err := w.take(w.of["a"][0], "x", 0, patience)
		if err == nil && o.Used != 40 {
			err = fmt.Errorf("%d used", o.Used)
		}
		return err
	})
}

// A rule that changes from regional within a window keeps what its home has counted.
func TestFromRegional(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{regions: 2, processes: 1})
	l := w.limit("x", algorithms()["fixed"])
	a := w.of["a"][0]
	if o, err := w.take(a, "x", 100, patience); err != nil || !o.Allowed {
		t.Fatalf("%+v, %v", o, err)
	}
	w.limit("x", escrow("a", *l))
	if o, err := w.take(a, "x", 1, patience); err != nil || o.Used != 101 {
		t.Errorf("%+v, %v: 101 are used", o, err)
	}
	if o, err := w.take(w.of["b"][0], "x", 500, patience); err != nil || o.Allowed {
		t.Errorf("%+v, %v: 499 are left", o, err)
	}
}

// A home moves in the order of the page "Limits across regions": the rules name it first, and nothing changes. Then it has its settings, and
// admits nothing at first, and the old home, which has accepted it, admits nothing more.
func TestMoveRulesBeforeSettings(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{regions: 2, processes: 1})
	old := w.rule("x", escrow("a", algorithms()["fixed"]))
	a, b := w.of["a"][0], w.of["b"][0]
	if o, err := w.take(a, "x", 100, patience); err != nil || !o.Allowed {
		t.Fatalf("%+v, %v", o, err)
	}
	w.rule("x", escrow("b", algorithms()["fixed"]))
	if o, err := w.take(a, "x", 1, patience); err != nil || o.Used != 101 {
		t.Fatalf("%+v, %v: the old home counts until the epoch changes", o, err)
	}
	b.stop()
	w.mu.Lock()
	w.of["b"] = nil
	w.mu.Unlock()
	b = w.start("b", nil, func(o *regions.Options) { o.Epoch, o.Before = 2, w.names })
	redistest.Eventually(t, "the old home accepts the new one and stops", func(context.Context) error {
		if o, err := w.takeUnder(a, "x", old, 1, patience); err == nil {
			return fmt.Errorf("it answers %+v", o)
		}
		return nil
	})
	for _, p := range []*process{a, b} {
		if o, err := w.take(p, "x", 1, time.Second); err == nil {
			t.Errorf("%s answers %+v during the move", p.Status().Region, o)
		}
	}
	a.stop()
	a = w.start("a", nil, func(o *regions.Options) { o.Epoch = 2 })
	if o, err := w.take(a, "x", 1, time.Second); err == nil {
		t.Errorf("with the new epoch the old home answers %+v", o)
	}
	if kept := a.Status().Kept; len(kept) > 0 {
		t.Errorf("with the new epoch the old home keeps %+v", kept)
	}
}

// Peek changes nothing, and Reset works at the home only.
func TestPeekAndReset(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{regions: 2, processes: 1})
	l := w.limit("x", escrow("a", algorithms()["fixed"]))
	a, b := w.of["a"][0], w.of["b"][0]
	for _, p := range []*process{a, b} {
		if _, err := w.take(p, "x", 10, patience); err != nil {
			t.Fatal(err)
		}
	}
	peek := func(p *process) backend.Outcome {
		r := &backend.Request{Takes: []backend.Take{{Key: keyOf("x"), Limit: l, Hits: 1, Origin: originOf("x")}}, Outcomes: make([]backend.Outcome, 1)}
		if err := p.Peek(t.Context(), time.Now(), r); err != nil {
			t.Fatal(err)
		}
		return r.Outcomes[0]
	}
	for range 3 {
		if o := peek(a); o.Used < 20 || !o.Allowed {
			t.Errorf("at the home: %+v", o)
		}
		if o := peek(b); o.Used < 20 || !o.Allowed {
			t.Errorf("elsewhere: %+v", o)
		}
	}
	counters := []backend.Counter{{Key: keyOf("x"), Limit: l}}
	if err := b.Reset(t.Context(), counters); err == nil || !strings.Contains(err.Error(), "region a") {
		t.Errorf("a reset elsewhere: %v", err)
	}
	if err := a.Reset(t.Context(), counters); err != nil {
		t.Fatal(err)
	}
	if o := peek(a); o.Used > 150 {
		t.Errorf("after the reset %+v; only what b holds is charged", o)
	}
	if admitted := w.storm("x"); admitted > 600 {
		t.Errorf("%d admitted after the reset", admitted)
	}
}

// A process stops without leaving anything behind that runs.
func TestStop(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{regions: 2, processes: 1})
	w.limit("x", escrow("a", algorithms()["fixed"]))
	b := w.of["b"][0]
	if _, err := w.take(b, "x", 1, patience); err != nil {
		t.Fatal(err)
	}
	b.stop()
	if _, err := w.take(b, "x", 599, time.Second); !errors.Is(err, backend.ErrUnavailable) {
		t.Errorf("a take that has to ask, after the end: %v", err)
	}
}
