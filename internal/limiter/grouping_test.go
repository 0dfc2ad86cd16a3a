package limiter_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ratelimitd/ratelimitd/internal/backend/memory"
	"github.com/ratelimitd/ratelimitd/internal/config/override"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
	"github.com/ratelimitd/ratelimitd/internal/limiter/usage"
	"github.com/ratelimitd/ratelimitd/internal/testkit/racetest"
)

func folded(n descriptor.NodeSpec) descriptor.NodeSpec {
	n.FoldCase = true
	return n
}

func grouped(n descriptor.NodeSpec, g descriptor.Group) descriptor.NodeSpec {
	n.Group = g
	return n
}

// Values of a group share a counter, and an override, a peek or a reset of one of them is for all.
func TestGroupedCallers(t *testing.T) {
	f := newFixture(t, limiter.Settings{}, folded(perMinute("k", "", 10, overridable)), grouped(perMinute("ip", "", 10, overridable), descriptor.Group{V6: 64}))
	for _, c := range []struct{ counts, a, b, other string }{
		{"k=acme", "k=ACME", "k=acme", "k=acm"},
		{"ip=2001:db8::", "ip=2001:db8::1", "ip=2001:DB8::2", "ip=2001:db8:0:1::1"},
		{"ip=10.0.0.1", "ip=::ffff:10.0.0.1", "ip=10.0.0.1", "ip=10.0.0.2"},
	} {
		f.want(f.ask(6, c.a), limiter.OK, 4)
		f.want(f.ask(4, c.b), limiter.OK, 0)
		f.want(f.ask(1, c.a), limiter.OverLimit, 0)
		f.want(f.ask(1, c.other), limiter.OK, 9)
		rule := "d.k"
		if c.counts[0] == 'i' {
			rule = "d.ip"
		}
		f.override(rule, "", override.Numbers{Kind: override.Replace, Requests: 20}, c.counts)
		for _, caller := range []string{c.a, c.b} {
			counters, err := f.Peek(t.Context(), f.now, "d", &limiter.Descriptor{Entries: entries(caller)})
			if err != nil || counters.Override == nil || counters.List[0].Used != 11 || counters.List[0].Remaining != 9 {
				t.Errorf("%s: %+v, error %v", caller, counters, err)
			}
		}
		f.want(f.ask(2, c.a), limiter.OK, 7)
		f.want(f.ask(1, c.other), limiter.OK, 8)
		if _, err := f.Reset(t.Context(), f.now, "d", &limiter.Descriptor{Entries: entries(c.b)}); err != nil {
			t.Fatal(err)
		}
		f.want(f.ask(1, c.a), limiter.OK, 19)
	}
}

// Names of metrics have grouped values: a client cannot make new names by writing its value in other ways.
func TestNamesOfGroupedValues(t *testing.T) {
	metric := folded(perMinute("k", "", 3))
	metric.ValueToMetric = true
	m := newMeasured(t, 100, metric, grouped(perMinute("ip", "", 3, detailed), descriptor.Group{V4: 24}), folded(perMinute("plain", "", 3)))
	for _, pair := range []string{"k=ACME", "k=Acme", "ip=10.0.0.1", "ip=10.0.0.2", "plain=A"} {
		m.ask("d", 1, pair)
	}
	const d = "ratelimit.service.rate_limit.d."
	want := map[string]uint64{
		d + "k_acme.total_hits": 2, d + "k_acme.within_limit": 2,
		d + "ip_10_0_0_0.total_hits": 2, d + "ip_10_0_0_0.within_limit": 2,
		d + "plain.total_hits": 1, d + "plain.within_limit": 1,
	}
	got := m.statistics()
	for name, n := range got {
		if n == 0 {
			delete(got, name)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("statistics (-want +got):\n%s", diff)
	}
}

// Usage lists one descriptor for a group.
func TestUsageOfGroupedValues(t *testing.T) {
	node := folded(perMinute("k", "", 10, func(r *descriptor.Rule) { r.Usage = true }))
	tree, err := descriptor.Compile([]descriptor.DomainSpec{{Name: "d", Children: []descriptor.NodeSpec{node}}}, descriptor.Options{})
	if err != nil {
		t.Fatal(err)
	}
	index := usage.New(usage.Options{Store: new(usage.Memory)})
	l := limiter.New(limiter.Options{Store: memory.New(memory.Options{}), Usage: index})
	l.Swap(tree, limiter.Settings{})
	for _, value := range []string{"k=ACME", "k=acme"} {
		req := &limiter.Request{Domain: "d", Descriptors: []limiter.Descriptor{{Entries: entries(value)}}}
		if err := l.Decide(t.Context(), noon, req, new(limiter.Decision)); err != nil {
			t.Fatal(err)
		}
		index.Flush(t.Context(), noon)
	}
	found, _, err := index.List(t.Context(), noon, "d", [][]descriptor.Entry{entries("k=acme")}, 0, 10)
	if diff := cmp.Diff([][]descriptor.Entry{entries("k=acme")}, found); err != nil || diff != "" {
		t.Errorf("error %v, found (-want +got):\n%s", err, diff)
	}
}

// Grouping allocates memory in a decision only for a value that is not a substring of the value as sent.
func TestGroupedDecisionsAllocateLittle(t *testing.T) {
	path := grouped(perMinute("path", "/([^/]+)/.*", 1<<30), descriptor.Group{Capture: 1})
	path.Kind = descriptor.MatchRegex
	f := newFixture(t, limiter.Settings{},
		folded(perMinute("k", "", 1<<30)), grouped(perMinute("ip", "", 1<<30), descriptor.Group{V6: 64}), path)
	for pair, most := range map[string]float64{"k=acme": 0, "k=ACME": 1, "ip=2001:db8::": 0, "ip=2001:db8::1": 1, "path=/acme/orders": 0} {
		req := &limiter.Request{Domain: "d", Descriptors: []limiter.Descriptor{{Entries: entries(pair)}}}
		d := new(limiter.Decision)
		if got := testing.AllocsPerRun(100, func() {
			if err := f.Decide(t.Context(), f.now, req, d); err != nil {
				t.Fatal(err)
			}
		}); got > most && !racetest.On {
			t.Errorf("%s: %v allocations, want %v", pair, got, most)
		}
	}
}

// An override is found for the value for which it was written, even if the rule groups values since then. One for the
// grouped value comes first.
func TestOverrideOlderThanTheGroup(t *testing.T) {
	block, raise := override.Numbers{Kind: override.Blocked}, override.Numbers{Kind: override.Replace, Requests: 20}
	for _, limits := range []int{1, 2} {
		f := newFixture(t, limiter.Settings{}, folded(perMinute("k", "", 10, overridable, func(r *descriptor.Rule) {
			if limits == 2 {
				r.Name = "minute"
				r.Limits = append(r.Limits, descriptor.Limit{Name: "day", Requests: 1000, Window: descriptor.Window{Unit: descriptor.Day}})
			}
		})))
		name := ""
		if limits == 2 {
			name = "minute"
		}
		f.override("d.k", name, block, "k=ACME")
		f.want(f.ask(1, "k=ACME"), limiter.OverLimit, 0)
		f.want(f.ask(1, "k=acme"), limiter.OK, 9)
		counters, err := f.Peek(t.Context(), f.now, "d", &limiter.Descriptor{Entries: entries("k=ACME")})
		if err != nil || !counters.Blocked {
			t.Errorf("%d limits: %+v, error %v; want a caller that is blocked", limits, counters, err)
		}
		f.override("d.k", name, raise, "k=acme")
		f.want(f.ask(1, "k=ACME"), limiter.OK, 18)
	}
}

// A share of the customers is a share of the grouped values: either all values of a group are in it or none.
func TestShareOfGroupedCallers(t *testing.T) {
	path := grouped(perMinute("path", "/([^/]+)/.*", 1, func(r *descriptor.Rule) {
		r.Limits[0].Enforcement, r.Limits[0].EnforcePercent = descriptor.EnforcedForSome, 50
	}), descriptor.Group{Capture: 1})
	path.Kind = descriptor.MatchRegex
	f := newFixture(t, limiter.Settings{}, path)
	denied := 0
	for tenant := range 40 {
		f.ask(1, fmt.Sprintf("path=/%d/a", tenant))
		passed := f.ask(1, fmt.Sprintf("path=/%d/b", tenant)).Code == limiter.OK
		counters, err := f.Peek(t.Context(), f.now, "d", &limiter.Descriptor{Entries: entries(fmt.Sprintf("path=/%d/c", tenant))})
		if err != nil || counters.List[0].Unenforced != passed {
			t.Errorf("tenant %d passes: %t, shown: %+v, error %v", tenant, passed, counters.List[0], err)
		}
		if !passed {
			denied++
		}
	}
	if denied == 0 || denied == 40 {
		t.Errorf("%d of 40 tenants are denied, want about a half", denied)
	}
}

// The cost of a reservation depends on the value that was sent, as for other hits.
func TestCostOfGroupedValues(t *testing.T) {
	racetest.Sequential(t)
	table := descriptor.CostTable{Key: "ip", Values: map[string]uint64{"2001:db8::1": 10}, Other: 2}
	n := grouped(perMinute("ip", "", 45, reservable, counting(descriptor.HitCost{Factor: 1, Tables: []descriptor.CostTable{table}})), descriptor.Group{V6: 64})
	f := newFixture(t, limiter.Settings{}, n)
	d, err := f.step(1, limiter.Reservation{Op: limiter.Reserve, Least: 3}, amount(9, "ip=2001:db8::1"))
	if err != nil || d.Code != limiter.OK || d.Reservations[0].Reserved != 4 {
		t.Errorf("%+v %v", d, err)
	}
	units := limiter.Descriptor{Entries: entries("ip=2001:db8:0:1::1"), HasHits: true, Amounts: []descriptor.Amount{{Name: "a", Units: 3}}}
	if f.reserve(2, limiter.OK, units); f.left("ip=2001:db8:0:1::1") != 39 {
		t.Errorf("%d are left", f.left("ip=2001:db8:0:1::1"))
	}
	units.Entries = entries("ip=2001:db8::1")
	f.now = f.now.Add(time.Minute)
	if f.reserve(3, limiter.OK, units); f.left("ip=2001:db8::1") != 15 {
		t.Errorf("%d are left", f.left("ip=2001:db8::1"))
	}
}
