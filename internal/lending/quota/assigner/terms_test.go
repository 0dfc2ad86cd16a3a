package assigner_test

import (
	"log/slog"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/lending/quota"
	"github.com/ratelimitd/ratelimitd/internal/lending/quota/assigner"
)

// byModel is a rule with the same counters for all models. Requests to the large one cost more.
func byModel(l descriptor.Limit) descriptor.NodeSpec {
	n := node("model", l)
	n.Condition = true
	n.Rule.ByEntry = &descriptor.ByEntry{HitCost: &descriptor.HitCost{Factor: 1, Tables: []descriptor.CostTable{
		{Key: "model", Values: map[string]uint64{"large": 10}, Other: 1},
	}}}
	return n
}

// plan is a rule of one plan; all plans of a user are counted together.
func plan(name string, l descriptor.Limit) descriptor.NodeSpec {
	user := node("user", l)
	return descriptor.NodeSpec{Key: "plan", Value: name, Condition: true, Children: []descriptor.NodeSpec{user}}
}

// Buckets that share their counters may differ in the cost of a request and in the numbers of the limits. Passed
// requests cost at most the burst plus the limit's refill in that time, in whichever order the buckets come, with and
// without other replicas.
func TestBucketsOfOneCounter(t *testing.T) {
	minute := func(requests uint64) descriptor.Limit { return limitOf(requests, descriptor.Minute) }
	models, plans := []descriptor.NodeSpec{byModel(minute(6000))}, []descriptor.NodeSpec{plan("free", minute(600)), plan("pro", minute(6000))}
	large, small := []descriptor.Entry{pair("model", "large")}, []descriptor.Entry{pair("model", "small")}
	free, pro := []descriptor.Entry{pair("plan", "free"), pair("user", "a")}, []descriptor.Entry{pair("plan", "pro"), pair("user", "a")}
	for name, test := range map[string]struct {
		rules       []descriptor.NodeSpec
		ids         [2][]descriptor.Entry
		cost        [2]float64
		most, least float64 // hits in five minutes
	}{
		"the costly one first": {models, [2][]descriptor.Entry{large, small}, [2]float64{10, 1}, 36_000, 12_000},
		"the cheap one first":  {models, [2][]descriptor.Entry{small, large}, [2]float64{1, 10}, 36_000, 12_000},
		"only the cheap one":   {models, [2][]descriptor.Entry{small, small}, [2]float64{1, 1}, 36_000, 29_000},
		"the large plan first": {plans, [2][]descriptor.Entry{pro, free}, [2]float64{1, 1}, 6_000 + 5*600, 2_500},
		"the small plan first": {plans, [2][]descriptor.Entry{free, pro}, [2]float64{1, 1}, 6_000 + 5*600, 2_500},
	} {
		for stored, store := range map[string]assigner.Store{"one replica": nil, "shares": &shares{}} {
			t.Run(name+", "+stored, func(t *testing.T) {
				inWorld(t, assigner.Options{Store: store, Log: slog.New(slog.DiscardHandler)}, test.rules, func(w *world) {
					first := w.join(100, test.ids[0]...)
					w.pass(7 * time.Second)
					second := w.join(100, test.ids[1]...)
					w.pass(5*time.Minute - 7*time.Second)
					hits := first.Passed*test.cost[0] + second.Passed*test.cost[1]
					if hits > test.most || hits < test.least {
						t.Errorf("%.0f hits passed in five minutes, want %.0f to %.0f", hits, test.least, test.most)
					}
				})
			})
		}
	}
}

// When the bucket that lowered the rate for all is gone, the others get their rate back.
func TestRateAfterABucketWithOtherTerms(t *testing.T) {
	inWorld(t, assigner.Options{Idle: 20 * time.Second}, []descriptor.NodeSpec{byModel(limitOf(6000, descriptor.Minute))}, func(w *world) {
		cheap, costly := w.join(200, pair("model", "small")), w.join(5, pair("model", "large"))
		w.pass(time.Minute)
		if !cheap.holds(quota.Tokens) || cheap.Held.Rate() > 10 {
			t.Errorf("next to costly requests: %s, %.1f requests a second", cheap.Held.Kind, cheap.Held.Rate())
		}
		costly.Demand = 0
		w.pass(2 * time.Minute)
		before := cheap.Passed
		w.pass(time.Minute)
		if rate := (cheap.Passed - before) / 60; rate < 90 || rate > 101 {
			t.Errorf("after the costly requests: %.1f requests a second pass, want 100", rate)
		}
	})
}

// A rule may use a counter of another rule next to a separate one. Then neither rule gets the whole of the shared
// counter.
func TestBucketsThatShareSomeCounters(t *testing.T) {
	for _, unit := range []descriptor.Unit{descriptor.Second, descriptor.Minute} {
		perSecond := limitOf(100, unit)
		if unit == descriptor.Minute {
			perSecond = limitOf(6000, unit)
		}
		pro := plan("pro", perSecond)
		pro.Children[0].Rule.Limits = []descriptor.Limit{limitOf(1_000_000, descriptor.Hour), perSecond}
		for i, name := range []string{"hour", "short"} {
			pro.Children[0].Rule.Limits[i].Name = name
		}
		for stored, store := range map[string]assigner.Store{"one replica": nil, "shares": &shares{}} {
			inWorld(t, assigner.Options{Store: store, Log: slog.New(slog.DiscardHandler)}, []descriptor.NodeSpec{plan("free", perSecond), pro}, func(w *world) {
				free := w.join(300, pair("plan", "free"), pair("user", "a"))
				w.pass(7 * time.Second)
				both := w.join(300, pair("plan", "pro"), pair("user", "a"))
				w.pass(5*time.Minute - 7*time.Second)
				if passed, most := free.Passed+both.Passed, 5*6000+float64(perSecond.Requests); passed > most || passed < 25_000 {
					t.Errorf("per %s, %s: %.0f hits passed in five minutes, want 25000 to %.0f", unit, stored, passed, most)
				}
			})
		}
	}
}
