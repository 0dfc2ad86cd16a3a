package memory

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/platform/metric/prom"
)

var march = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func ruleOf(domain, key string) *descriptor.Rule {
	return &descriptor.Rule{Domain: domain, Levels: []descriptor.Level{{Key: key}}}
}

// ask takes hits of a customer under a rule with the limit perMinute.
func ask(tb testing.TB, s *Store, r *descriptor.Rule, now time.Time, caller any, hits int64) backend.Outcome {
	tb.Helper()
	req := backend.Request{
		Takes:    []backend.Take{{Key: fmt.Append(nil, r.Domain, r.Levels, caller), Limit: &perMinute, Rule: r, Hits: hits}},
		Outcomes: make([]backend.Outcome, 1),
	}
	if err := backend.Await(context.Background(), s, now, &req); err != nil {
		tb.Fatal(err)
	}
	return req.Outcomes[0]
}

// A rule that fills the store leaves room for other rules and other domains. All of its customers still get an answer.
func TestNobodyUsesUpWhatOthersNeed(t *testing.T) {
	const bound = 16_000
	s := New(Options{MaxCounters: bound})
	flooded, neighbour, other := ruleOf("a", "flooded"), ruleOf("a", "neighbour"), ruleOf("b", "other")
	flood := func(r *descriptor.Rule) {
		for i := range 2 * bound {
			ask(t, s, r, march, i, 1)
		}
	}
	ask(t, s, flooded, march, "old", 2)
	flood(flooded)
	if n := s.Len(); n != bound*7/8 {
		t.Errorf("one rule has %d of %d counters, want 7/8", n, bound)
	}
	exact := func(r *descriptor.Rule, callers int) {
		t.Helper()
		for i := range callers {
			for hit := range int64(7) {
				if o := ask(t, s, r, march, fmt.Sprint("new", i), 1); o.Allowed != (hit < 5) {
					t.Fatalf("%s %s, caller %d, hit %d: %+v", r.Domain, r.Levels, i, hit, o)
				}
			}
		}
	}
	exact(neighbour, bound/100)
	exact(other, bound/100)
	flood(neighbour)
	if n := s.Len(); n > bound*15/16+bound/100 {
		t.Errorf("one domain has %d of %d counters, want no more than 15/16", n-bound/100, bound)
	}
	exact(ruleOf("c", "third"), bound/100)
	if o := ask(t, s, flooded, march, "old", 1); o.Before != 2 {
		t.Errorf("an old counter says %+v, want 2 before", o)
	}
}

// Where counters are shared, the hits under a limit in shadow do not count under the limit next to it, which has the
// same window.
func TestSharedCountersOfALimitInShadow(t *testing.T) {
	s, r := New(Options{MaxCounters: 1, Shared: 2}), ruleOf("d", "k")
	ask(t, s, r, march, "first", 1)
	shadow := perMinute
	shadow.Name, shadow.Enforcement = "new", descriptor.EnforcedInShadow
	for hit := range int64(6) {
		req := backend.Request{
			Takes:    []backend.Take{{Key: []byte("new"), Limit: &shadow, Rule: r, Hits: 1, Vote: backend.VoteNone}, {Key: []byte("now"), Limit: &perMinute, Rule: r, Hits: 1}},
			Outcomes: make([]backend.Outcome, 2),
		}
		if err := backend.Await(t.Context(), s, march, &req); err != nil {
			t.Fatal(err)
		}
		if o := req.Outcomes; o[1].Before != hit || o[1].Allowed != (hit < 5) {
			t.Errorf("hit %d: %+v", hit, o)
		}
	}
}

// A refund or reset in a shared counter could remove another customer's hits: the counter stays as it is, and a metric
// counts the dropped refund or reset.
func TestRefundsAndResetsOfSharedCounters(t *testing.T) {
	metrics := prometheus.NewPedanticRegistry()
	s := New(Options{MaxCounters: 1, Shared: 1, Metrics: prom.With(metrics)})
	r := ruleOf("d", "k")
	ask(t, s, r, march, "first", 5)
	ask(t, s, r, march, "a", 2)
	ask(t, s, r, march, "b", 2)
	if o := ask(t, s, r, march, "b", -2); !o.Allowed || o.Used != 4 {
		t.Errorf("a refund: %+v, want allowed, with 4 in use", o)
	}
	key := fmt.Append(nil, r.Domain, r.Levels, "b")
	if err := s.Reset(t.Context(), []backend.Counter{{Key: key, Limit: &perMinute, Rule: r}}); err != nil {
		t.Fatal(err)
	}
	if o := ask(t, s, r, march, "a", 1); !o.Allowed || o.Used != 5 {
		t.Errorf("after a refund and a reset of another caller: %+v, want 5 in use", o)
	}
	if err := testutil.GatherAndCompare(metrics, strings.NewReader(`# HELP ratelimitd_memory_counters Counters and reservations in memory.
# TYPE ratelimitd_memory_counters gauge
ratelimitd_memory_counters 1
# HELP ratelimitd_memory_counters_max Most counters and reservations in memory.
# TYPE ratelimitd_memory_counters_max gauge
ratelimitd_memory_counters_max 1
# HELP ratelimitd_memory_shared_takes_total Attempts answered by a shared counter, because memory is full.
# TYPE ratelimitd_memory_shared_takes_total counter
ratelimitd_memory_shared_takes_total{domain="d"} 3
`)); err != nil {
		t.Error(err)
	}

	// If there is room, a reset gives the customer a separate counter.
	first := fmt.Append(nil, r.Domain, r.Levels, "first")
	if err := s.Reset(t.Context(), []backend.Counter{{Key: first, Limit: &perMinute, Rule: r}}); err != nil {
		t.Fatal(err)
	}
	s.Sweep(march.Add(59 * time.Second))
	if o := ask(t, s, r, march, "first", 1); !o.Allowed || o.Before != 0 {
		t.Errorf("after its reset a caller with a counter has %+v", o)
	}
}

// A customer who gets a separate counter inherits the used hits of the shared one.
func TestNewCountersInheritFromSharedOnes(t *testing.T) {
	s := New(Options{MaxCounters: 1, Shared: 1})
	r := ruleOf("d", "k")
	old := descriptor.Limit{Requests: 5, Window: descriptor.Window{Unit: descriptor.Second}}
	req := backend.Request{Takes: []backend.Take{{Key: []byte("old"), Limit: &old, Rule: r, Hits: 1}}, Outcomes: make([]backend.Outcome, 1)}
	if err := backend.Await(t.Context(), s, march, &req); err != nil {
		t.Fatal(err)
	}
	ask(t, s, r, march, "a", 3)
	s.Sweep(march.Add(time.Second))
	if o := ask(t, s, r, march, "a", 1); !s.Holds(fmt.Append(nil, r.Domain, r.Levels, "a")) || o.Before != 3 {
		t.Errorf("%+v, want a counter of its own with 3 before", o)
	}
}

// A denied hit that counts is not lost when the customer gets a separate counter, even if the used number stays the
// same.
func TestInheritedLogCountsDeniedHits(t *testing.T) {
	l := descriptor.Limit{Requests: 1, Algorithm: descriptor.SlidingLog, Window: descriptor.Window{Unit: descriptor.Minute}}
	if err := l.Compile(); err != nil {
		t.Fatal(err)
	}
	for _, together := range []bool{false, true} {
		s := New(Options{MaxCounters: 1, Shared: 1})
		r := ruleOf("d", "k")
		log := func(now time.Time, key string) backend.Outcome {
			req := backend.Request{Takes: []backend.Take{{Key: []byte(key), Limit: &l, Rule: r, Hits: 1, CountDenied: true}}, Outcomes: make([]backend.Outcome, 2), Together: together}
			if together {
				req.Takes = append(req.Takes, backend.Take{Key: []byte("unlimited"), Limit: &perMinute, Rule: ruleOf("d", "other"), Member: 1})
			}
			if err := backend.Await(t.Context(), s, now, &req); err != nil {
				t.Fatal(err)
			}
			return req.Outcomes[0]
		}
		log(march.Add(-30*time.Second), "old")
		log(march, "a")
		s.Sweep(march.Add(40 * time.Second)) // removes old counters
		if o := log(march.Add(50*time.Second), "a"); o.Allowed {
			t.Fatalf("%+v, want denied", o)
		}
		s.Sweep(march.Add(70 * time.Second))
		if o := log(march.Add(70*time.Second), "a"); o.Allowed {
			t.Errorf("together %v: 20 s after a denied hit that counts: %+v, want denied", together, o)
		}
	}
}

// A rule always has a shared counter. Windows that requests bring are unbounded in number, and do not use these
// counters up.
func TestWindowsOfRequestsDoNotUseUpSharedCounters(t *testing.T) {
	s := New(Options{MaxCounters: 1, Shared: 1000})
	requests := &descriptor.Rule{Domain: "d"}
	full := 0
	for i := range 5000 {
		l := descriptor.Limit{Requests: 5, Window: descriptor.Window{Unit: descriptor.Minute, Multiplier: uint32(i + 1)}}
		req := backend.Request{Takes: []backend.Take{{Key: fmt.Append(nil, i), Limit: &l, Rule: requests, Hits: 1}}, Outcomes: make([]backend.Outcome, 1)}
		if err := backend.Await(t.Context(), s, march, &req); errors.Is(err, backend.ErrFull) {
			full++
		} else if err != nil {
			t.Fatal(err)
		}
	}
	if full == 0 || s.shares.free < 400 {
		t.Errorf("%d windows were denied, %d of 1000 cells are left for rules", full, s.shares.free)
	}
	for i := range 5000 {
		if o := ask(t, s, ruleOf("d", fmt.Sprint(i)), march, "a", 1); !o.Allowed {
			t.Fatalf("rule %d: %+v", i, o)
		}
	}
	s.Sweep(march.Add(100 * 365 * 24 * time.Hour))
	if s.shares.free != 1000 || len(s.shares.byRule) != 0 || s.shares.rows.Load() != 0 || s.Len() != 0 {
		t.Errorf("after everything has expired: %d cells are free, %d rules, %d rows, %d counters", s.shares.free, len(s.shares.byRule), s.shares.rows.Load(), s.Len())
	}
}

// Under attack, a customer who keeps calling keeps the same counter from window to window. A new customer gets a
// separate counter soon after the attack.
func TestCallersKeepTheirCountersWhileTheStoreIsFlooded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const bound = 2000
		s := New(Options{MaxCounters: bound})
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- s.Run(ctx) }()
		r := ruleOf("d", "k")
		began := time.Now()
		regular := fmt.Append(nil, r.Domain, r.Levels, "regular")
		for i := 0; time.Since(began) < 3*time.Minute; i++ {
			for j := range 20 {
				ask(t, s, r, time.Now(), fmt.Sprint("attacker", i, j), 1)
			}
			if i%20 == 0 { // every two seconds
				ask(t, s, r, time.Now(), "regular", 1)
				if !s.Holds(regular) {
					t.Fatalf("after %v a caller who calls every 2 s has no counter of its own", time.Since(began))
				}
			}
			time.Sleep(100 * time.Millisecond) //nolint:forbidigo // virtual time
		}
		time.Sleep(70 * time.Second) //nolint:forbidigo // virtual time
		ask(t, s, r, time.Now(), "late", 1)
		if !s.Holds(fmt.Append(nil, r.Domain, r.Levels, "late")) {
			t.Error("70 s after the attack a new caller has no counter of its own")
		}
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// Rules that share a counter by a condition share it in a full store too, regardless of their numbers, their patterns
// and the names of their limits are. A limit that is tried out in one of them does not.
func TestFullStoreAndRulesOfOneCounter(t *testing.T) {
	limit := func(requests uint64, name string, change func(*descriptor.Limit)) *descriptor.Rule {
		l := descriptor.Limit{Name: name, Requests: requests, Window: descriptor.Window{Unit: descriptor.Day}}
		if change != nil {
			change(&l)
		}
		return &descriptor.Rule{Limits: []descriptor.Limit{l}}
	}
	plan := func(name, user string, r *descriptor.Rule) descriptor.NodeSpec {
		return descriptor.NodeSpec{Key: "plan", Value: name, Condition: true, Children: []descriptor.NodeSpec{{Key: "user", Value: user, Rule: r}}}
	}
	scheduled := func(l *descriptor.Limit) { l.Scheduled = true }
	for name, test := range map[string]struct {
		plans    []descriptor.NodeSpec
		admitted int
	}{
		"numbers": {[]descriptor.NodeSpec{plan("free", "", limit(100, "a", nil)), plan("pro", "", limit(100, "b", nil)), plan("", "", limit(100, "c", nil))}, 100},
		"values":  {[]descriptor.NodeSpec{plan("free", "x", limit(100, "a", nil)), plan("pro", "", limit(100, "b", nil))}, 100},
		"active times": {[]descriptor.NodeSpec{
			plan("free", "", limit(100, "a", scheduled)), plan("pro", "", limit(100, "b", scheduled)),
		}, 100},
		"a trial": {[]descriptor.NodeSpec{
			plan("free", "", limit(100, "a", nil)), plan("pro", "", limit(100, "b", func(l *descriptor.Limit) { l.Enforcement = descriptor.EnforcedInShadow })),
		}, 200},
	} {
		t.Run(name, func(t *testing.T) {
			tree, err := descriptor.Compile([]descriptor.DomainSpec{{Name: "d", Children: test.plans}}, descriptor.Options{})
			if err != nil {
				t.Fatal(err)
			}
			s := New(Options{MaxCounters: 1})
			ask(t, s, ruleOf("other", "flood"), march, "flood", 1)
			admitted := 0
			for _, r := range tree.Rules {
				for range 150 {
					key := descriptor.KeyBuilder{}.AppendKey(nil, "d", []descriptor.Entry{{Key: "plan", Value: "any"}, {Key: "user", Value: "x"}}, r, &r.Limits[0])
					req := backend.Request{Takes: []backend.Take{{Key: key, Limit: &r.Limits[0], Rule: r, Hits: 1}}, Outcomes: make([]backend.Outcome, 1)}
					if err := backend.Await(t.Context(), s, march, &req); err != nil {
						t.Fatal(err)
					}
					if req.Outcomes[0].Allowed {
						admitted++
					}
				}
			}
			if s.Len() != 1 {
				t.Fatalf("%d counters: the store is not full", s.Len())
			}
			if admitted != test.admitted {
				t.Errorf("%d of %d admitted under %d rules of one counter", admitted, test.admitted, len(tree.Rules))
			}
		})
	}
}
