package limiter_test

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/backend/memory"
	"github.com/ratelimitd/ratelimitd/internal/config/override"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
	"github.com/ratelimitd/ratelimitd/internal/platform/metric/prom"
	"github.com/ratelimitd/ratelimitd/internal/testkit/racetest"
)

func overridable(r *descriptor.Rule) {
	r.OverrideMax = descriptor.OverrideUnbounded
}

// override sets one override of a rule; without a kind it removes it.
func (f *fixture) override(rule, limit string, n override.Numbers, pairs ...string) {
	f.overrides = f.overrides.With(f.overrides.Version+1, []override.Change{{
		Identity: override.Identity{Domain: "d", Rule: rule, Limit: limit, Entries: entries(pairs...)}, Numbers: n,
	}})
	f.SetOverrides(f.overrides)
}

// An override changes the numbers of one customer. Used hits stay used. Other customers keep the rule's numbers.
func TestOverrideOfOneCaller(t *testing.T) {
	for name, change := range map[string]func(*descriptor.Rule){
		"fixed window":   func(*descriptor.Rule) {},
		"sliding window": func(r *descriptor.Rule) { r.Limits[0].Algorithm = descriptor.SlidingWindow },
		"sliding log":    func(r *descriptor.Rule) { r.Limits[0].Algorithm = descriptor.SlidingLog },
		"token bucket":   func(r *descriptor.Rule) { r.Limits[0].Algorithm = descriptor.TokenBucket },
		"leaky bucket": func(r *descriptor.Rule) {
			r.Limits[0].Algorithm, r.Limits[0].Burst, r.Limits[0].NoDelay = descriptor.LeakyBucket, 9, descriptor.NoDelayAll
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, limiter.Settings{}, perMinute("k", "", 10, overridable, change))
			raised := override.Numbers{Kind: override.Replace, Requests: 20, Burst: 20}
			if name == "leaky bucket" {
				raised.Burst = 19
			}
			f.want(f.ask(10, "k=a"), limiter.OK, 0)
			f.want(f.ask(1, "k=a"), limiter.OverLimit, 0)
			f.override("d.k", "", raised, "k=a")
			st := f.ask(0, "k=a")
			want := uint64(10)
			if name == "fixed window" {
				want-- // the denied hit was counted
			}
			f.want(st, limiter.OK, want)
			if !st.Overridden || st.Limit.Requests != 20 || st.Rule == nil {
				t.Errorf("got %+v", st)
			}
			if other := f.ask(0, "k=b"); other.Overridden || other.Limit.Requests != 10 {
				t.Errorf("another caller: %+v", other)
			}
			f.override("d.k", "", override.Numbers{}, "k=a")
			f.want(f.ask(1, "k=a"), limiter.OverLimit, 0)
		})
	}
}

func TestBlockedAndUnlimited(t *testing.T) {
	f := newFixture(t, limiter.Settings{}, perMinute("k", "", 10, overridable), perMinute("bucket", "", 10, overridable, func(r *descriptor.Rule) {
		r.Limits[0].Algorithm = descriptor.TokenBucket
	}))
	for _, key := range []string{"k", "bucket"} {
		caller := key + "=a"
		f.want(f.ask(4, caller), limiter.OK, 6)
		f.override("d."+key, "", override.Numbers{Kind: override.Blocked}, caller)
		st := f.ask(1, caller)
		f.want(st, limiter.OverLimit, 0)
		if !st.Overridden || st.Limit.Requests != 0 || st.RetryAfter != backend.Never {
			t.Errorf("blocked: %+v", st)
		}
		f.override("d."+key, "", override.Numbers{Kind: override.Unlimited}, caller)
		f.want(f.ask(1000, caller), limiter.OK, math.MaxUint32)
		f.override("d."+key, "", override.Numbers{}, caller)
		f.want(f.ask(0, caller), limiter.OK, 6)
	}
}

// A blocked customer uses up none of the other limits of an all-or-nothing request.
func TestBlockedTakesNothingElsewhere(t *testing.T) {
	f := newFixture(t, limiter.Settings{Admission: descriptor.AllOrNothing}, perMinute("k", "", 10, overridable), perMinute("all", "", 10))
	f.override("d.k", "", override.Numbers{Kind: override.Blocked}, "k=a")
	d := f.decide(&limiter.Request{Domain: "d", Descriptors: []limiter.Descriptor{{Entries: entries("all=x")}, {Entries: entries("k=a")}}})
	if d.Code != limiter.OverLimit {
		t.Errorf("got %s", d.Code)
	}
	f.want(f.ask(0, "all=x"), limiter.OK, 10)
}

// An override starts and ends at its times, by the clock of the decision.
func TestOverrideExpires(t *testing.T) {
	f := newFixture(t, limiter.Settings{}, perMinute("k", "", 10, overridable))
	f.override("d.k", "", override.Numbers{Kind: override.Replace, Requests: 50, NotBefore: noon.Unix() + 5, ExpiresAt: noon.Unix() + 10}, "k=a")
	for after, want := range map[time.Duration]uint64{4: 10, 5: 50, 9: 50, 10: 10} {
		f.now = noon.Add(after * time.Second)
		f.want(f.ask(0, "k=a"), limiter.OK, want)
	}
}

// Of a rule with several limits, an override changes all or one of them; the one for one limit comes first.
func TestOverrideOfSeveralLimits(t *testing.T) {
	node := descriptor.NodeSpec{Key: "k", Rule: &descriptor.Rule{
		RuleSettings: descriptor.RuleSettings{OverrideMax: descriptor.OverrideUnbounded},
		Limits: []descriptor.Limit{
			{Name: "minute", Requests: 10, Window: descriptor.Window{Unit: descriptor.Minute}},
			{Name: "day", Requests: 100, Window: descriptor.Window{Unit: descriptor.Day}},
		},
	}}
	for name, test := range map[string]struct {
		all, minute, day override.Numbers
		code             limiter.Code
		limit            string
		remaining        uint64
	}{
		"none":                    {code: limiter.OK, limit: "minute", remaining: 9},
		"all doubled":             {all: override.Numbers{Kind: override.Scale, Requests: 2 * override.One}, code: limiter.OK, limit: "minute", remaining: 19},
		"one":                     {day: override.Numbers{Kind: override.Replace, Requests: 5}, code: limiter.OK, limit: "day", remaining: 4},
		"one comes before all":    {all: override.Numbers{Kind: override.Blocked}, minute: override.Numbers{Kind: override.Unlimited}, day: override.Numbers{Kind: override.Replace, Requests: 7}, code: limiter.OK, limit: "day", remaining: 6},
		"one blocked":             {day: override.Numbers{Kind: override.Blocked}, code: limiter.OverLimit, limit: "day"},
		"one unlimited":           {minute: override.Numbers{Kind: override.Unlimited}, code: limiter.OK, limit: "day", remaining: 99},
		"both unlimited":          {all: override.Numbers{Kind: override.Unlimited}, code: limiter.OK, remaining: math.MaxUint32},
		"all blocked, but for it": {all: override.Numbers{Kind: override.Blocked}, minute: override.Numbers{Kind: override.Replace, Requests: 3}, code: limiter.OverLimit, limit: "day"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, limiter.Settings{}, node)
			f.override("d.k", "", test.all, "k=a")
			f.override("d.k", "minute", test.minute, "k=a")
			f.override("d.k", "day", test.day, "k=a")
			st := f.ask(1, "k=a")
			f.want(st, test.code, test.remaining)
			if st.Limit.Name != test.limit || st.Overridden != (name != "none") {
				t.Errorf("got %+v", st)
			}
		})
	}
}

// An override keeps its meaning when its rule gets more limits, or fewer. A number for the only limit applies to none
// of several, and that is counted.
func TestOverrideOfARuleWithOtherLimits(t *testing.T) {
	minute := descriptor.Limit{Name: "minute", Requests: 10, Window: descriptor.Window{Unit: descriptor.Minute}}
	day := descriptor.Limit{Name: "day", Requests: 100, Window: descriptor.Window{Unit: descriptor.Day}}
	five, seven, double := override.Numbers{Kind: override.Replace, Requests: 5}, override.Numbers{Kind: override.Replace, Requests: 7}, override.Numbers{Kind: override.Scale, Requests: 2 * override.One}
	for name, test := range map[string]struct {
		limits     []descriptor.Limit
		all, named override.Numbers // named is of the limit minute
		want       []uint64         // requests of the limits
		blocked    bool
		unusable   int
	}{
		"a number for the only limit, then two":     {limits: []descriptor.Limit{minute, day}, all: five, want: []uint64{10, 100}, unusable: 2},
		"one of the two has a number of its own":    {limits: []descriptor.Limit{minute, day}, all: five, named: seven, want: []uint64{7, 100}, unusable: 1},
		"a factor for the only limit, then two":     {limits: []descriptor.Limit{minute, day}, all: double, want: []uint64{20, 200}},
		"blocked, then two":                         {limits: []descriptor.Limit{minute, day}, all: override.Numbers{Kind: override.Blocked}, blocked: true},
		"a number for one of two, then only that":   {limits: []descriptor.Limit{minute}, named: seven, want: []uint64{7}},
		"one of two blocked, then only that":        {limits: []descriptor.Limit{minute}, named: override.Numbers{Kind: override.Blocked}, blocked: true},
		"a number for one of two, then the other":   {limits: []descriptor.Limit{day}, named: seven, want: []uint64{100}},
		"a number that is newer than the one of it": {limits: []descriptor.Limit{minute}, all: five, named: seven, want: []uint64{5}},
	} {
		t.Run(name, func(t *testing.T) {
			tree, err := descriptor.Compile([]descriptor.DomainSpec{{Name: "d", Children: []descriptor.NodeSpec{{Key: "k", Rule: &descriptor.Rule{
				RuleSettings: descriptor.RuleSettings{OverrideMax: descriptor.OverrideUnbounded}, Limits: test.limits,
			}}}}}, descriptor.Options{})
			if err != nil {
				t.Fatal(err)
			}
			registry := prometheus.NewPedanticRegistry()
			f := &fixture{Limiter: limiter.New(limiter.Options{Store: memory.New(memory.Options{}), Metrics: prom.With(registry)}), t: t, now: noon, overrides: &override.Set{}}
			f.Swap(tree, limiter.Settings{})
			f.override("d.k", "", test.all, "k=a")
			f.override("d.k", "minute", test.named, "k=a")
			if st := f.ask(1, "k=a"); (st.Code == limiter.OverLimit) != test.blocked {
				t.Errorf("got %+v", st)
			}
			if err := testutil.GatherAndCompare(registry, strings.NewReader(fmt.Sprintf(`# HELP ratelimitd_unusable_overrides_total Limits whose override the rule no longer allows.
# TYPE ratelimitd_unusable_overrides_total counter
ratelimitd_unusable_overrides_total %d
`, test.unusable)), "ratelimitd_unusable_overrides_total"); err != nil {
				t.Error(err)
			}
			peeked, err := f.Peek(t.Context(), f.now, "d", &limiter.Descriptor{Entries: entries("k=a")})
			if err != nil || peeked.Blocked != test.blocked || peeked.Override == nil && test.limits[0].Name == "minute" {
				t.Fatalf("%+v %v", peeked, err)
			}
			var got []uint64
			for i := range peeked.List {
				got = append(got, peeked.List[i].Limit.Requests)
			}
			if !test.blocked && !slices.Equal(got, test.want) {
				t.Errorf("limits of %d requests, want %d", got, test.want)
			}
		})
	}
}

// A rule that bounds its overrides keeps the bound, even when the bound was set after the override.
func TestOverrideStaysWithinItsRule(t *testing.T) {
	bounded := func(r *descriptor.Rule) { r.OverrideMax = 15 }
	f := newFixture(t, limiter.Settings{}, perMinute("k", "", 10, bounded), perMinute("off", "", 10))
	f.override("d.k", "", override.Numbers{Kind: override.Replace, Requests: 50}, "k=a")
	f.want(f.ask(0, "k=a"), limiter.OK, 15)
	f.override("d.k", "", override.Numbers{Kind: override.Unlimited}, "k=a")
	if st := f.ask(0, "k=a"); st.Overridden || st.Remaining != 10 {
		t.Errorf("unlimited under a bound: %+v", st)
	}
	f.override("d.off", "", override.Numbers{Kind: override.Blocked}, "off=a")
	if st := f.ask(0, "off=a"); st.Overridden || st.Remaining != 10 {
		t.Errorf("a rule that is not overridable: %+v", st)
	}
}

// Blocked and other overrides come before the limit of the request; request_override decides between that and the
// rule's.
func TestPrecedenceOfRequestLimits(t *testing.T) {
	own := limiter.RequestLimit{Requests: 30, Unit: int32(descriptor.Minute)}
	lower := limiter.RequestLimit{Requests: 300, Unit: int32(descriptor.Hour)} // 5 per minute
	fewer := limiter.RequestLimit{Requests: 4, Unit: int32(descriptor.Minute)}
	for _, test := range []struct {
		mode  descriptor.RequestOverride
		limit limiter.RequestLimit
		kind  override.Kind
		want  uint64
	}{
		{descriptor.RequestOverrideDefault, own, 0, 30},
		{descriptor.RequestHonour, own, 0, 30},
		{descriptor.RequestMin, own, 0, 10},
		{descriptor.RequestMin, lower, 0, 10},
		{descriptor.RequestMin, fewer, 0, 4},
		{descriptor.RequestIgnore, lower, 0, 10},
		{descriptor.RequestHonour, own, override.Replace, 20},
		{descriptor.RequestMin, lower, override.Replace, 20},
		{descriptor.RequestHonour, own, override.Blocked, 0},
	} {
		tree, err := descriptor.Compile([]descriptor.DomainSpec{{Name: "d", DomainSettings: descriptor.DomainSettings{RequestOverride: test.mode}, Children: []descriptor.NodeSpec{perMinute("k", "", 10, overridable)}}}, descriptor.Options{})
		if err != nil {
			t.Fatal(err)
		}
		f := newFixture(t, limiter.Settings{})
		f.Swap(tree, limiter.Settings{})
		n := override.Numbers{Kind: test.kind}
		if test.kind == override.Replace {
			n.Requests = 20
		}
		f.override("d.k", "", n, "k=a")
		peek := limiter.Descriptor{Entries: entries("k=a"), HasHits: true, HasLimit: true, Limit: test.limit}
		st := f.decide(&limiter.Request{Domain: "d", Descriptors: []limiter.Descriptor{peek}}).Statuses[0]
		c, err := f.Peek(t.Context(), f.now, "d", &peek)
		if err != nil || st.Remaining != test.want || test.kind != override.Blocked && c.List[len(c.List)-1].Remaining != test.want && c.List[0].Remaining != test.want {
			t.Errorf("%+v: %d remaining, and Peek says %+v %v", test, st.Remaining, c, err)
		}
		peek.Entries = entries("other=a")
		st = f.decide(&limiter.Request{Domain: "d", Descriptors: []limiter.Descriptor{peek}}).Statuses[0]
		if st.Limited != (test.mode != descriptor.RequestIgnore) {
			t.Errorf("%+v without a rule: %+v", test, st)
		}
	}
}

// Peek reports the limits of an unlimited customer as lifted, even before its first request.
func TestPeekOfAnUnlimitedCaller(t *testing.T) {
	f := newFixture(t, limiter.Settings{}, perMinute("k", "", 5, overridable))
	f.override("d.k", "", override.Numbers{Kind: override.Unlimited}, "k=a")
	if c := f.peek("k=a"); len(c.List) != 1 || !c.List[0].Lifted || c.Blocked {
		t.Errorf("got %+v", c)
	}
	if c := f.peek("k=b"); len(c.List) != 1 || c.List[0].Lifted {
		t.Errorf("somebody else: got %+v", c)
	}
}

// Decisions about blocked or unlimited customers do not allocate either: blocked ones may send the most requests.
func TestOverridesOfAllKindsDoNotAllocate(t *testing.T) {
	for name, n := range map[string]override.Numbers{
		"blocked": {Kind: override.Blocked}, "unlimited": {Kind: override.Unlimited}, "scaled": {Kind: override.Scale, Requests: 2 * override.One},
	} {
		f := newFixture(t, limiter.Settings{}, perMinute("k", "", 1e9, overridable))
		f.override("d.k", "", n, "k=a")
		req, d := &limiter.Request{Domain: "d", Descriptors: []limiter.Descriptor{{Entries: entries("k=a")}}}, &limiter.Decision{}
		f.decide(req)
		if n := testing.AllocsPerRun(100, func() {
			if err := f.Decide(t.Context(), f.now, req, d); err != nil || !d.Statuses[0].Overridden {
				t.Fatal(err, d)
			}
		}); n > 0 && !racetest.On {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

// Rules without overrides look up nothing, and an override costs no allocation.
func TestOverridesDoNotAllocate(t *testing.T) {
	tree, err := descriptor.Compile([]descriptor.DomainSpec{{Name: "d", Children: []descriptor.NodeSpec{perMinute("k", "", 1e9, overridable)}}}, descriptor.Options{})
	if err != nil {
		t.Fatal(err)
	}
	registry := prometheus.NewPedanticRegistry()
	f := &fixture{Limiter: limiter.New(limiter.Options{Store: memory.New(memory.Options{}), Metrics: prom.With(registry)}), t: t, now: noon, overrides: &override.Set{}}
	f.Swap(tree, limiter.Settings{})
	f.override("d.k", "", override.Numbers{Kind: override.Scale, Requests: 2 * override.One}, "k=a")
	req, d := &limiter.Request{Domain: "d", Descriptors: []limiter.Descriptor{{Entries: entries("k=a")}}}, &limiter.Decision{}
	f.decide(req)
	if n := testing.AllocsPerRun(100, func() {
		if err := f.Decide(t.Context(), f.now, req, d); err != nil || !d.Statuses[0].Overridden {
			t.Fatal(err, d)
		}
	}); n > 0 && !racetest.On {
		t.Errorf("%v allocations", n)
	}
	if err := testutil.GatherAndCompare(registry, strings.NewReader(`# HELP ratelimitd_overridden_descriptors_total Descriptors decided with an operator's override.
# TYPE ratelimitd_overridden_descriptors_total counter
ratelimitd_overridden_descriptors_total 102
`), "ratelimitd_overridden_descriptors_total"); err != nil {
		t.Error(err)
	}
}

func BenchmarkOverridable(b *testing.B) {
	named := func(r *descriptor.Rule) { r.Name = "requests" } // an override may name the limit; these do not
	for _, name := range []string{"not overridable", "no override", "overridden"} {
		b.Run(name, func(b *testing.B) {
			change := overridable
			if name == "not overridable" {
				change = func(*descriptor.Rule) {}
			}
			tree, err := descriptor.Compile([]descriptor.DomainSpec{{Name: "d", Children: []descriptor.NodeSpec{perMinute("k", "", 1e9, change, named)}}}, descriptor.Options{})
			if err != nil {
				b.Fatal(err)
			}
			f := limiter.New(limiter.Options{Store: memory.New(memory.Options{})})
			f.Swap(tree, limiter.Settings{})
			set := override.NewSet(1, func(yield func(*override.Identity, override.Numbers) bool) {
				for i := range 1_000_000 {
					caller := fmt.Sprintf("k=customer-%07d", i)
					if name == "no override" {
						caller += "x"
					}
					if !yield(&override.Identity{Domain: "d", Rule: "d.k", Entries: entries(caller)}, override.Numbers{Kind: override.Replace, Requests: 1e9 + uint64(i)}) {
						return
					}
				}
			})
			f.SetOverrides(set)
			var reqs [1000]*limiter.Request
			for i := range reqs {
				reqs[i] = &limiter.Request{Domain: "d", Descriptors: []limiter.Descriptor{{Entries: entries(fmt.Sprintf("k=customer-%07d", i*997))}}}
			}
			d := &limiter.Decision{}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				if err := f.Decide(b.Context(), noon, reqs[i%len(reqs)], d); err != nil || d.Statuses[0].Overridden != (name == "overridden") {
					b.Fatal(err, d)
				}
			}
		})
	}
}

// withRequestMin is a fixture with request_override: min.
func withRequestMin(t *testing.T, nodes ...descriptor.NodeSpec) *fixture {
	t.Helper()
	tree, err := descriptor.Compile([]descriptor.DomainSpec{{Name: "d", DomainSettings: descriptor.DomainSettings{RequestOverride: descriptor.RequestMin}, Children: nodes}}, descriptor.Options{})
	if err != nil {
		t.Fatal(err)
	}
	f := newFixture(t, limiter.Settings{})
	f.Swap(tree, limiter.Settings{})
	return f
}

// bringing is a descriptor that carries a limit per minute.
func bringing(requests uint32, pair string) limiter.Descriptor {
	return limiter.Descriptor{Entries: entries(pair), HasLimit: true, Limit: limiter.RequestLimit{Requests: requests, Unit: int32(descriptor.Minute)}}
}

// A request's own limit counts requests, and the rule counts their cost. The status shows the limit that fewer requests
// pass.
func TestRequestMinWithACost(t *testing.T) {
	const most = descriptor.MaxRequests
	f := withRequestMin(t, perMinute("k", "", 1000, counting(descriptor.HitCost{Factor: 100})), perMinute("large", "", most, counting(descriptor.HitCost{Factor: most})))
	for _, test := range []struct {
		own   uint32
		pair  string
		limit uint64 // limit in the status
		pass  int
	}{
		{900, "k=a", 1000, 10}, {11, "k=b", 1000, 10}, {9, "k=c", 9, 9}, {1, "k=d", 1, 1}, {0, "k=e", 0, 0},
		{math.MaxUint32, "large=a", most, 1}, {1, "large=b", most, 1},
	} {
		req := &limiter.Request{Domain: "d", Descriptors: []limiter.Descriptor{bringing(test.own, test.pair)}}
		st := f.decide(req).Statuses[0]
		if st.Limit.Requests != test.limit || st.FromRequest != (test.limit == uint64(test.own)) {
			t.Errorf("a limit of %d for %s: the status has %+v, want %d", test.own, test.pair, st, test.limit)
		}
		passed := 0
		for ; st.Code == limiter.OK; st = f.decide(req).Statuses[0] {
			passed++
		}
		if passed != test.pass {
			t.Errorf("a limit of %d for %s: %d requests passed, want %d", test.own, test.pair, passed, test.pass)
		}
	}
}

// A limit that is not enforced for the customer does not keep the limit of a request from counting.
func TestRequestMinBesideALimitInShadow(t *testing.T) {
	now := fixedLimit("now", 100)
	f := withRequestMin(t,
		listNode("enforced", []descriptor.Limit{now, fixedLimit("new", 10, hourly)}),
		listNode("list", []descriptor.Limit{now, fixedLimit("new", 10, inShadow)}),
		listNode("soft", []descriptor.Limit{now, fixedLimit("new", 10, soft)}),
		listNode("lone", []descriptor.Limit{fixedLimit("new", 10, inShadow)}),
		listNode("mode", []descriptor.Limit{fixedLimit("new", 10)}, shadow))
	for key, want := range map[string]uint64{"enforced": 10, "list": 20, "soft": 20, "lone": 20, "mode": 20} {
		d := f.decide(&limiter.Request{Domain: "d", Hits: 30, Descriptors: []limiter.Descriptor{bringing(20, key+"=a")}})
		if st := d.Statuses[0]; d.Code != limiter.OverLimit || st.Limit.Requests != want {
			t.Errorf("%s: %s under a limit of %d, want one of %d", key, d.Code, st.Limit.Requests, want)
		}
	}
	// If a limit is enforced for some customers, only their status has the rule.
	half := listNode("user", []descriptor.Limit{now, fixedLimit("new", 10, enforcedFor(50))})
	half.FoldCase = true
	f = withRequestMin(t, half)
	seen := map[uint64]int{}
	for i := range 40 {
		pair := fmt.Sprintf("user=U%d", i)
		c, err := f.Peek(t.Context(), f.now, "d", &limiter.Descriptor{Entries: entries(pair)})
		if err != nil {
			t.Fatal(err)
		}
		got := f.decide(&limiter.Request{Domain: "d", Descriptors: []limiter.Descriptor{bringing(20, pair)}}).Statuses[0].Limit.Requests
		if seen[got]++; (got == 20) != c.List[1].Unenforced {
			t.Errorf("%s: a limit of %d, and the new one is enforced: %t", pair, got, !c.List[1].Unenforced)
		}
	}
	if len(seen) != 2 {
		t.Errorf("callers by the limit that they have: %v", seen)
	}
}

// A quota bucket is limited by the limits that an override leaves active, even if another override lifts the rest of
// the rule, or if the rule does not allow the override any more.
func TestQuotaBucketOfAnUnlimitedCaller(t *testing.T) {
	two := listNode("two", []descriptor.Limit{fixedLimit("minute", 10), fixedLimit("hour", 100, hourly)}, overridable)
	f := newFixture(t, limiter.Settings{}, two, perMinute("bounded", "", 5, func(r *descriptor.Rule) { r.OverrideMax = 50 }))
	for _, rule := range []string{"two", "bounded"} {
		f.override("d."+rule, "", override.Numbers{Kind: override.Unlimited}, rule+"=a")
	}
	f.override("d.two", "hour", override.Numbers{Kind: override.Replace, Requests: 7}, "two=a")
	for caller, want := range map[string]uint64{"two=a": 7, "bounded=a": 5} {
		f.want(f.ask(0, caller), limiter.OK, want)
		bucket, err := f.QuotaBucket(t.Context(), f.now, "d", entries(caller))
		if err != nil || len(bucket.Enforced) != 1 || bucket.Enforced[0].Limit.Requests != want {
			t.Errorf("%s: %v, %v", caller, bucket.Enforced, err)
		}
	}
}
