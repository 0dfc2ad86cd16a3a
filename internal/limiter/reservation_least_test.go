package limiter_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
)

// With min_hits all descriptors get the same number of hits. So their hits must cost the same.
func TestLeastWithDifferentCosts(t *testing.T) {
	double := counting(descriptor.HitCost{Factor: 2})
	f := newFixture(t, limiter.Settings{},
		perMinute("a", "", 8, reservable, double), perMinute("b", "", 5, reservable), perMinute("c", "", 6, reservable, double),
		perMinute("shadow", "", 1, reservable, shadow))
	_, err := f.step(1, limiter.Reservation{Op: limiter.Reserve, Least: 4}, amount(5, "a=a"), amount(10, "b=a"))
	invalid, ok := errors.AsType[*limiter.InvalidError](err)
	if !ok || invalid.Field != "min_hits" || !strings.Contains(invalid.Message, "a hit of descriptors[0] costs 2, and one of descriptors[1] costs 1") {
		t.Errorf("%v", err)
	}
	d, err := f.step(2, limiter.Reservation{Op: limiter.Reserve, Least: 3}, amount(5, "a=a"), amount(5, "c=a"), amount(5, "shadow=a"))
	if err != nil || d.Code != limiter.OK || d.Reservations[0].Reserved != 3 || d.Reservations[1].Reserved != 3 {
		t.Errorf("the same cost: %+v %v", d, err)
	}
	if diff := cmp.Diff([][]int64{{6}, {0}, {6}}, [][]int64{f.used("a=a"), f.used("b=a"), f.used("c=a")}); diff != "" {
		t.Error(diff)
	}
}

// A descriptor that is not enforced does not make a reservation smaller.
func TestLeastBesideADescriptorInShadow(t *testing.T) {
	f := newFixture(t, limiter.Settings{},
		listNode("big", []descriptor.Limit{fixedLimit("now", 100)}, reservable),
		listNode("lone", []descriptor.Limit{fixedLimit("new", 10, inShadow)}, reservable),
		listNode("mode", []descriptor.Limit{fixedLimit("new", 10)}, reservable, shadow))
	for _, other := range []string{"lone=", "mode="} {
		d, err := f.step(1, limiter.Reservation{Op: limiter.Reserve, Least: 1}, amount(50, "big="+other), amount(50, other+"a"))
		if err != nil || d.Code != limiter.OK || d.Reservations[0].Reserved != 50 || d.Reservations[1].Reserved != 0 {
			t.Errorf("beside %s: %s %+v %v", other, d.Code, d.Reservations, err)
		}
		if diff := cmp.Diff([]int64{0}, f.used(other+"a")); diff != "" {
			t.Errorf("%s %s", other, diff)
		}
	}
}

// Where a limit that is not enforced holds nothing, a commit by name charges nothing: alone, next to an enforced limit,
// and in shadow mode.
func TestCommitOfWhatALimitInShadowDenied(t *testing.T) {
	f := newFixture(t, limiter.Settings{},
		listNode("lone", []descriptor.Limit{fixedLimit("new", 10, inShadow)}, reservable),
		listNode("two", []descriptor.Limit{fixedLimit("new", 10, inShadow), fixedLimit("now", 100, hourly)}, reservable),
		listNode("mode", []descriptor.Limit{fixedLimit("new", 10)}, reservable, shadow))
	for key, want := range map[string][]int64{"lone": {7}, "two": {7, 14}, "mode": {7}} {
		for _, step := range []struct {
			entry string
			hits  uint64
		}{{"reserve_id=x", 8}, {"reserve_id=y", 8}, {"commit_id=x", 7}, {"commit_id=y", 7}} {
			d := f.decide(&limiter.Request{Domain: "d", Descriptors: []limiter.Descriptor{{Entries: entries(key+"=a", step.entry), HasHits: true, Hits: step.hits}}})
			if d.Code != limiter.OK {
				t.Errorf("%s, %s: %s", key, step.entry, d.Code)
			}
		}
		if diff := cmp.Diff(want, f.used(key+"=a")); diff != "" {
			t.Errorf("%s: %s", key, diff)
		}
	}
}

// Hits that have passed already are charged under all limits, also under limits that are not enforced.
func TestChargeReachesLimitsInShadow(t *testing.T) {
	f := newFixture(t, limiter.Settings{},
		listNode("k", []descriptor.Limit{fixedLimit("now", 100), fixedLimit("new", 3, inShadow)}),
		listNode("s", []descriptor.Limit{fixedLimit("now", 100), fixedLimit("new", 3, soft)}),
		listNode("lone", []descriptor.Limit{fixedLimit("new", 3, inShadow)}),
		listNode("r", []descriptor.Limit{fixedLimit("new", 3, inShadow)}, reservable),
		listNode("mode", []descriptor.Limit{fixedLimit("new", 3)}, reservable, shadow))
	for key, want := range map[string][]int64{"k": {6, 6}, "s": {6, 6}, "lone": {6}, "r": {6}, "mode": {6}} {
		for range 6 {
			req := request(1, key+"=a")
			req.Purpose, req.Reservation = limiter.Settled, &limiter.Reservation{Op: backend.OpCommit, Final: true, ChargeUnknown: true}
			f.decide(req)
		}
		if diff := cmp.Diff(want, f.used(key+"=a")); diff != "" {
			t.Errorf("%s: %s", key, diff)
		}
	}
}
