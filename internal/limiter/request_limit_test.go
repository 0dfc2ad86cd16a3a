package limiter_test

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
)

// A request may carry a limit with a multiple of a unit. The window identifies the counter, not its notation.
func TestRequestLimitOfSeveralUnits(t *testing.T) {
	f := newFixture(t, limiter.Settings{}, perMinute("k", "", 100))
	ask := func(requests, multiplier uint32, unit descriptor.Unit) limiter.Status {
		return f.decide(&limiter.Request{Domain: "d", Descriptors: []limiter.Descriptor{{
			Entries: entries("k=a"), HasLimit: true,
			Limit: limiter.RequestLimit{Requests: requests, Unit: int32(unit), Multiplier: multiplier},
		}}}).Statuses[0]
	}
	first := ask(3, 30, descriptor.Second) // ten seconds into the minute
	f.want(first, limiter.OK, 2)
	if first.Reset != 20*time.Second || first.Limit.Unit != descriptor.Second || first.Limit.Multiplier != 30 || first.Limit.Requests != 3 {
		t.Errorf("got %+v", first)
	}
	f.want(ask(3, 30, descriptor.Second), limiter.OK, 1)
	f.want(ask(3, 0, descriptor.Minute), limiter.OK, 2) // another window
	f.want(ask(3, 60, descriptor.Second), limiter.OK, 1)
	f.want(ask(3, 1, descriptor.Minute), limiter.OK, 0)
	f.now = f.now.Add(30 * time.Second)
	f.want(ask(3, 30, descriptor.Second), limiter.OK, 2)
	f.want(ask(3, 90, descriptor.Year), limiter.OK, 2)

	for unit, multiplier := range map[descriptor.Unit]uint32{descriptor.Year: 91, descriptor.Week: math.MaxUint32, descriptor.Second: math.MaxUint32} {
		err := f.Decide(context.Background(), noon, &limiter.Request{Domain: "d", Descriptors: []limiter.Descriptor{{}, {
			HasLimit: true, Limit: limiter.RequestLimit{Requests: 1, Unit: int32(unit), Multiplier: multiplier},
		}}}, &limiter.Decision{})
		if !errors.As(err, new(*limiter.InvalidError)) || !strings.Contains(err.Error(), "descriptors[1].limit.unit_multiplier") {
			t.Errorf("%d %ss: %v", multiplier, unit, err)
		}
	}
}

// Under `request_override: min` no limit that a request carries lets more hits pass than the rule does: of any window,
// one after the other, under every kind of rule. Each of these windows has a separate counter.
func TestRequestMinBoundsTheBurst(t *testing.T) {
	limit := func(l descriptor.Limit) func(*descriptor.Rule) { return func(r *descriptor.Rule) { r.Limits[0] = l } }
	hour := descriptor.Window{Unit: descriptor.Hour}
	for name, test := range map[string]struct {
		rule descriptor.NodeSpec
		most uint64 // hits that pass in one burst under the rule
	}{
		"fixed window":   {perMinute("k", "", 0, limit(descriptor.Limit{Requests: 3, Window: hour})), 3},
		"sliding log":    {perMinute("k", "", 0, limit(descriptor.Limit{Requests: 3, Window: hour, Algorithm: descriptor.SlidingLog})), 3},
		"token bucket":   {perMinute("k", "", 0, limit(descriptor.Limit{Requests: 3, Window: hour, Algorithm: descriptor.TokenBucket, Burst: 5})), 5},
		"calendar":       {perMinute("k", "", 0, limit(descriptor.Limit{Requests: 3, Window: descriptor.Window{Unit: descriptor.Month, Location: time.UTC}})), 3},
		"concurrency":    {perMinute("k", "", 0, limit(descriptor.Limit{Requests: 3, Window: hour, Algorithm: descriptor.Concurrency})), 3},
		"several limits": {listNode("k", []descriptor.Limit{fixedLimit("minute", 9), fixedLimit("hour", 3, hourly)}), 3},
		"cost":           {perMinute("k", "", 30, counting(descriptor.HitCost{Factor: 10})), 3},
		"overridable":    {perMinute("k", "", 3, overridable), 3},
		"penalty":        {perMinute("k", "", 3, penalty(time.Hour)), 3},
	} {
		t.Run(name, func(t *testing.T) {
			f := withRequestMin(t, test.rule)
			for _, admission := range []descriptor.Admission{descriptor.Independent, descriptor.AllOrNothing} {
				f.Swap(f.Tree(), limiter.Settings{Admission: admission})
				pair := "k=" + name + ", " + descriptor.AdmissionNames[admission]
				ask := func(requests uint32, unit descriptor.Unit, multiplier uint32) bool {
					return f.decide(&limiter.Request{Domain: "d", Descriptors: []limiter.Descriptor{{
						Entries: entries(pair), HasLimit: true, Limit: limiter.RequestLimit{Requests: requests, Unit: int32(unit), Multiplier: multiplier},
					}}}).Code == limiter.OK
				}
				passed := uint64(0)
				count := func(requests uint32, unit descriptor.Unit, multiplier uint32) {
					for range 10 {
						if ask(requests, unit, multiplier) {
							passed++
						}
					}
				}
				if count(1, descriptor.Hour, 1); passed != 1 {
					t.Errorf("with a limit of 1 in the request, %d hits passed", passed)
				}
				for i, unit := range []descriptor.Unit{descriptor.Year, descriptor.Month, descriptor.Week, descriptor.Day} {
					count([]uint32{26280, 2160, 504, 72}[i], unit, 1)
				}
				for multiplier := range uint32(20) {
					count(3, descriptor.Hour, multiplier+2)
				}
				if passed != test.most {
					t.Errorf("%d hits passed at once, want %d", passed, test.most)
				}
				c, err := f.Peek(t.Context(), f.now, "d", &limiter.Descriptor{
					Entries: entries(pair), HasLimit: true, Limit: limiter.RequestLimit{Requests: 72, Unit: int32(descriptor.Day)},
				})
				if n := len(c.List); err != nil || c.FromRequest || !c.List[n-1].Limit.FromRequest || c.List[0].Limit.FromRequest || c.List[n-1].Limit.Requests != 72 {
					t.Errorf("Peek: %+v %v, want the limits of the rule and then the one of the request", c, err)
				}
			}
		})
	}
}

// If another rule replaces all limits of the rule, the limit that the request carries still counts.
func TestRequestMinWithoutTheRulesLimits(t *testing.T) {
	f := withRequestMin(t, perMinute("k", "", 10, func(r *descriptor.Rule) { r.Name = "general" }),
		perMinute("special", "", 100, func(r *descriptor.Rule) { r.Replaces = []string{"general"} }))
	req := &limiter.Request{Domain: "d", Hits: 5, Descriptors: []limiter.Descriptor{bringing(20, "k=a"), {Entries: entries("special=a")}}}
	for i, want := range []uint64{15, 10, 5, 0} {
		if st := f.decide(req).Statuses[0]; st.Code != limiter.OK || st.Remaining != want || st.Rule != nil {
			t.Errorf("request %d: %+v, want %d left", i, st, want)
		}
	}
	if d := f.decide(req); d.Code != limiter.OverLimit {
		t.Errorf("more than the limit of the request: %+v", d)
	}
}
