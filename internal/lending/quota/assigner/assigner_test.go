package assigner_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/config/override"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/lending/quota"
	"github.com/ratelimitd/ratelimitd/internal/lending/quota/assigner"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
)

// The requests that clients pass, and the hits that their reports charge, add up to the limit: for each algorithm and
// several windows.
func TestClientsShareALimit(t *testing.T) {
	algorithms := map[string]func(*descriptor.Limit){
		"fixed window":   func(*descriptor.Limit) {},
		"sliding window": func(l *descriptor.Limit) { l.Algorithm = descriptor.SlidingWindow },
		"sliding log":    func(l *descriptor.Limit) { l.Algorithm = descriptor.SlidingLog },
		"token bucket":   func(l *descriptor.Limit) { l.Algorithm, l.Burst = descriptor.TokenBucket, l.Requests },
		"leaky bucket":   func(l *descriptor.Limit) { l.Algorithm, l.Burst = descriptor.LeakyBucket, l.Requests },
	}
	for name, change := range algorithms {
		for _, c := range []struct {
			name     string
			requests uint64
			unit     descriptor.Unit
		}{{"second", 100, descriptor.Second}, {"minute", 600, descriptor.Minute}, {"hour", 18_000, descriptor.Hour}} {
			t.Run(name+"/"+c.name, func(t *testing.T) {
				l := limitOf(c.requests, c.unit, change)
				inWorld(t, assigner.Options{}, []descriptor.NodeSpec{node("k", l)}, func(w *world) {
					window := l.Window.Length()
					rate := float64(c.requests) / window.Seconds()
					demand := rate
					if c.unit == descriptor.Hour {
						demand = 4 * rate
					}
					for range 3 {
						w.join(demand, pair("k", "a"))
						w.pass(2 * time.Second)
					}
					span := max(window, time.Minute)
					all := 0.0
					for range 3 {
						before := w.passed()
						w.pass(span)
						got, limit := w.passed()-before, rate*span.Seconds()
						bound := float64(l.Capacity()) + limit
						t.Logf("passed %.0f in %s, limit %.0f, bound %.0f", got, span, limit, bound)
						if got > bound {
							t.Errorf("%.0f passed in %s; the bound is %.0f", got, span, bound)
						}
						all += got
					}
					if limit := 3 * rate * span.Seconds(); all < 0.95*limit {
						t.Errorf("%.0f of %.0f passed", all, limit)
					}
				})
			})
		}
	}
}

// Assignments that do not depend on other clients.
func TestFixedAnswers(t *testing.T) {
	shadow := descriptor.NodeSpec{Key: "shadow", Rule: &descriptor.Rule{RuleSettings: descriptor.RuleSettings{Shadow: true}, Limits: []descriptor.Limit{limitOf(1, descriptor.Hour)}}}
	unlimited := descriptor.NodeSpec{Key: "unlimited", Rule: &descriptor.Rule{Unlimited: true}}
	places := node("places", limitOf(5, descriptor.Minute, func(l *descriptor.Limit) { l.Algorithm = descriptor.Concurrency }))
	nodes := []descriptor.NodeSpec{shadow, unlimited, node("zero", limitOf(0, descriptor.Second)), places}
	inWorld(t, assigner.Options{}, nodes, func(w *world) {
		want := map[string]quota.Kind{"shadow": quota.AllowAll, "unlimited": quota.AllowAll, "zero": quota.DenyAll, "nobody": quota.AllowAll, "places": quota.None}
		clients := make(map[string]*client)
		for key := range want {
			clients[key] = w.join(10, pair(key, "a"))
		}
		w.pass(11 * time.Second)
		for key, k := range want {
			if !clients[key].holds(k) {
				t.Errorf("%s: %s, want %s", key, clients[key].Held.Kind, k)
			}
		}
		if n := w.used(pair("shadow", "a")); n < 80 {
			t.Errorf("%d requests are counted in shadow", n)
		}
		// The rules change: the limit applies now.
		w.limiter.Swap(treeOf(t, node("nobody", limitOf(0, descriptor.Second)), node("zero", limitOf(10, descriptor.Second))), limiter.Settings{})
		w.pass(6 * time.Second) // a bucket without a rule is not kept: a rule applies with its next report
		if c := clients["nobody"]; !c.holds(quota.DenyAll) {
			t.Errorf("%s after the rules changed", c.Held.Kind)
		}
		if c := clients["zero"]; !c.holds(quota.Tokens) {
			t.Errorf("%s after the rules changed", c.Held.Kind)
		}
	})
}

// A client whose stream breaks returns with its assignment, and keeps its part of the limit.
func TestReconnect(t *testing.T) {
	inWorld(t, assigner.Options{}, []descriptor.NodeSpec{node("k", limitOf(100, descriptor.Second))}, func(w *world) {
		a, b := w.join(100, pair("k", "a")), w.join(100, pair("k", "a"))
		w.pass(30 * time.Second)
		before := w.passed()
		for range 3 {
			a.close()
			a.reconnect(w)
			w.pass(10 * time.Second)
		}
		if got := w.passed() - before; got < 0.95*3000 || got > 3100 {
			t.Errorf("%.0f of 3000 passed: %+v %+v", got, a.Held, b.Held)
		}
	})
}

// A bucket without requests is abandoned, and its next request subscribes to it again.
func TestIdleBucketIsAbandoned(t *testing.T) {
	inWorld(t, assigner.Options{Idle: time.Minute}, []descriptor.NodeSpec{node("k", limitOf(10, descriptor.Second))}, func(w *world) {
		c := w.join(5, pair("k", "a"))
		w.pass(20 * time.Second)
		c.Demand = 0
		w.pass(100 * time.Second)
		if _, _, n := w.Shares(time.Now(), "d", nil, 10); n != 0 || c.abandoned != 1 {
			t.Errorf("%d buckets, abandoned %d times", n, c.abandoned)
		}
		c.Demand = 5
		w.pass(10 * time.Second)
		if _, _, n := w.Shares(time.Now(), "d", nil, 10); n != 1 || !c.holds(quota.Tokens) {
			t.Errorf("%d buckets, %s", n, c.Held.Kind)
		}
	})
}

// The list for operators contains the requested buckets, even if others have more demand.
func TestSharesOfSomeBuckets(t *testing.T) {
	l := limitOf(1000, descriptor.Second)
	inWorld(t, assigner.Options{}, []descriptor.NodeSpec{{Key: "k", Children: []descriptor.NodeSpec{node("n", l)}}}, func(w *world) {
		for i, demand := range []float64{5, 50, 500} {
			for _, name := range []string{"a", "b"} {
				w.join(demand, pair("k", name), pair("n", fmt.Sprint(i)))
			}
		}
		w.pass(20 * time.Second)
		for _, c := range []struct {
			domain          string
			where           []descriptor.Entry
			n               int
			first           string
			listed          int
			matching, total int
		}{
			{"d", nil, 10, "2", 6, 6, 6},
			{"d", nil, 2, "2", 2, 6, 6},
			{"d", []descriptor.Entry{pair("n", "0")}, 10, "0", 2, 2, 6},
			{"d", []descriptor.Entry{pair("k", "a")}, 1, "2", 1, 3, 6},
			{"d", []descriptor.Entry{pair("n", "1"), pair("k", "b")}, 10, "1", 1, 1, 6},
			{"d", []descriptor.Entry{pair("n", "3")}, 10, "", 0, 0, 6},
			{"other", nil, 10, "", 0, 0, 0},
		} {
			all, matching, total := w.Shares(time.Now(), c.domain, c.where, c.n)
			first := ""
			if len(all) > 0 {
				first = all[0].Entries[1].Value
			}
			if len(all) != c.listed || first != c.first || matching != c.matching || total != c.total {
				t.Errorf("%+v: %d listed, the first is %q, %d match of %d", c, len(all), first, matching, total)
			}
		}
	})
}

// A client with false reports takes nothing from the others.
func TestHostileReports(t *testing.T) {
	inWorld(t, assigner.Options{}, []descriptor.NodeSpec{node("k", limitOf(6000, descriptor.Minute))}, func(w *world) {
		honest := w.join(50, pair("k", "a"))
		liar := w.Open("liar")
		id := []descriptor.Entry{pair("k", "a")}
		for range 12 {
			liar.Report(time.Now(), "d", []assigner.Usage{{ID: id, Allowed: 1<<64 - 1, Denied: 1<<64 - 1}})
			w.pass(5 * time.Second)
			held(liar)
		}
		before := honest.Passed
		w.pass(10 * time.Second)
		if got := honest.Passed - before; got < 0.9*10*49 {
			t.Errorf("the honest client passed %.0f of 500 requests: %+v", got, honest.Held)
		}
		liar.Close(time.Now())
	})
}

// Subscriptions are bounded. A stream with few displaces one of the stream with the most.
func TestBounds(t *testing.T) {
	inWorld(t, assigner.Options{MaxPerStream: 8, MaxSubscriptions: 10}, []descriptor.NodeSpec{node("k", limitOf(10, descriptor.Second))}, func(w *world) {
		report := func(s *assigner.Stream, n int) {
			for i := range n {
				s.Report(time.Now(), "d", []assigner.Usage{{ID: []descriptor.Entry{pair("k", string(rune('a'+i)))}, Allowed: 1}})
			}
			w.pass(2 * time.Second)
		}
		large, small := w.Open("large"), w.Open("small")
		report(large, 20)
		if n := held(large); n != 8 {
			t.Errorf("a stream has %d buckets, want 8", n)
		}
		report(small, 20)
		if n := held(small); n != 5 {
			t.Errorf("a second stream has %d buckets, want half of all: 5", n)
		}
		large.Close(time.Now())
		small.Close(time.Now())
	})
	inWorld(t, assigner.Options{MaxBuckets: 3}, []descriptor.NodeSpec{node("k", limitOf(10, descriptor.Second))}, func(w *world) {
		for range 2 {
			s := w.Open("client")
			for i := range 5 {
				s.Report(time.Now(), "d", []assigner.Usage{{ID: []descriptor.Entry{pair("k", string(rune('a'+i)))}, Allowed: 1}})
			}
			w.pass(2 * time.Second)
			if n := held(s); n != 3 {
				t.Errorf("a stream has %d buckets, want the 3 that there may be", n)
			}
			defer s.Close(time.Now())
		}
	})
}

// ShouldRateLimit and clients with assignments share a limit.
func TestBothProtocolsShareALimit(t *testing.T) {
	for name, unit := range map[string]descriptor.Unit{"second": descriptor.Second, "minute": descriptor.Minute} {
		t.Run(name, func(t *testing.T) {
			l := limitOf(100*uint64(unit.Length()/time.Second), unit)
			inWorld(t, assigner.Options{}, []descriptor.NodeSpec{node("k", l)}, func(w *world) {
				w.join(60, pair("k", "a"))
				w.pass(2 * time.Minute)
				passed, before := 0.0, w.passed()
				for range int(2 * time.Minute / tick) { // 200 per second
					for range 10 {
						var d limiter.Decision
						req := &limiter.Request{Domain: "d", Descriptors: []limiter.Descriptor{{Entries: []descriptor.Entry{pair("k", "a")}}}}
						if err := w.limiter.Decide(t.Context(), time.Now(), req, &d); err != nil {
							t.Fatal(err)
						}
						if d.Code == limiter.OK {
							passed++
						}
					}
					w.pass(tick)
				}
				both := passed + w.passed() - before
				t.Logf("%.0f passed by requests, %.0f by assignments, of 12000", passed, w.passed()-before)
				if both > 1.15*12_000 || both < 0.95*12_000 {
					t.Errorf("%.0f passed by requests, %.0f by assignments, of 12000", passed, w.passed()-before)
				}
			})
		})
	}
}

// held reads the actions for a client, and returns their number.
func held(s *assigner.Stream) (n int) {
	for {
		all, err := next(s)
		if err != nil {
			return n
		}
		s.Sent(time.Now())
		n += len(all)
	}
}

// An override of a customer applies to the assignments of its clients.
func TestOverrides(t *testing.T) {
	n := node("k", limitOf(10, descriptor.Second))
	n.Rule.OverrideMax = descriptor.OverrideUnbounded
	inWorld(t, assigner.Options{}, []descriptor.NodeSpec{n}, func(w *world) {
		c := w.join(100, pair("k", "a"))
		for _, x := range []struct {
			numbers override.Numbers
			kind    quota.Kind
			passed  float64 // passed requests in ten seconds
		}{
			{override.Numbers{}, quota.Tokens, 100},
			{override.Numbers{Kind: override.Replace, Requests: 50}, quota.Tokens, 500},
			{override.Numbers{Kind: override.Blocked}, quota.DenyAll, 0},
			{override.Numbers{Kind: override.Unlimited}, quota.AllowAll, 1000},
			{override.Numbers{Kind: override.Scale, Requests: 2_000_000}, quota.Tokens, 200},
		} {
			set := new(override.Set)
			if x.numbers.Kind != 0 {
				set = set.With(1, []override.Change{{Identity: override.Identity{Domain: "d", Rule: "d.k", Entries: []descriptor.Entry{pair("k", "a")}}, Numbers: x.numbers}})
			}
			w.limiter.SetOverrides(set)
			w.pass(20 * time.Second)
			before := c.Passed
			w.pass(10 * time.Second)
			if got := c.Passed - before; !c.holds(x.kind) || got > 1.05*x.passed || got < 0.93*x.passed {
				t.Errorf("%+v: %.0f passed in 10 s, want %.0f: %+v", x.numbers, got, x.passed, c.Held)
			}
		}
	})
}
