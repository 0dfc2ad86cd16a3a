package limiter_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/backend/memory"
	"github.com/ratelimitd/ratelimitd/internal/backend/overlimit"
	"github.com/ratelimitd/ratelimitd/internal/config/override"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
	"github.com/ratelimitd/ratelimitd/internal/testkit/racetest"
)

// fixedLimit is one limit of a list: a fixed window of a minute.
func fixedLimit(name string, requests uint64, change ...func(*descriptor.Limit)) descriptor.Limit {
	l := descriptor.Limit{Name: name, Requests: requests, Window: descriptor.Window{Unit: descriptor.Minute}}
	for _, c := range change {
		c(&l)
	}
	return l
}

func hourly(l *descriptor.Limit)   { l.Window.Unit = descriptor.Hour }
func inShadow(l *descriptor.Limit) { l.Enforcement = descriptor.EnforcedInShadow }
func soft(l *descriptor.Limit)     { l.Enforcement = descriptor.EnforcedSoftly }
func enforcedFor(percent uint8) func(*descriptor.Limit) {
	return func(l *descriptor.Limit) { l.Enforcement, l.EnforcePercent = descriptor.EnforcedForSome, percent }
}
func warnAt(percent uint8) func(*descriptor.Limit) {
	return func(l *descriptor.Limit) { l.WarnAt = percent }
}

// listNode is a node whose rule has these limits.
func listNode(key string, limits []descriptor.Limit, change ...func(*descriptor.Rule)) descriptor.NodeSpec {
	r := &descriptor.Rule{Limits: limits}
	for _, c := range change {
		c(r)
	}
	return descriptor.NodeSpec{Key: key, Rule: r}
}

// used returns the hits in use under each limit of a descriptor.
func (f *fixture) used(pair string) []int64 {
	f.t.Helper()
	c, err := f.Peek(f.t.Context(), f.now, "d", &limiter.Descriptor{Entries: entries(pair)})
	if err != nil {
		f.t.Fatal(err)
	}
	var all []int64
	for i := range c.List {
		all = append(all, c.List[i].Used)
	}
	return all
}

func never(*backend.Take) bool { return false }

// A limit in shadow denies nothing and shows nowhere. It counts the hits that the limits next to it let pass, under a
// separate counter.
func TestLimitInShadow(t *testing.T) {
	s := limiter.Settings{Headers: descriptor.HeadersReference | descriptor.HeadersIETF, Metadata: true}
	f := newFallback(t, never, s, descriptor.DomainSpec{Children: []descriptor.NodeSpec{
		listNode("k", []descriptor.Limit{fixedLimit("new", 3, inShadow), fixedLimit("now", 5)}),
	}})
	for i := range uint64(7) {
		d := f.decide(request(1, "k=a"))
		st := d.Statuses[0]
		if i < 5 {
			f.want(st, limiter.OK, 4-i)
		} else {
			f.want(st, limiter.OverLimit, 0)
		}
		if st.LimitIndex != 1 || st.Limit.Name != "now" || d.Metadata["warnings"] != nil {
			t.Errorf("request %d: %+v, metadata %v", i+1, st, d.Metadata)
		}
		if text := fmt.Sprint(d.Headers); strings.Contains(text, "new") || !strings.Contains(text, "{RateLimit-Limit 5}") {
			t.Errorf("request %d: headers %s", i+1, text)
		}
		var notices []limiter.Notice
		if i >= 3 {
			notices = []limiter.Notice{{Kind: limiter.NoticeShadow, Name: "new", Percent: int64(i+1) * 100 / 3}}
		}
		if diff := cmp.Diff(notices, d.Notices); diff != "" {
			t.Errorf("request %d: %s", i+1, diff)
		}
	}
	if diff := cmp.Diff([]int64{7, 7}, f.used("k=a")); diff != "" { // denied hits count in a fixed window
		t.Error(diff)
	}
	if err := testutil.GatherAndCompare(f.registry, strings.NewReader(`# HELP ratelimitd_limit_hits_total Hits that one limit denied, let pass unenforced, or warned about.
# TYPE ratelimitd_limit_hits_total counter
ratelimitd_limit_hits_total{domain="d",limit="new",result="denied",rule="k"} 0
ratelimitd_limit_hits_total{domain="d",limit="new",result="unenforced",rule="k"} 2
ratelimitd_limit_hits_total{domain="d",limit="new",result="warned",rule="k"} 0
ratelimitd_limit_hits_total{domain="d",limit="now",result="denied",rule="k"} 2
ratelimitd_limit_hits_total{domain="d",limit="now",result="unenforced",rule="k"} 0
ratelimitd_limit_hits_total{domain="d",limit="now",result="warned",rule="k"} 0
# HELP ratelimitd_rule_over_limit_hits_total Hits over the limit, enforced or not.
# TYPE ratelimitd_rule_over_limit_hits_total counter
ratelimitd_rule_over_limit_hits_total{domain="d",rule="k"} 2
`), "ratelimitd_limit_hits_total", "ratelimitd_rule_over_limit_hits_total"); err != nil {
		t.Error(err)
	}
}

// Enforced limits keep the counters that they have in a rule without limits that are being tried out.
func TestTrialChangesNoCounterOfOthers(t *testing.T) {
	keys := func(limits ...descriptor.Limit) []string {
		f := newFixture(t, limiter.Settings{}, listNode("k", limits))
		return f.Explain("d", entries("k=a")).Keys
	}
	alone := keys(fixedLimit("now", 5))[0]
	for name, k := range map[string][]string{
		"a shadow":     keys(fixedLimit("now", 5), fixedLimit("new", 3, inShadow)),
		"a share":      keys(fixedLimit("now", 5), fixedLimit("new", 3, enforcedFor(10))),
		"soft":         keys(fixedLimit("now", 5), fixedLimit("new", 3, soft)),
		"two of them":  keys(fixedLimit("now", 5), fixedLimit("new", 3, soft), fixedLimit("newer", 2, inShadow)),
		"other window": keys(fixedLimit("now", 5), fixedLimit("new", 3, inShadow, hourly)),
	} {
		seen := map[string]bool{}
		for _, key := range k {
			seen[key] = true
		}
		if k[0] != alone || len(seen) != len(k) {
			t.Errorf("%s: the keys are %q, alone it is %q", name, k, alone)
		}
	}
	if got := keys(fixedLimit("now", 5), fixedLimit("new", 3, inShadow, hourly))[1]; got != keys(fixedLimit("new", 3, hourly))[0] {
		t.Errorf("the counter of a limit in shadow, alone in its window, is %q", got)
	}
}

// A limit that is tried out uses up nothing of an enforced limit of another rule, if a condition decides which rule
// applies and both count the same customers.
func TestTrialUsesUpNothingOfOtherRules(t *testing.T) {
	for name, change := range map[string]func(free, gold *descriptor.NodeSpec){
		"same level":        func(_, _ *descriptor.NodeSpec) {},
		"a value and any":   func(_, gold *descriptor.NodeSpec) { gold.Children[0].Value = "x" },
		"a key with a star": func(free, _ *descriptor.NodeSpec) { free.Children[0].Key = "us*" },
		"the same name twice": func(free, gold *descriptor.NodeSpec) {
			gold.Children[0].Rule.Limits[1].Name = free.Children[0].Rule.Limits[0].Name
		},
	} {
		t.Run(name, func(t *testing.T) {
			plan := func(value string, limits ...descriptor.Limit) descriptor.NodeSpec {
				return descriptor.NodeSpec{Key: "plan", Value: value, Condition: true, Children: []descriptor.NodeSpec{listNode("user", limits)}}
			}
			free := plan("free", fixedLimit("a", 3))
			gold := plan("gold", fixedLimit("h", 100, hourly), fixedLimit("b", 3, inShadow))
			change(&free, &gold)
			f := newFixture(t, limiter.Settings{}, gold, free)
			of := func(plan string) *limiter.Request {
				return &limiter.Request{Domain: "d", Hits: 1, Descriptors: []limiter.Descriptor{{Entries: entries("plan="+plan, "user=x")}}}
			}
			for range 5 {
				f.decide(of("gold"))
			}
			f.want(f.decide(of("free")).Statuses[0], limiter.OK, 2)
		})
	}
}

// Limits of several rules that share counters keep one counter while they are tried out together, and have the counter
// of the enforced limit when they are enforced.
func TestTrialInSeveralRules(t *testing.T) {
	keys := func(changes ...func(*descriptor.Limit)) (all []string) {
		var plans []descriptor.NodeSpec
		for i, change := range changes {
			plans = append(plans, descriptor.NodeSpec{Key: "plan", Value: strconv.Itoa(i), Condition: true, Children: []descriptor.NodeSpec{
				listNode("user", []descriptor.Limit{fixedLimit("new", 3, change)}),
			}})
		}
		f := newFixture(t, limiter.Settings{}, plans...)
		for i := range changes {
			all = append(all, f.Explain("d", entries(fmt.Sprintf("plan=%d", i), "user=x")).Keys[0])
		}
		return all
	}
	enforced := func(*descriptor.Limit) {}
	all := keys(enforced, enforced)
	if tried := keys(inShadow, enforcedFor(10)); all[0] != all[1] || !slices.Equal(tried, all) {
		t.Errorf("enforced %q, tried out %q", all, tried)
	}
	if mixed := keys(inShadow, enforced, inShadow); mixed[1] != all[0] || mixed[0] == all[0] || mixed[0] != mixed[2] {
		t.Errorf("some enforced %q", mixed)
	}
}

// Hits that an enforced limit denies are not counted by a limit in shadow, under every admission.
func TestShadowCountsWhatOthersAdmit(t *testing.T) {
	dropped := func(l *descriptor.Limit) { l.CountDenied = descriptor.DeniedDrop }
	for _, s := range []limiter.Settings{{}, allOrNothing, {StopWhenOver: true}} {
		for _, cached := range []bool{false, true} {
			var store backend.Store = memory.New(memory.Options{})
			if cached {
				store = overlimit.New(overlimit.Options{Store: store})
			}
			f := newFixtureOn(t, store, s,
				listNode("k", []descriptor.Limit{fixedLimit("shadow", 4, inShadow, hourly, dropped), fixedLimit("now", 2, dropped)}),
				perMinute("other", "", 3, func(r *descriptor.Rule) { r.Limits[0].CountDenied = descriptor.DeniedDrop }))
			for range 4 {
				f.decide(request(1, "k=a"))
			}
			if diff := cmp.Diff([]int64{2, 2}, f.used("k=a")); diff != "" {
				t.Errorf("%+v, cached %t: %s", s, cached, diff)
			}
			f.now = f.now.Add(time.Minute)
			f.decide(request(2, "k=a"))
			f.now = f.now.Add(time.Minute)
			if d := f.decide(request(1, "k=a", "other=a")); d.Code != limiter.OK || len(d.Notices) != 1 {
				t.Errorf("%+v, cached %t: over the limit in shadow: %s %v", s, cached, d.Code, d.Notices)
			}
			if diff := cmp.Diff([]int64{4, 1}, f.used("k=a")); diff != "" {
				t.Errorf("%+v, cached %t: %s", s, cached, diff)
			}
			if f.left("other=a") != 2 {
				t.Errorf("%+v, cached %t: the other descriptor has %d left", s, cached, f.left("other=a"))
			}
			f.now = f.now.Add(-2 * time.Minute)
		}
	}
}

// A refund and a peek reach all limits.
func TestRefundReachesLimitsInShadow(t *testing.T) {
	f := newFixture(t, limiter.Settings{}, listNode("k", []descriptor.Limit{fixedLimit("now", 9), fixedLimit("new", 3, inShadow)}))
	f.ask(3, "k=a")
	f.ask(-2, "k=a")
	if d := f.decide(&limiter.Request{Domain: "d", Descriptors: []limiter.Descriptor{amount(0, "k=a")}}); len(d.Notices) != 0 {
		t.Errorf("a peek: %v", d.Notices)
	}
	if diff := cmp.Diff([]int64{1, 1}, f.used("k=a")); diff != "" {
		t.Error(diff)
	}
}

// A limit is enforced for about the share of customers that it asks for. They are always the same customers, and a
// larger share adds to them.
func TestEnforcedForAShareOfCallers(t *testing.T) {
	const callers = 2000
	var last map[int]bool
	for _, percent := range []uint8{1, 10, 50, 99, 100} {
		f := newFixture(t, limiter.Settings{}, listNode("k", []descriptor.Limit{fixedLimit("now", 9), fixedLimit("new", 0, hourly, enforcedFor(percent))}))
		again := newFixture(t, limiter.Settings{}, listNode("k", []descriptor.Limit{fixedLimit("now", 9), fixedLimit("new", 0, hourly, enforcedFor(percent))}))
		denied := make(map[int]bool)
		for i := range callers {
			caller := "k=" + strconv.Itoa(i)
			st := f.ask(1, caller)
			if st.Code == limiter.OverLimit {
				denied[i] = true
			}
			if other := again.ask(1, caller); other.Code != st.Code {
				t.Errorf("%s: %s here, and %s in another process", caller, st.Code, other.Code)
			}
			if last[i] && !denied[i] {
				t.Errorf("%s: not denied at %d %%, and before it was", caller, percent)
			}
			c, err := f.Peek(t.Context(), f.now, "d", &limiter.Descriptor{Entries: entries(caller)})
			if err != nil || c.List[1].Unenforced == denied[i] || c.List[0].Unenforced {
				t.Errorf("%s: denied %t, for operators %+v, %v", caller, denied[i], c.List, err)
			}
		}
		if n, want := len(denied), callers*int(percent)/100; n < want-want/4-8 || n > want+want/4+8 {
			t.Errorf("%d %%: enforced for %d of %d callers", percent, n, callers)
		}
		last = denied
	}
}

// A request that another descriptor denies would not be denied more by a limit in shadow.
func TestUnenforcedHitsOfDeniedRequests(t *testing.T) {
	for _, s := range []limiter.Settings{{}, allOrNothing} {
		f := newFallback(t, never, s, descriptor.DomainSpec{Children: []descriptor.NodeSpec{
			listNode("k", []descriptor.Limit{fixedLimit("new", 0, inShadow)}), perMinute("full", "", 0), perMinute("free", "", 9),
		}})
		f.decide(request(2, "k=a", "full=a"))
		f.decide(request(1, "k=a", "free=a"))
		if err := testutil.GatherAndCompare(f.registry, strings.NewReader(`# HELP ratelimitd_limit_hits_total Hits that one limit denied, let pass unenforced, or warned about.
# TYPE ratelimitd_limit_hits_total counter
ratelimitd_limit_hits_total{domain="d",limit="new",result="denied",rule="k"} 0
ratelimitd_limit_hits_total{domain="d",limit="new",result="unenforced",rule="k"} 1
ratelimitd_limit_hits_total{domain="d",limit="new",result="warned",rule="k"} 0
`), "ratelimitd_limit_hits_total"); err != nil {
			t.Errorf("%+v: %v", s, err)
		}
	}
}

// A limit that a request carries is compared with the limits that are enforced for its customer.
func TestRequestLimitBesideALimitInShadow(t *testing.T) {
	f := newFallback(t, never, limiter.Settings{}, descriptor.DomainSpec{DomainSettings: descriptor.DomainSettings{RequestOverride: descriptor.RequestMin}, Children: []descriptor.NodeSpec{
		listNode("shadow", []descriptor.Limit{fixedLimit("now", 60), fixedLimit("new", 6, inShadow)}),
		listNode("share", []descriptor.Limit{fixedLimit("now", 60), fixedLimit("new", 6, enforcedFor(50))}),
	}})
	ask := func(pair string) uint64 {
		d := limiter.Descriptor{Entries: entries(pair), HasLimit: true, Limit: limiter.RequestLimit{Requests: 30, Unit: int32(descriptor.Minute)}}
		return f.decide(&limiter.Request{Domain: "d", Descriptors: []limiter.Descriptor{d}}).Statuses[0].Limit.Requests
	}
	if got := ask("shadow=a"); got != 30 {
		t.Errorf("beside a limit in shadow, %d a minute", got)
	}
	seen := make(map[uint64]bool)
	for i := range 20 {
		caller := "share=" + strconv.Itoa(i)
		want := uint64(30)
		if (&descriptor.Limit{Enforcement: descriptor.EnforcedForSome, EnforcePercent: 50}).EnforcedFor([]byte("d|" + caller + "|new")) {
			want = 6
		}
		got := ask(caller)
		if seen[got] = true; got != want {
			t.Errorf("%s: %d a minute, want %d", caller, got, want)
		}
	}
	if len(seen) != 2 {
		t.Errorf("all callers are the same: %v", seen)
	}
}

// Changing a limit's window, algorithm or key prefix, or removing another limit, keeps the share of customers. Renaming
// the limit changes it.
func TestShareOfCallersWhileALimitIsTuned(t *testing.T) {
	share := func(keys descriptor.KeyBuilder, limits ...descriptor.Limit) (denied string) {
		f := newFixture(t, limiter.Settings{}, listNode("k", limits))
		l := limiter.New(limiter.Options{Store: memory.New(memory.Options{}), Keys: keys})
		l.Swap(f.Tree(), limiter.Settings{})
		for i := range 40 {
			var d limiter.Decision
			if err := l.Decide(t.Context(), noon, request(1, "k="+strconv.Itoa(i)), &d); err != nil {
				t.Fatal(err)
			}
			denied += strconv.Itoa(int(d.Code) - int(limiter.OK))
		}
		return denied
	}
	now, own := fixedLimit("now", 9), descriptor.KeyBuilder{}
	first := share(own, now, fixedLimit("new", 0, enforcedFor(50)))
	bucket := func(l *descriptor.Limit) { l.Algorithm, l.Requests = descriptor.SlidingLog, 0 }
	for name, other := range map[string]string{
		"an hour":       share(own, now, fixedLimit("new", 0, enforcedFor(50), hourly)),
		"another kind":  share(own, now, fixedLimit("new", 0, enforcedFor(50), bucket)),
		"alone":         share(own, fixedLimit("new", 0, enforcedFor(50))),
		"a prefix":      share(descriptor.KeyBuilder{Prefix: "x:"}, now, fixedLimit("new", 0, enforcedFor(50))),
		"other formats": share(descriptor.KeyBuilder{Format: descriptor.KeysLyft}, fixedLimit("new", 0, enforcedFor(50))),
	} {
		if other != first {
			t.Errorf("%s: denied %s, want %s", name, other, first)
		}
	}
	if other := share(own, now, fixedLimit("newer", 0, enforcedFor(50))); other == first {
		t.Errorf("a limit with another name denies the same callers: %s", other)
	}
}

// The share of a key must never change: another hash would deny other customers after an upgrade.
func TestEnforcedForVectors(t *testing.T) {
	for key, least := range map[string]uint8{"": 53, "d|k=a|new": 53, "d|k=b|new": 17, "d|k=c|new": 27, "api|user=42|": 26} {
		l := descriptor.Limit{Enforcement: descriptor.EnforcedForSome}
		for l.EnforcePercent = 0; !l.EnforcedFor([]byte(key)); l.EnforcePercent++ {
			if l.EnforcePercent > 100 {
				t.Fatalf("%q: never", key)
			}
		}
		if l.EnforcePercent != least {
			t.Errorf("%q: enforced from %d %%, want %d", key, l.EnforcePercent, least)
		}
	}
}

// A descriptor in quota mode that passes for any count keeps the other quotas from denying the request.
func TestQuotaWithLimitsThatPass(t *testing.T) {
	for _, s := range []limiter.Settings{{}, allOrNothing} {
		f := newFixture(t, s,
			listNode("lenient", []descriptor.Limit{fixedLimit("new", 0, inShadow)}, quota),
			listNode("both", []descriptor.Limit{fixedLimit("new", 0, inShadow), fixedLimit("now", 2, hourly)}, quota),
			perMinute("full", "", 0, quota))
		if d := f.decide(request(1, "lenient=a", "full=a")); d.Code != limiter.OK {
			t.Errorf("%+v: beside a descriptor that always passes: %s", s, d.Code)
		}
		for i, want := range []limiter.Code{limiter.OK, limiter.OK, limiter.OverLimit} {
			if d := f.decide(request(1, "both=a", "full=a")); d.Code != want {
				t.Errorf("%+v: request %d: %s, want %s", s, i+1, d.Code, want)
			}
		}
	}
}

// An operator's block is enforced, even if it replaces a limit in shadow.
func TestBlockOfALimitInShadow(t *testing.T) {
	f := newFixture(t, limiter.Settings{}, listNode("k", []descriptor.Limit{fixedLimit("new", 9, inShadow), fixedLimit("now", 9, hourly)}, overridable))
	f.override("d.k", "", override.Numbers{Kind: override.Blocked}, "k=a")
	f.want(f.ask(1, "k=a"), limiter.OverLimit, 0)
	f.override("d.k", "", override.Numbers{}, "k=a")
	f.override("d.k", "new", override.Numbers{Kind: override.Blocked}, "k=a")
	f.want(f.ask(1, "k=a"), limiter.OverLimit, 0)
	f.override("d.k", "new", override.Numbers{Kind: override.Replace, Requests: 1}, "k=a")
	for i, notices := range []int{0, 1} {
		if d := f.decide(request(1, "k=a")); d.Code != limiter.OK || len(d.Notices) != notices {
			t.Errorf("request %d of a limit in shadow with an override of 1: %s %v", i+1, d.Code, d.Notices)
		}
	}
}

// A counter that cannot be read matters only to a limit that is enforced.
func TestOnErrorOfALimitInShadow(t *testing.T) {
	down := func(of string) func(*backend.Take) bool {
		return func(t *backend.Take) bool { return t.Limit.Name == of }
	}
	nodes := func() descriptor.DomainSpec {
		return descriptor.DomainSpec{DomainSettings: descriptor.DomainSettings{OnError: descriptor.OnErrorDeny}, Children: []descriptor.NodeSpec{
			listNode("k", []descriptor.Limit{fixedLimit("new", 9, inShadow), fixedLimit("now", 9, hourly)}),
			listNode("lenient", []descriptor.Limit{fixedLimit("new", 9, inShadow)}),
		}}
	}
	f := newFallback(t, down("new"), limiter.Settings{Headers: descriptor.HeadersReference}, nodes())
	st := f.ask(1, "k=a")
	f.want(st, limiter.OK, 8)
	if st.Degraded != descriptor.OnErrorDefault {
		t.Errorf("the limit in shadow has no answer: %+v", st)
	}
	f.want(f.ask(1, "lenient=a"), limiter.OK, 0)
	if err := testutil.GatherAndCompare(f.registry, strings.NewReader(`# HELP ratelimitd_degraded_requests_total Requests that on_error decided.
# TYPE ratelimitd_degraded_requests_total counter
ratelimitd_degraded_requests_total 1
`), "ratelimitd_degraded_requests_total"); err != nil {
		t.Error(err)
	}
	f = newFallback(t, down("now"), limiter.Settings{}, nodes())
	f.want(f.ask(1, "k=a"), limiter.OverLimit, 0)
}

// A bucket in shadow delays nothing.
func TestBucketInShadowDelaysNothing(t *testing.T) {
	leaky := func(l *descriptor.Limit) { l.Algorithm, l.Burst = descriptor.LeakyBucket, 60 }
	f := newFixture(t, limiter.Settings{}, listNode("k", []descriptor.Limit{fixedLimit("now", 90), fixedLimit("new", 60, leaky, inShadow)}))
	for range 3 {
		if d := f.decide(request(5, "k=a")); d.Code != limiter.OK || d.Delay != 0 || d.Statuses[0].Delay != 0 || len(d.Headers) != 0 {
			t.Errorf("%s, delay %s, %v", d.Code, d.Delay, d.Headers)
		}
	}
}

// The reservation has the hits that the enforced limits grant. A limit in shadow neither makes it smaller nor charges
// the hits that it denied.
func TestReservationsBesideALimitInShadow(t *testing.T) {
	f := newFixture(t, limiter.Settings{}, listNode("k", []descriptor.Limit{fixedLimit("new", 50, inShadow), fixedLimit("now", 100, hourly)}, reservable))
	d := f.reserve(1, limiter.OK, amount(40, "k=a"))
	if d.Reservations[0].Reserved != 40 {
		t.Errorf("%+v", d.Reservations)
	}
	d = f.reserve(2, limiter.OK, amount(30, "k=a"))
	if d.Reservations[0].Reserved != 30 || d.Reservations[0].Result != limiter.ReservationDone || len(d.Notices) != 1 {
		t.Errorf("above the limit in shadow: %+v %v", d.Reservations, d.Notices)
	}
	d, err := f.step(3, limiter.Reservation{Op: limiter.Reserve, Least: 10}, amount(60, "k=a"))
	if err != nil || d.Code != limiter.OK || d.Reservations[0].Reserved != 30 {
		t.Errorf("as much as fits: %+v, %v", d, err)
	}
	if diff := cmp.Diff([]int64{40, 100}, f.used("k=a")); diff != "" {
		t.Error(diff)
	}
	for id, hits := range []uint64{1: 10, 2: 20, 3: 0} {
		if id == 0 {
			continue
		}
		d, err := f.step(byte(id), limiter.Reservation{Op: limiter.Commit, Final: true, ChargeUnknown: true}, amount(hits, "k=a"))
		if err != nil || d.Reservations[0].Result != limiter.ReservationDone {
			t.Errorf("commit %d: %+v, %v", id, d.Reservations, err)
		}
	}
	if diff := cmp.Diff([]int64{10, 30}, f.used("k=a")); diff != "" {
		t.Error(diff)
	}
}

// A soft limit and warn_at add a header and metadata; they deny nothing.
func TestWarnings(t *testing.T) {
	f := newFallback(t, never, limiter.Settings{Metadata: true}, descriptor.DomainSpec{Children: []descriptor.NodeSpec{
		listNode("k", []descriptor.Limit{fixedLimit("day", 4, soft), fixedLimit("hard", 6, hourly, warnAt(80))}),
		perMinute("one", "", 2, func(r *descriptor.Rule) { r.Limits[0].WarnAt = 100 }),
	}})
	day := map[string]any{"rule": "d.k", "descriptor": 0, "name": "day", "used_percent": int64(0), "exceeded": true}
	for i, want := range []string{"", "", "", "", `"day";exceeded, "hard";used=83`, `"day";exceeded, "hard";used=100`, `"day";exceeded`} {
		d := f.decide(request(1, "k=a"))
		var headers []limiter.Header
		if want != "" {
			headers = []limiter.Header{{Key: "x-ratelimit-warning", Value: want}}
		}
		if (d.Code == limiter.OverLimit) != (i == 6) || !cmp.Equal(headers, d.Headers) {
			t.Errorf("request %d: %s %v, want %v", i+1, d.Code, d.Headers, headers)
		}
		if warnings, _ := d.Metadata["warnings"].([]any); want == "" && warnings != nil || want != "" && len(warnings) != 1+strings.Count(want, ",") {
			t.Errorf("request %d: metadata %v", i+1, d.Metadata)
		} else if want != "" {
			day["used_percent"] = int64(i+1) * 25
			if diff := cmp.Diff(day, warnings[0]); diff != "" {
				t.Errorf("request %d: %s", i+1, diff)
			}
		}
	}
	for i, want := range []string{"", `"minute";used=100`, ""} {
		d := f.decide(request(1, "one=a"))
		if got := fmt.Sprint(d.Headers); want == "" && got != "[]" || !strings.Contains(got, want) {
			t.Errorf("request %d: %s", i+1, got)
		}
	}
	if err := testutil.GatherAndCompare(f.registry, strings.NewReader(`# HELP ratelimitd_limit_hits_total Hits that one limit denied, let pass unenforced, or warned about.
# TYPE ratelimitd_limit_hits_total counter
ratelimitd_limit_hits_total{domain="d",limit="",result="denied",rule="one"} 1
ratelimitd_limit_hits_total{domain="d",limit="",result="unenforced",rule="one"} 0
ratelimitd_limit_hits_total{domain="d",limit="",result="warned",rule="one"} 1
ratelimitd_limit_hits_total{domain="d",limit="day",result="denied",rule="k"} 0
ratelimitd_limit_hits_total{domain="d",limit="day",result="unenforced",rule="k"} 2
ratelimitd_limit_hits_total{domain="d",limit="day",result="warned",rule="k"} 0
ratelimitd_limit_hits_total{domain="d",limit="hard",result="denied",rule="k"} 1
ratelimitd_limit_hits_total{domain="d",limit="hard",result="unenforced",rule="k"} 0
ratelimitd_limit_hits_total{domain="d",limit="hard",result="warned",rule="k"} 2
`), "ratelimitd_limit_hits_total"); err != nil {
		t.Error(err)
	}
}

// A header of a limit's name does not show the limit while it is in shadow.
func TestOwnHeaderOfALimitInShadow(t *testing.T) {
	headers := []descriptor.OwnHeader{of("new", own("x-new", descriptor.FieldRemaining)), of("now", own("x-now", descriptor.FieldRemaining))}
	f := withHeaders(t, memory.New(memory.Options{}), limiter.Settings{}, headers, listNode("k", []descriptor.Limit{fixedLimit("now", 5), fixedLimit("new", 3, inShadow)}))
	if diff := cmp.Diff([]limiter.Header{{Key: "x-now", Value: "4"}}, f.decide(request(1, "k=a")).Headers); diff != "" {
		t.Error(diff)
	}
}

// A rule in shadow mode warns nobody.
func TestNoWarningInShadowMode(t *testing.T) {
	f := newFixture(t, limiter.Settings{}, listNode("k", []descriptor.Limit{fixedLimit("day", 1, soft), fixedLimit("hard", 2, hourly, warnAt(10))}, shadow),
		listNode("share", []descriptor.Limit{fixedLimit("day", 1, warnAt(10), inShadow)}))
	for range 4 {
		if d := f.decide(request(1, "k=a", "share=a")); d.Code != limiter.OK || len(d.Headers) != 0 {
			t.Errorf("%s %v", d.Code, d.Headers)
		}
	}
}

// A replaced limit sends no notice.
func TestReplacedLimitSaysNothing(t *testing.T) {
	f := newFixture(t, limiter.Settings{}, listNode("k", []descriptor.Limit{fixedLimit("now", 9), fixedLimit("day", 0, soft, hourly)}),
		perMinute("gold", "", 9, func(r *descriptor.Rule) { r.Replaces = []string{"day"} }))
	if d := f.decide(request(1, "k=a", "gold=a")); d.Code != limiter.OK || len(d.Notices) != 0 || len(d.Headers) != 0 {
		t.Errorf("%s %v %v", d.Code, d.Notices, d.Headers)
	}
}

func TestVaryingLimitsDoNotAllocate(t *testing.T) {
	f := newFixture(t, limiter.Settings{}, listNode("k", []descriptor.Limit{fixedLimit("now", 1000), fixedLimit("new", 0, inShadow), fixedLimit("share", 1000, hourly, enforcedFor(50))}))
	req, d := request(1, "k=a"), &limiter.Decision{}
	if n := testing.AllocsPerRun(100, func() {
		if err := f.Decide(t.Context(), noon, req, d); err != nil {
			t.Fatal(err)
		}
	}); n > 0 && !racetest.On {
		t.Errorf("%v allocations for a decision, want none", n)
	}
}

// The header of warnings is short even if many limits are exceeded. It starts with the limits that are exceeded the
// most.
func TestWarningsAreBounded(t *testing.T) {
	var limits []descriptor.Limit
	for i := range 16 {
		limits = append(limits, fixedLimit(fmt.Sprintf("%s%d", strings.Repeat("n", 90), i), uint64(100-i), soft))
	}
	f := newFixture(t, limiter.Settings{Metadata: true}, listNode("k", limits), listNode("warn", []descriptor.Limit{fixedLimit("warn", 1000, warnAt(1))}))
	req := &limiter.Request{Domain: "d", Hits: 200, Descriptors: []limiter.Descriptor{{Entries: entries("warn=a")}}}
	for i := range 100 {
		req.Descriptors = append(req.Descriptors, limiter.Descriptor{Entries: entries(fmt.Sprintf("k=%d", i))})
	}
	d := f.decide(req)
	header := d.Headers[0].Value
	if len(header) > 1024 || len(header) < 900 || !strings.HasPrefix(header, `"`+limits[15].Name+`";exceeded, `) || strings.Contains(header, "warn") {
		t.Errorf("%d bytes: %s", len(header), header)
	}
	warnings, _ := d.Metadata["warnings"].([]any)
	if len(warnings) != strings.Count(header, ";exceeded") {
		t.Errorf("%d warnings in metadata, and the header is %s", len(warnings), header)
	}
}

// Every hit of a request that a limit would deny counts as denied, as in the hits of the rule: the share of denied hits
// equals the share of denied requests.
func TestMetricsOfLimitsCountAllDeniedHits(t *testing.T) {
	cost := counting(descriptor.HitCost{Factor: 50})
	f := newFallback(t, never, limiter.Settings{}, descriptor.DomainSpec{DomainSettings: descriptor.DomainSettings{Admission: descriptor.AllOrNothing}, Children: []descriptor.NodeSpec{
		listNode("k", []descriptor.Limit{fixedLimit("now", 100000), fixedLimit("new", 99, inShadow)}, cost),
		listNode("e", []descriptor.Limit{fixedLimit("now", 100000, hourly), fixedLimit("new", 99, warnAt(100))}, cost),
	}})
	for range 21 { // one of them fits
		f.decide(request(1, "k=a"))
		f.decide(request(1, "e=a"))
	}
	if err := testutil.GatherAndCompare(f.registry, strings.NewReader(`# HELP ratelimitd_limit_hits_total Hits that one limit denied, let pass unenforced, or warned about.
# TYPE ratelimitd_limit_hits_total counter
ratelimitd_limit_hits_total{domain="d",limit="new",result="denied",rule="e"} 1000
ratelimitd_limit_hits_total{domain="d",limit="new",result="denied",rule="k"} 0
ratelimitd_limit_hits_total{domain="d",limit="new",result="unenforced",rule="e"} 0
ratelimitd_limit_hits_total{domain="d",limit="new",result="unenforced",rule="k"} 1000
ratelimitd_limit_hits_total{domain="d",limit="new",result="warned",rule="e"} 0
ratelimitd_limit_hits_total{domain="d",limit="new",result="warned",rule="k"} 0
ratelimitd_limit_hits_total{domain="d",limit="now",result="denied",rule="e"} 0
ratelimitd_limit_hits_total{domain="d",limit="now",result="denied",rule="k"} 0
ratelimitd_limit_hits_total{domain="d",limit="now",result="unenforced",rule="e"} 0
ratelimitd_limit_hits_total{domain="d",limit="now",result="unenforced",rule="k"} 0
ratelimitd_limit_hits_total{domain="d",limit="now",result="warned",rule="e"} 0
ratelimitd_limit_hits_total{domain="d",limit="now",result="warned",rule="k"} 0
`), "ratelimitd_limit_hits_total"); err != nil {
		t.Error(err)
	}
}

// The number of each limit is a metric. Names that are equal have one series.
func TestLimitsInMetrics(t *testing.T) {
	f := newMeasured(t, 2, listNode("k", []descriptor.Limit{fixedLimit("now", 2), fixedLimit("new", 10, hourly)}), inFlight("jobs", 7),
		perMinute("half", "", 30, limitOf(descriptor.Limit{Requests: 30, Window: descriptor.Window{Unit: descriptor.Second, Multiplier: 30}})), perMinute("no-room", "", 1))
	if err := testutil.GatherAndCompare(f.registry, strings.NewReader(`# HELP ratelimitd_rule_limit Hits that a limit allows per window, without overrides.
# TYPE ratelimitd_rule_limit gauge
ratelimitd_rule_limit{domain="d",limit="",rule="half",window="30 seconds"} 30
ratelimitd_rule_limit{domain="d",limit="",rule="jobs",window=""} 7
ratelimitd_rule_limit{domain="d",limit="new",rule="k",window="hour"} 10
ratelimitd_rule_limit{domain="d",limit="now",rule="k",window="minute"} 2
`), "ratelimitd_rule_limit"); err != nil {
		t.Error(err)
	}
}
