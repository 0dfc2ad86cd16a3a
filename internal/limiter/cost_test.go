package limiter_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/backend/memory"
	"github.com/ratelimitd/ratelimitd/internal/config/override"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
	"github.com/ratelimitd/ratelimitd/internal/testkit/racetest"
	_ "github.com/ratelimitd/ratelimitd/internal/testkit/rapidtest"
)

func counting(c descriptor.HitCost) func(*descriptor.Rule) {
	return func(r *descriptor.Rule) { r.SetHitCost(&c) }
}

// byModel is a node whose hits count by the value of its entry, in one counter for all values.
func byModel(requests uint64, change ...func(*descriptor.Rule)) descriptor.NodeSpec {
	table := descriptor.CostTable{Key: "model", Values: map[string]uint64{"large": 10, "small": 2}, Other: 3}
	n := perMinute("model", "", requests, append(change, counting(descriptor.HitCost{Factor: 1, Tables: []descriptor.CostTable{table}}))...)
	n.Condition = true
	return n
}

func TestHitsCountForTheirCost(t *testing.T) {
	f := newFixture(t, limiter.Settings{}, perMinute("five", "", 100, counting(descriptor.HitCost{Factor: 5})), byModel(100, overridable))
	f.want(f.ask(1, "five=a"), limiter.OK, 95)
	f.want(f.ask(10, "five=a"), limiter.OK, 45)
	f.want(f.ask(-3, "five=a"), limiter.OK, 60)
	f.want(f.ask(0, "five=a"), limiter.OK, 60)
	f.want(f.ask(13, "five=a"), limiter.OverLimit, 0)

	f.want(f.ask(1, "model=large"), limiter.OK, 90)
	f.want(f.ask(1, "model=small"), limiter.OK, 88)
	f.want(f.ask(1, "model=else"), limiter.OK, 85)
	f.want(f.ask(-1, "model=large"), limiter.OK, 95)
	f.override("d.model", "", override.Numbers{Kind: override.Replace, Requests: 10}, "model=tiny")
	f.want(f.ask(1, "model=tiny"), limiter.OK, 2)

	own := limiter.Descriptor{Entries: entries("five=b"), HasLimit: true, Limit: limiter.RequestLimit{Requests: 10, Unit: int32(descriptor.Minute)}}
	f.want(f.decide(&limiter.Request{Domain: "d", Hits: 4, Descriptors: []limiter.Descriptor{own}}).Statuses[0], limiter.OK, 6)
}

// The time until a request passes is that until its whole cost passes.
func TestPeekOfWhatAHitCosts(t *testing.T) {
	bucket := func(r *descriptor.Rule) { r.Limits[0].Algorithm = descriptor.TokenBucket }
	f := newFixture(t, limiter.Settings{}, byModel(60, bucket)) // one a second
	f.want(f.ask(5, "model=large"), limiter.OK, 10)
	f.want(f.ask(1, "model=large"), limiter.OK, 0)
	for model, want := range map[string]time.Duration{"large": 10 * time.Second, "small": 2 * time.Second, "x": 3 * time.Second} {
		c, err := f.Peek(t.Context(), f.now, "d", &limiter.Descriptor{Entries: entries("model=" + model)})
		if err != nil || c.List[0].Wait != want || c.HitCost != uint64(want/time.Second) {
			t.Errorf("%s: %+v, error %v; want %s", model, c, err, want)
		}
	}
}

// No number of hits and no cost overflows: a product that is too large is more than any limit.
func TestCostNearTheEndOfItsRange(t *testing.T) {
	million := counting(descriptor.HitCost{Factor: descriptor.MaxHitCost})
	f := newFixture(t, limiter.Settings{}, perMinute("k", "", descriptor.MaxRequests, million), perMinute("held", "", descriptor.MaxRequests, million, reservable))
	for _, hits := range []int64{backend.MaxHits, backend.MaxHits / 2, 1 << 40, descriptor.MaxRequests/descriptor.MaxHitCost + 1} {
		if s := f.ask(hits, fmt.Sprint("k=", hits)); s.Code != limiter.OverLimit {
			t.Errorf("%d hits of a million: %+v", hits, s)
		}
		f.ask(-hits, "k=refund")
	}
	const most = descriptor.MaxRequests / descriptor.MaxHitCost
	f.want(f.ask(most, "k=a"), limiter.OK, descriptor.MaxRequests-most*descriptor.MaxHitCost)
	f.want(f.ask(-most, "k=a"), limiter.OK, descriptor.MaxRequests)
	amounts := limiter.Descriptor{Entries: entries("held=a"), HasHits: true, Amounts: []descriptor.Amount{{Name: "a", Units: 1 << 63}, {Name: "b", Units: 1 << 63}}}
	f.reserve(1, limiter.OverLimit, amounts)
}

// A reservation holds the hits that its client asks for; their cost is reserved, committed and given back.
func TestReservationsCountForTheirCost(t *testing.T) {
	f := newFixture(t, limiter.Settings{}, byModel(100, reservable))
	d := f.reserve(1, limiter.OK, amount(6, "model=large"))
	if d.Reservations[0].Reserved != 6 || d.Statuses[0].Remaining != 40 {
		t.Errorf("%+v %+v", d.Reservations, d.Statuses)
	}
	if d, err := f.step(1, limiter.Reservation{Op: backend.OpCommit}, amount(1, "model=large")); err != nil || d.Statuses[0].Remaining != 40 {
		t.Errorf("progress: %+v %v", d, err)
	}
	if d, err := f.step(1, limiter.Reservation{Op: backend.OpCommit, Final: true}, amount(2, "model=large")); err != nil || d.Statuses[0].Remaining != 80 {
		t.Errorf("commit: %+v %v", d, err)
	}
	// 65 are left: they are set aside, and make 6 hits of 10.
	f.ask(5, "model=x")
	f.want(f.ask(0, "model=large"), limiter.OK, 65)
	d, err := f.step(2, limiter.Reservation{Op: backend.OpReserve, Least: 5}, amount(9, "model=large"))
	if err != nil || d.Code != limiter.OK || d.Reservations[0].Reserved != 6 || d.Statuses[0].Remaining != 0 {
		t.Errorf("less than asked: %+v %v", d, err)
	}
	if d, err := f.step(2, limiter.Reservation{Op: backend.OpCommit, Final: true}, amount(6, "model=large")); err != nil || d.Statuses[0].Remaining != 5 {
		t.Errorf("commit of what was granted: %+v %v", d, err)
	}
	d, err = f.step(3, limiter.Reservation{Op: backend.OpReserve, Least: 1}, amount(9, "model=large"))
	if err != nil || d.Code != limiter.OverLimit {
		t.Errorf("one hit of 10 where 5 are left: %+v %v", d, err)
	}
}

// A request under a rule with a cost gets the same answer as one under a rule without it that asks for as many times
// the hits.
func TestCostIsAFactorOfHits(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		algorithm := rapid.SampledFrom([]descriptor.Algorithm{descriptor.FixedWindow, descriptor.SlidingWindow, descriptor.SlidingLog, descriptor.TokenBucket}).Draw(rt, "algorithm")
		limit := rapid.Uint64Range(1, 200).Draw(rt, "limit")
		factors := map[string]uint64{}
		for _, model := range []string{"a", "b", "*"} {
			factors[model] = rapid.Uint64Range(1, 7).Draw(rt, model)
		}
		table := descriptor.CostTable{Key: "model", Values: map[string]uint64{"a": factors["a"], "b": factors["b"]}, Other: factors["*"]}
		change := func(r *descriptor.Rule) {
			r.Limits[0].Algorithm = algorithm
			reservable(r)
		}
		settings := limiter.Settings{Admission: rapid.SampledFrom([]descriptor.Admission{descriptor.Independent, descriptor.AllOrNothing}).Draw(rt, "admission")}
		plain := perMinute("model", "", limit, change)
		priced := perMinute("model", "", limit, change, counting(descriptor.HitCost{Factor: 1, Tables: []descriptor.CostTable{table}}))
		plain.Condition, priced.Condition = true, true
		with, without := newFixtureOn(t, memory.New(memory.Options{}), settings, priced), newFixtureOn(t, memory.New(memory.Options{}), settings, plain)
		for range rapid.IntRange(1, 30).Draw(rt, "steps") {
			var asked, times limiter.Request
			asked.Domain, times.Domain = "d", "d"
			asked.Purpose = rapid.SampledFrom([]limiter.Purpose{limiter.Count, limiter.Count, limiter.Look, limiter.Settled}).Draw(rt, "purpose")
			if rapid.Bool().Draw(rt, "reservation") {
				h := limiter.Reservation{Op: rapid.SampledFrom([]limiter.ReservationOp{limiter.Reserve, limiter.Commit, limiter.Extend}).Draw(rt, "step"), Final: rapid.Bool().Draw(rt, "final")}
				h.ID[0] = rapid.ByteRange(0, 3).Draw(rt, "id")
				asked.Reservation, times.Reservation = &h, &h
			}
			times.Purpose = asked.Purpose
			for range rapid.IntRange(1, 3).Draw(rt, "descriptors") {
				model := rapid.SampledFrom([]string{"a", "b", "c", ""}).Draw(rt, "model")
				d := limiter.Descriptor{Entries: entries("model=" + model), HasHits: true, Hits: rapid.Uint64Range(0, 30).Draw(rt, "hits"), Refund: asked.Reservation == nil && rapid.IntRange(0, 4).Draw(rt, "refund") == 0}
				asked.Descriptors = append(asked.Descriptors, d)
				factor, named := factors[model]
				if !named {
					factor = factors["*"]
				}
				d.Hits *= factor
				times.Descriptors = append(times.Descriptors, d)
			}
			var a, b limiter.Decision
			errs := [2]error{with.Decide(t.Context(), with.now, &asked, &a), without.Decide(t.Context(), without.now, &times, &b)}
			if errs[0] != nil || errs[1] != nil {
				rt.Fatal(errs)
			}
			for i := range a.Statuses { // the rules differ, and reservations are in hits before the cost
				a.Statuses[i].Rule, b.Statuses[i].Rule = nil, nil
			}
			for i := range a.Reservations {
				if a.Reservations[i].Reserved > 0 && uint64(a.Reservations[i].Reserved)*times.Descriptors[i].Hits != uint64(b.Reservations[i].Reserved)*asked.Descriptors[i].Hits {
					rt.Fatalf("reserved %d of %d, without a cost %d of %d", a.Reservations[i].Reserved, asked.Descriptors[i].Hits, b.Reservations[i].Reserved, times.Descriptors[i].Hits)
				}
				a.Reservations[i].Reserved, b.Reservations[i].Reserved = 0, 0
			}
			if diff := cmp.Diff(b, a); diff != "" {
				rt.Fatalf("%+v\n(-without +with a cost):\n%s", asked, diff)
			}
			pause := time.Duration(rapid.Int64Range(0, int64(20*time.Second)).Draw(rt, "pause"))
			with.now, without.now = with.now.Add(pause), without.now.Add(pause)
		}
	})
}

// A cost takes no memory for a decision.
func TestHitCostDoesNotAllocate(t *testing.T) {
	f := newFixture(t, limiter.Settings{}, byModel(1<<40))
	req := &limiter.Request{Domain: "d", Descriptors: []limiter.Descriptor{{Entries: entries("model=large")}}}
	d := &limiter.Decision{}
	if n := testing.AllocsPerRun(1000, func() {
		if err := f.Decide(t.Context(), f.now, req, d); err != nil {
			t.Fatal(err)
		}
	}); n != 0 && !racetest.On {
		t.Errorf("%v allocations", n)
	}
}
