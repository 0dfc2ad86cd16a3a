package limiter_test

import (
	"fmt"
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
	"github.com/ratelimitd/ratelimitd/internal/testkit/racetest"
)

// Of several limits, only the replaced one is left out. The others still hold, and the replaced one counts nothing.
func TestReplacesOneOfSeveralLimits(t *testing.T) {
	several := descriptor.NodeSpec{Key: "k", Rule: &descriptor.Rule{Limits: []descriptor.Limit{
		{Name: "narrow", Requests: 1, Window: descriptor.Window{Unit: descriptor.Minute}},
		{Name: "wide", Requests: 3, Window: descriptor.Window{Unit: descriptor.Hour}},
	}}}
	gold := perMinute("gold", "", 9, func(r *descriptor.Rule) { r.Replaces = []string{"narrow"} })
	both := perMinute("both", "", 9, func(r *descriptor.Rule) { r.Replaces = []string{"narrow", "wide"} })
	f := newFixture(t, limiter.Settings{}, several, gold, both)
	for left := range uint64(3) {
		d := f.decide(request(1, "k=a", "gold=a"))
		if st := d.Statuses[0]; st.Code != limiter.OK || st.Limit.Name != "wide" || st.Remaining != 2-left {
			t.Errorf("without the narrow limit: %+v, want %d left of the wide one", st, 2-left)
		}
	}
	if d := f.decide(request(1, "k=a", "gold=a")); d.Statuses[0].Code != limiter.OverLimit || d.Statuses[0].Limit.Name != "wide" {
		t.Errorf("the wide limit does not reservation: %+v", d.Statuses[0])
	}
	if d := f.decide(request(1, "k=a", "both=a")); d.Code != limiter.OK || d.Statuses[0].Limited {
		t.Errorf("both are replaced: %s %+v", d.Code, d.Statuses[0])
	}
}

// A request whose descriptors all match a rule with `replaces` costs about as much as without it.
func TestCostOfReplaces(t *testing.T) {
	racetest.Sequential(t)
	var pairs []string
	for i := range 512 {
		pairs = append(pairs, fmt.Sprint("k=", i))
	}
	req := request(1, pairs...)
	plain, replacing := costs(newFixture(t, limiter.Settings{}, ofManyLimits()), newFixture(t, limiter.Settings{}, ofManyLimits("limit-a", "limit-b", "limit-c")), req, 5)
	if replacing > 5*plain { // 1.1 times; about 10 times if the names of every descriptor are compared
		t.Errorf("%d descriptors cost %s, and %s with names to replace", len(pairs), plain, replacing)
	}
}
