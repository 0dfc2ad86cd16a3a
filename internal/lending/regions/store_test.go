package regions_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/backend/memory"
	"github.com/ratelimitd/ratelimitd/internal/config/override"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/lending/regions"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
)

const perMinute = `
domain: d
descriptors:
  - key: k
    overridable: true
    rate_limit: {unit: minute, requests_per_unit: 100, regions: {home: eu}}
  - key: near
    rate_limit: {unit: minute, requests_per_unit: 100}
  - key: hashed
    rate_limit: {unit: minute, requests_per_unit: 100, regions: {home: hash}}
`

// All regions take from one counter, whichever of them is its home.
func TestOneLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, perMinute, "ap eu us", 2)
		nextMinute()
		w.in("eu").wants(10, "k=a", limiter.OK, 90)
		w.in("us").wants(20, "k=a", limiter.OK, 70)
		w.of["us"][1].wants(30, "k=a", limiter.OK, 40)
		w.in("ap").wants(41, "k=a", limiter.OverLimit, 0)
		for i := range 20 {
			pair := fmt.Sprintf("hashed=%d", i)
			w.in("eu").wants(60, pair, limiter.OK, 40)
			w.in("us").wants(40, pair, limiter.OK, 0)
		}
		w.in("eu").wants(100, "near=a", limiter.OK, 0)
		w.in("us").wants(100, "near=a", limiter.OK, 0)
	})
}

// When `regions` is added to a rule, or removed from it, the hits counted by its home stay counted.
func TestRegionsAreAddedToARule(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, perMinute, "eu us", 1)
		nextMinute()
		w.in("eu").wants(60, "near=a", limiter.OK, 40)
		for _, name := range w.names {
			w.in(name).load(`{domain: d, descriptors: [{key: near, rate_limit: {unit: minute, requests_per_unit: 100, regions: {home: eu}}}]}`)
		}
		w.in("us").wants(30, "near=a", limiter.OK, 10)
		w.in("eu").load(perMinute)
		w.in("eu").wants(10, "near=a", limiter.OK, 0)
	})
}

// A denied counter costs no trip until the home has room again, and then requests pass after one trip.
func TestDeniedHere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, perMinute, "eu us", 1)
		us := w.in("us")
		nextMinute()
		us.wants(100, "k=a", limiter.OK, 0)
		us.wants(1, "k=a", limiter.OverLimit, 0)
		pass(time.Second)
		calls := w.calls.Load()
		for range 500 {
			if d, err := us.within(20*time.Millisecond, 1, "k=a"); err != nil || d.Code != limiter.OverLimit {
				t.Fatalf("%v, %v", d.Code, err)
			}
			pass(100 * time.Millisecond)
		}
		if n := w.calls.Load() - calls; n > 0 {
			t.Errorf("%d calls for requests of a counter that the home has denied", n)
		}
		nextMinute()
		if d, err := us.within(20*time.Millisecond, 1, "k=a"); err != nil || d.Code != limiter.OverLimit {
			t.Errorf("just after the window: %v, %v; an answer of the home is not here yet", d.Code, err)
		}
		pass(w.trip + time.Millisecond)
		us.wants(1, "k=a", limiter.OK, 99)
	})
}

// Hits that never fit are denied without a trip, too: hits of a blocked customer, and hits above the limit.
func TestHitsThatNeverFit(t *testing.T) {
	for _, more := range []string{
		"", ", count_denied: false", ", align: first_hit", ", algorithm: sliding_window", ", algorithm: sliding_log", ", algorithm: token_bucket",
		", algorithm: leaky_bucket, nodelay: all",
	} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, `{domain: d, descriptors: [{key: k, overridable: true, rate_limit: {unit: minute, requests_per_unit: 100, regions: {home: eu}`+more+`}}]}`, "eu us", 1)
			nextMinute()
			us := w.in("us")
			denied := func(hits int64, pair, what string) {
				_, _ = us.within(20*time.Millisecond, hits, pair) // it gives up before the answer arrives
				pass(w.trip)
				calls, unanswered := w.calls.Load(), 0
				for range 6000 { // five minutes
					d, err := us.within(20*time.Millisecond, hits, pair)
					if err != nil {
						unanswered++
					} else if d.Code != limiter.OverLimit || d.Statuses[0].RetryAfter != backend.Never {
						t.Fatalf("%s%s: %s, %+v, %v", what, more, d.Code, d.Statuses, err)
					}
					pass(50 * time.Millisecond)
				}
				// denied hits that count are free again in the next window
				if n := w.calls.Load() - calls; n > 20 || unanswered > 10 {
					t.Errorf("%s%s: %d calls, %d of 6000 requests without an answer", what, more, n, unanswered)
				}
			}
			denied(1000, "k=a", "1000 of 100")
			w.in("eu").override("d.k", override.Numbers{Kind: override.Blocked}, "k=b")
			pass(time.Second + w.trip + time.Millisecond)
			denied(1, "k=b", "a block")
			w.in("eu").SetOverrides(nil)
			pass(time.Second + w.trip + time.Millisecond)
			if d, err := us.ask(1, "k=b"); err != nil || d.Code != limiter.OK {
				t.Errorf("after the block%s: %s, %v", more, d.Code, err)
			}
		})
	}
}

// Denials by the home's denial cache enter the denial cache here as well.
func TestDeniedByTheCacheOfTheHome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, perMinute, "eu us", 1)
		nextMinute()
		w.in("eu").wants(101, "k=a", limiter.OverLimit, 0)
		w.in("us").wants(1, "k=a", limiter.OverLimit, 0)
		if d, err := w.in("us").within(20*time.Millisecond, 1, "k=a"); err != nil || d.Code != limiter.OverLimit {
			t.Errorf("%s, %v", d.Code, err)
		}
	})
}

// Changes at the home apply elsewhere within a second and a trip.
func TestChangesAtTheHome(t *testing.T) {
	for what, change := range map[string]func(w *world, eu *replica){
		"a reset": func(w *world, eu *replica) {
			if _, err := eu.Reset(w.t.Context(), time.Now(), "d", &limiter.Descriptor{Entries: entries("k=a")}); err != nil {
				w.t.Error(err)
			}
		},
		"a higher limit": func(_ *world, eu *replica) {
			eu.load(`{domain: d, descriptors: [{key: k, rate_limit: {unit: minute, requests_per_unit: 200, regions: {home: eu}}}]}`)
		},
		"an override": func(_ *world, eu *replica) {
			eu.override("d.k", override.Numbers{Kind: override.Replace, Requests: 1000}, "k=a")
		},
		"an override that lifts the limit": func(_ *world, eu *replica) {
			eu.override("d.k", override.Numbers{Kind: override.Unlimited}, "k=a")
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, perMinute, "eu us", 1)
			us := w.in("us")
			nextMinute()
			us.wants(100, "k=a", limiter.OK, 0)
			us.wants(1, "k=a", limiter.OverLimit, 0)
			pass(3 * time.Second)
			change(w, w.in("eu"))
			pass(time.Second + w.trip + time.Millisecond)
			if d, err := us.ask(1, "k=a"); err != nil || d.Code != limiter.OK {
				t.Errorf("after %s: %s, %v", what, d.Code, err)
			}
		})
	}
	// a lower limit or a block applies immediately, because takes that pass ask the home
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, perMinute, "eu us", 1)
		nextMinute()
		w.in("us").wants(10, "k=a", limiter.OK, 90)
		w.in("eu").override("d.k", override.Numbers{Kind: override.Blocked}, "k=a")
		w.in("us").wants(1, "k=a", limiter.OverLimit, 0)
	})
}

// When replicas of the home have heard of different numbers of resets, the other regions do not drop their denials
// after each answer.
func TestReplicasThatCountResets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, perMinute, "eu us", 2)
		us := w.in("us")
		nextMinute()
		us.wants(101, "k=a", limiter.OverLimit, 0)
		for i := range 2 {
			w.of["eu"][1].store.Cleared()
			pass(3 * time.Second)
			us.wants(1, "k=a", limiter.OverLimit, 0)
			calls := w.calls.Load()
			for range 200 {
				if d, err := us.within(20*time.Millisecond, 1, "k=a"); err != nil || d.Code != limiter.OverLimit {
					t.Fatalf("%d: %v, %v", i, d.Code, err)
				}
				pass(50 * time.Millisecond)
			}
			if n := w.calls.Load() - calls; n > 0 {
				t.Errorf("%d: %d calls for a counter that the home has denied", i, n)
			}
		}
		w.of["eu"][0].load(perMinute + "  - key: another\n    rate_limit: {unit: minute, requests_per_unit: 1}\n")
		pass(3 * time.Second)
		calls := w.calls.Load()
		us.wants(1, "k=a", limiter.OverLimit, 0)
		if n := w.calls.Load() - calls; n != 1 {
			t.Errorf("%d calls after a change of the rules in one replica", n)
		}
	})
}

// Overrides outside the home, from a file or from before the home has moved, do nothing.
func TestOverrideElsewhere(t *testing.T) {
	for _, kind := range []override.Kind{override.Unlimited, override.Blocked} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, perMinute, "eu us", 1)
			nextMinute()
			w.in("us").override("d.k", override.Numbers{Kind: kind}, "k=a")
			w.in("us").wants(60, "k=a", limiter.OK, 40)
			w.in("us").wants(60, "k=a", limiter.OverLimit, 0)
		})
	}
}

// Clients and operators see the home's numbers.
func TestNumbersOfTheHome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, perMinute, "eu us", 1)
		us := w.in("us")
		w.in("eu").load(`{domain: d, descriptors: [{key: k, rate_limit: {unit: minute, requests_per_unit: 30, regions: {home: eu}}}]}`)
		nextMinute()
		d, err := us.ask(10, "k=a")
		if err != nil || d.Statuses[0].Limit.Requests != 30 || d.Statuses[0].Remaining != 20 {
			t.Errorf("%+v, %v", d.Statuses[0], err)
		}
		seen, err := us.Peek(t.Context(), time.Now(), "d", &limiter.Descriptor{Entries: entries("k=a")})
		if err != nil || seen.List[0].Limit.Requests != 30 || seen.List[0].Used != 10 {
			t.Errorf("%+v, %v", seen.List, err)
		}
		us.wants(30, "k=a", limiter.OverLimit, 0)
		if d, err = us.ask(30, "k=a"); err != nil || d.Statuses[0].Limit.Requests != 30 {
			t.Errorf("denied from memory: %+v, %v", d.Statuses[0], err)
		}
	})
}

// The home counts under its unit and algorithm. Where it has no such rule, on_error decides.
func TestRulesDiffer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, perMinute, "eu us", 1)
		us, eu := w.in("us"), w.in("eu")
		nextMinute()
		eu.load(`{domain: d, descriptors: [{key: k, rate_limit: {unit: minute, requests_per_unit: 50, regions: {home: us}}}]}`)
		us.wants(10, "k=a", limiter.OK, 40)
		if st := us.store.Status(); st.Peers[0].Rules != regions.RulesDiffer {
			t.Errorf("%+v", st)
		}
		eu.load(`{domain: d, descriptors: [{key: other, rate_limit: {unit: minute, requests_per_unit: 50}}]}`)
		us.fails(1, "k=a", "no rule")
		if st := us.store.Status(); st.Peers[0].Rejection.Why != regions.NoRule {
			t.Errorf("%+v", st)
		}
		eu.load(`{domain: d, descriptors: [{key: k, rate_limit: {unit: hour, requests_per_unit: 50}}]}`)
		us.fails(1, "k=a", "no rule") // the identity of a counter has its window
	})
}

// After a lost answer, the hits stay counted, and nothing is sent twice.
func TestLostAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, perMinute, "eu us", 1)
		nextMinute()
		w.setLost(true)
		w.in("us").fails(10, "k=a", "ask the region eu")
		w.setLost(false)
		w.in("eu").wants(0, "k=a", limiter.OK, 90)
		w.setCut("eu", true)
		w.in("us").fails(10, "k=a", "ask the region eu")
		w.setCut("eu", false)
		w.in("us").wants(0, "k=a", limiter.OK, 90)
	})
}

// A request that does not wait for the trip has no answer, and the late answer denies the next one.
func TestLateAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, perMinute, "eu us", 1)
		us := w.in("us")
		nextMinute()
		w.in("eu").wants(100, "k=a", limiter.OK, 0)
		if d, err := us.within(20*time.Millisecond, 1, "k=a"); err == nil {
			t.Errorf("within 20 ms: %s", d.Code)
		}
		pass(w.trip)
		if d, err := us.within(20*time.Millisecond, 1, "k=a"); err != nil || d.Code != limiter.OverLimit {
			t.Errorf("%s, %v", d.Code, err)
		}
	})
}

// Hits are returned only in the window in which they were taken, and only if the home's domain allows refunds.
func TestRefunds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, perMinute, "eu us", 1)
		us, eu := w.in("us"), w.in("eu")
		nextMinute()
		us.wants(60, "k=a", limiter.OK, 40)
		us.wants(-20, "k=a", limiter.OK, 60)
		nextMinute()
		eu.wants(30, "k=a", limiter.OK, 70)
		nextMinute()
		// the refund arrives in the next window
		pass(time.Until(time.Now().Truncate(time.Minute).Add(time.Minute)) - 10*time.Millisecond)
		eu.wants(30, "k=a", limiter.OK, 70)
		done := make(chan error)
		go func() { _, err := us.ask(-30, "k=a"); done <- err }()
		pass(20 * time.Millisecond)
		eu.wants(30, "k=a", limiter.OK, 70)
		if err := <-done; err != nil {
			t.Error(err)
		}
		eu.wants(0, "k=a", limiter.OK, 70)
		eu.load("refunds: deny\n" + perMinute[1:])
		us.wants(-10, "k=a", limiter.OK, 70)
	})
}

// Requests with several limits are right because they are ordinary requests of the home's store.
func TestSeveralLimits(t *testing.T) {
	const rules = `
domain: d
admission: all_or_nothing
descriptors:
  - key: far
    rate_limits:
      - {name: minute, unit: minute, requests_per_unit: 10, regions: {home: eu}}
      - {name: trial, unit: minute, requests_per_unit: 5, shadow: true, regions: {home: eu}}
  - key: ours
    rate_limit: {unit: minute, requests_per_unit: 3, regions: {home: us}}
`
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, rules, "ap eu us", 1)
		ap := w.in("ap")
		nextMinute()
		for i := range 5 { // two homes: if one denies, the hits taken at the other are returned
			d, err := ap.ask(1, "far=a", "ours=a")
			if want := i < 3; err != nil || (d.Code == limiter.OK) != want {
				t.Errorf("request %d: %s, %v", i, d.Code, err)
			}
		}
		ap.wants(0, "far=a", limiter.OK, 7)
		ap.wants(7, "far=a", limiter.OK, 0) // the trial limit has denied, without effect
		ap.wants(1, "far=a", limiter.OverLimit, 0)
	})
}

// A penalty starts at the home, and denies everywhere.
func TestPenalty(t *testing.T) {
	const rules = `
domain: d
descriptors:
  - key: k
    rate_limit: {unit: second, requests_per_unit: 5, penalty: 30s, regions: {home: eu}}
`
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, rules, "ap eu us", 1)
		pass(time.Until(time.Now().Truncate(time.Second).Add(time.Second)))
		w.in("us").wants(5, "k=a", limiter.OK, 0)
		w.in("us").wants(1, "k=a", limiter.OverLimit, 0)
		pass(10 * time.Second)
		for _, name := range w.names {
			if d, err := w.in(name).ask(1, "k=a"); err != nil || d.Code != limiter.OverLimit || !d.Statuses[0].Penalised {
				t.Errorf("%s: %+v, %v", name, d.Statuses, err)
			}
		}
		pass(25 * time.Second)
		w.in("ap").wants(1, "k=a", limiter.OK, 4)
	})
}

// Hits that have already passed are charged at the home even if they do not fit.
func TestSettledHits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, perMinute, "eu us", 1)
		us := w.in("us")
		nextMinute()
		var d limiter.Decision
		if err := us.Decide(t.Context(), time.Now(), limiter.SettledRequest("d", entries("k=a"), 150), &d); err != nil {
			t.Fatal(err)
		}
		w.in("eu").wants(0, "k=a", limiter.OverLimit, 0)
		us.wants(1, "k=a", limiter.OverLimit, 0)
	})
}

// Only the home clears a counter.
func TestResetElsewhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, perMinute, "eu us", 1)
		_, err := w.in("us").Reset(t.Context(), time.Now(), "d", &limiter.Descriptor{Entries: entries("k=a")})
		if want := "clear counters: the counter belongs to the region eu: reset it there"; fmt.Sprint(err) != want {
			t.Errorf("%v", err)
		}
	})
}

// A home outside the list of regions.
func TestUnknownHome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, `{domain: d, descriptors: [{key: k, rate_limit: {unit: minute, requests_per_unit: 10, regions: {home: mars}}}]}`, "eu us", 1)
		w.in("us").fails(1, "k=a", `the home "mars" of this limit is not one of the regions eu, us`)
	})
}

// Queries that no replica sends are rejected, and cost the store nothing.
func TestHostileQueries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, perMinute, "eu us", 1)
		nextMinute()
		limit := "f60"
		one := [][]descriptor.Entry{entries("k=a")}
		for what, q := range map[string]regions.Query{
			"no such descriptor":       {Domain: "d", Descriptors: one, Takes: []regions.Take{{Descriptor: 1, Limit: limit, Hits: 1}}},
			"a negative index":         {Domain: "d", Descriptors: one, Takes: []regions.Take{{Descriptor: -1, Limit: limit, Hits: 1}}},
			"too many hits":            {Domain: "d", Descriptors: one, Takes: []regions.Take{{Limit: limit, Hits: backend.MaxHits + 1}}},
			"too many given back":      {Domain: "d", Descriptors: one, Takes: []regions.Take{{Limit: limit, Hits: -backend.MaxHits - 1}}},
			"a guard of another limit": {Domain: "d", Descriptors: one, Takes: []regions.Take{{Limit: limit, Guards: true}, {Limit: "x", Hits: 1}}},
			"a lone guard":             {Domain: "d", Descriptors: one, Takes: []regions.Take{{Limit: limit, Guards: true}}},
			"no such domain":           {Domain: "x", Descriptors: one, Takes: []regions.Take{{Limit: limit, Hits: 1}}},
			"no entries":               {Domain: "d", Descriptors: [][]descriptor.Entry{nil}, Takes: []regions.Take{{Limit: limit, Hits: 1}}},
			"no such limit":            {Domain: "d", Descriptors: one, Takes: []regions.Take{{Limit: "x", Hits: 1}}},
		} {
			var answered atomic.Pointer[regions.Answer]
			w.in("eu").store.Answer(t.Context(), "us", &q, func(a *regions.Answer) { answered.Store(a) })
			synctest.Wait()
			if a := answered.Load(); a == nil || a.Rejected == regions.NotRejected || !a.Outcomes[0].Failed {
				t.Errorf("%s: %+v", what, a)
			}
		}
		w.in("eu").wants(0, "k=a", limiter.OK, 100)
	})
}

// Invalid lists of regions.
func TestNew(t *testing.T) {
	names := make([]string, 65)
	for i := range names {
		names[i] = fmt.Sprintf("r%d", i)
	}
	for _, c := range []struct {
		region string
		list   []string
		ok     bool
	}{{"r0", names[:64], true}, {"r0", names, false}, {"x", names[:2], false}} {
		if _, err := regions.New(regions.Options{Region: c.region, Regions: c.list, Store: memory.New(memory.Options{})}); (err == nil) != c.ok {
			t.Errorf("%s of %d regions: %v", c.region, len(c.list), err)
		}
	}
}

// After the store has stopped, requests fail immediately.
func TestStopped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, perMinute, "eu us", 1)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := w.in("us").store.Run(ctx); err != nil {
			t.Error(err)
		}
		w.in("us").fails(1, "k=a", "stops")
	})
}
