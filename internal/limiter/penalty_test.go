package limiter_test

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/ratelimitd/ratelimitd/internal/backend/memory"
	"github.com/ratelimitd/ratelimitd/internal/backend/overlimit"
	"github.com/ratelimitd/ratelimitd/internal/config/override"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
)

// penalty gives a rule's last limit a penalty.
func penalty(lasts time.Duration) func(*descriptor.Rule) {
	return func(r *descriptor.Rule) { r.Limits[len(r.Limits)-1].Penalty = descriptor.NewPenalty(lasts) }
}

// penalised checks a status that a penalty denies.
func (f *fixture) penalised(s limiter.Status, left time.Duration) {
	f.t.Helper()
	f.want(s, limiter.OverLimit, 0)
	if !s.Penalised || s.UntilReset() != left {
		f.t.Errorf("%+v, want a penalty for %s", s, left)
	}
}

// A customer that exceeds a limit is denied until the penalty ends, even if there is room. Requests during it neither
// prolong it nor count.
func TestPenalty(t *testing.T) {
	for _, admission := range []descriptor.Admission{descriptor.Independent, descriptor.AllOrNothing} {
		f := newFixture(t, limiter.Settings{Admission: admission}, perMinute("k", "", 2, penalty(10*time.Minute)))
		f.want(f.ask(2, "k=a"), limiter.OK, 0)
		f.penalised(f.ask(1, "k=a"), 10*time.Minute)
		f.want(f.ask(1, "k=b"), limiter.OK, 1)
		f.now = noon.Add(2 * time.Minute)
		f.penalised(f.ask(1, "k=a"), 8*time.Minute)
		f.penalised(f.ask(0, "k=a"), 8*time.Minute)
		f.now = noon.Add(10*time.Minute - time.Microsecond)
		f.penalised(f.ask(1, "k=a"), time.Second) // rounded up
		f.now = noon.Add(10 * time.Minute)
		f.want(f.ask(2, "k=a"), limiter.OK, 0)
		f.penalised(f.ask(1, "k=a"), 10*time.Minute)
	}
}

// A request that only another limit denies does not start a penalty. Hits that a penalty denies count nowhere.
func TestPenaltyBesideOtherLimits(t *testing.T) {
	f := newFixture(t, limiter.Settings{Admission: descriptor.AllOrNothing}, perMinute("small", "", 1),
		perMinute("large", "", 5, penalty(time.Hour)))
	both := func(small string) *limiter.Decision {
		return f.decide(request(1, "small="+small, "large=a"))
	}
	for i, want := range []limiter.Code{limiter.OK, limiter.OverLimit, limiter.OverLimit} {
		if d := both("x"); d.Code != want || d.Statuses[1].Penalised || d.Statuses[1].Remaining != 4 {
			t.Fatalf("request %d: %s, %+v", i+1, d.Code, d.Statuses)
		}
	}
	f.penalised(f.ask(5, "large=a"), time.Hour)
	f.now = noon.Add(time.Minute)
	if d := both("y"); d.Code != limiter.OverLimit || !d.Statuses[1].Penalised || d.Statuses[0].Code != limiter.OK {
		t.Fatalf("during the penalty: %s, %+v", d.Code, d.Statuses)
	}
	if left := f.left("small=y"); left != 1 {
		t.Errorf("%d left of the other limit, want 1", left)
	}
}

// Of a list, a penalty of one limit denies the request, and none of the limits counts it.
func TestPenaltyInAList(t *testing.T) {
	limits := []descriptor.Limit{fixedLimit("minute", 2), fixedLimit("hour", 3, hourly)}
	f := newFixture(t, limiter.Settings{}, listNode("k", limits, penalty(2*time.Hour)))
	f.want(f.ask(2, "k=a"), limiter.OK, 0)
	if s := f.ask(1, "k=a"); s.Code != limiter.OverLimit || s.Penalised || s.Limit.Name != "minute" {
		t.Fatalf("over the limit without a penalty: %+v", s)
	}
	f.now = noon.Add(time.Minute)
	f.penalised(f.ask(2, "k=a"), 2*time.Hour)
	f.now = noon.Add(3 * time.Minute)
	f.penalised(f.ask(1, "k=a"), 2*time.Hour-2*time.Minute)
	if used := f.used("k=a"); used[0] != 0 {
		t.Errorf("%d used of the limit a minute, want 0", used[0])
	}
}

// Peeks, refunds and looks do not start a penalty. A refund does not end one, but a reset does.
func TestPenaltyPeekRefundReset(t *testing.T) {
	f := newFixture(t, limiter.Settings{}, perMinute("k", "", 2, penalty(time.Hour)))
	f.want(f.ask(2, "k=a"), limiter.OK, 0)
	f.want(f.ask(0, "k=a"), limiter.OK, 0)
	look := request(1, "k=a")
	look.Purpose = limiter.Look
	if d := f.decide(look); d.Code != limiter.OverLimit || d.Statuses[0].Penalised {
		t.Errorf("a look: %+v", d.Statuses)
	}
	if c := f.peek("k=a").List[0]; c.Penalty != 0 || c.Wait != 50*time.Second {
		t.Errorf("before: %+v", c)
	}
	f.penalised(f.ask(1, "k=a"), time.Hour)
	f.want(f.ask(-2, "k=a"), limiter.OK, 1) // the denied hit has counted
	f.penalised(f.ask(1, "k=a"), time.Hour)
	if d := f.decide(look); !d.Statuses[0].Penalised {
		t.Errorf("a look during the penalty: %+v", d.Statuses)
	}
	if c := f.peek("k=a").List[0]; c.Penalty != time.Hour || c.Wait != time.Hour || c.Remaining != 0 || c.Used != 1 {
		t.Errorf("during the penalty: %+v", c)
	}
	if c := f.reset("k=a").List[0]; c.Penalty != time.Hour {
		t.Errorf("what the reset cleared: %+v", c)
	}
	f.want(f.ask(1, "k=a"), limiter.OK, 1)
}

// Where the limit is not enforced, nothing is denied, and a penalty that starts there is not enforced later.
func TestPenaltyInShadow(t *testing.T) {
	node := func(change ...func(*descriptor.Rule)) descriptor.NodeSpec {
		return perMinute("k", "", 1, append(change, penalty(time.Hour))...)
	}
	for name, c := range map[string]struct {
		settings limiter.Settings
		change   []func(*descriptor.Rule)
	}{
		"server": {limiter.Settings{Shadow: true}, nil},
		"rule":   {limiter.Settings{}, []func(*descriptor.Rule){shadow}},
		"limit":  {limiter.Settings{}, []func(*descriptor.Rule){func(r *descriptor.Rule) { inShadow(&r.Limits[0]) }}},
		"nobody": {limiter.Settings{}, []func(*descriptor.Rule){func(r *descriptor.Rule) { enforcedFor(0)(&r.Limits[0]) }}},
	} {
		store := memory.New(memory.Options{})
		f := newFixtureOn(t, store, c.settings, node(c.change...))
		for i := range 3 {
			if d := f.decide(request(1, "k=a")); d.Code != limiter.OK {
				t.Errorf("%s, request %d: %+v", name, i+1, d.Statuses)
			}
		}
		if c := f.peek("k=a").List[0]; c.Penalty != time.Hour {
			t.Errorf("%s: %+v", name, c)
		}
		enforced := newFixtureOn(t, store, limiter.Settings{}, node())
		enforced.now = noon.Add(time.Minute)
		enforced.want(enforced.ask(1, "k=a"), limiter.OK, 0)
	}
}

// An override's number does not end a penalty. An override that lifts the limit skips it, and a block starts none.
func TestPenaltyAndOverrides(t *testing.T) {
	f := newFixture(t, limiter.Settings{}, perMinute("k", "", 1, penalty(time.Hour), overridable))
	f.penalised(f.ask(2, "k=a"), time.Hour)
	f.override("d.k", "", override.Numbers{Kind: override.Replace, Requests: 100}, "k=a")
	f.penalised(f.ask(1, "k=a"), time.Hour)
	f.reset("k=a")
	f.want(f.ask(60, "k=a"), limiter.OK, 40)
	f.penalised(f.ask(50, "k=a"), time.Hour)
	f.override("d.k", "", override.Numbers{Kind: override.Unlimited}, "k=a")
	if s := f.ask(1, "k=a"); s.Code != limiter.OK {
		t.Errorf("unlimited: %+v", s)
	}
	f.override("d.k", "", override.Numbers{Kind: override.Blocked}, "k=b")
	if s := f.ask(1, "k=b"); s.Code != limiter.OverLimit || s.Penalised {
		t.Errorf("blocked: %+v", s)
	}
	f.override("d.k", "", override.Numbers{Kind: override.Replace, Requests: 5}, "k=b")
	f.want(f.ask(1, "k=b"), limiter.OK, 4)
}

// A shorter penalty holds from the next request on; a rule without one has none.
func TestPenaltyOfAChangedRule(t *testing.T) {
	store := overlimit.New(overlimit.Options{Store: memory.New(memory.Options{})})
	with := func(lasts ...time.Duration) *fixture {
		var change []func(*descriptor.Rule)
		for _, l := range lasts {
			change = append(change, penalty(l))
		}
		f := newFixtureOn(t, store, limiter.Settings{}, perMinute("k", "", 1, change...))
		f.now = noon.Add(time.Minute)
		return f
	}
	f := with(time.Hour)
	f.now = noon
	f.penalised(f.ask(2, "k=a"), time.Hour)
	shorter := with(10 * time.Minute)
	shorter.penalised(shorter.ask(1, "k=a"), 10*time.Minute)
	shorter.now = noon.Add(2 * time.Minute)
	shorter.penalised(shorter.ask(1, "k=a"), 9*time.Minute)
	none := with()
	none.want(none.ask(1, "k=a"), limiter.OK, 0)
	longer := with(24 * time.Hour)
	longer.penalised(longer.ask(1, "k=a"), 10*time.Minute)
}

// A limit that does not apply now has no penalty either.
func TestPenaltyOfInactiveLimit(t *testing.T) {
	f := newFixture(t, limiter.Settings{}, perMinute("k", "", 1, penalty(24*time.Hour), atNight))
	f.now = night
	f.penalised(f.ask(2, "k=a"), 8*time.Hour) // then the limit no longer applies
	if c := f.peek("k=a").List[0]; c.Penalty != 24*time.Hour || c.Wait != 8*time.Hour {
		t.Errorf("at night: %+v", c)
	}
	f.now = night.Add(9 * time.Hour)
	if s := f.ask(1, "k=a"); s.Code != limiter.OK || s.Limited {
		t.Errorf("in the morning: %+v", s)
	}
	if c := f.peek("k=a").List[0]; c.Penalty != 0 || c.Wait != 0 {
		t.Errorf("in the morning: %+v", c)
	}
	f.now = night.Add(23*time.Hour + 59*time.Minute)
	if s := f.ask(1, "k=a"); s.Limited {
		t.Errorf("in the evening: %+v", s)
	}
}

// While the store does not answer, on_error decides. Local counts start local penalties.
func TestPenaltyWithoutTheStore(t *testing.T) {
	for choice, want := range map[descriptor.OnError][2]limiter.Code{
		descriptor.OnErrorAllow: {limiter.OK, limiter.OK},
		descriptor.OnErrorDeny:  {limiter.OverLimit, limiter.OverLimit},
		descriptor.OnErrorLocal: {limiter.OK, limiter.OverLimit},
	} {
		f := newFallback(t, all, limiter.Settings{}, descriptor.DomainSpec{
			Name: "d", Children: []descriptor.NodeSpec{perMinute("k", "", 1, penalty(time.Hour), onError(choice))},
		})
		for i, code := range want {
			s := f.ask(1, "k=a")
			if s.Code != code || s.Degraded != choice || s.Penalised != (choice == descriptor.OnErrorLocal && i == 1) {
				t.Errorf("on_error %s, request %d: %+v", descriptor.OnErrorNames[choice], i+1, s)
			}
		}
	}
}

// Operators see how many penalties have started. All hits that a penalty denies are over the limit.
func TestPenaltyMetrics(t *testing.T) {
	m := newMeasured(t, 100, perMinute("k", "", 2, penalty(time.Hour)), perMinute("other", "", 2))
	for range 5 {
		m.ask("d", 1, "k=a")
		m.ask("d", 1, "other=a")
	}
	m.ask("d", 3, "k=b")
	m.want(2, "ratelimitd_rule_penalties_total", "rule=k")
	m.want(3+3, "ratelimitd_rule_over_limit_hits_total", "rule=k")
	if _, n := m.value("ratelimitd_rule_penalties_total", "rule=other"); n != 0 {
		t.Errorf("a rule without a penalty has %d series", n)
	}
}

func TestPenaltyInMetadata(t *testing.T) {
	f := newFixture(t, limiter.Settings{Explain: true, Headers: descriptor.HeadersRetryAfter}, perMinute("k", "", 1, penalty(time.Hour)))
	for i, want := range []any{nil, true, true} {
		d := f.decide(request(1, "k=a"))
		if got := d.Metadata["decision"].(map[string]any)["penalty"]; got != want {
			t.Errorf("request %d: penalty %v, want %v", i+1, got, want)
		}
		if i > 0 && (len(d.Headers) != 1 || d.Headers[0].Value != "3600") {
			t.Errorf("request %d: %v", i+1, d.Headers)
		}
	}
}

// The denial cache changes no decision: random requests to a limit with a penalty and one without.
func TestPenaltyWithCache(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		s := limiter.Settings{Admission: rapid.SampledFrom([]descriptor.Admission{descriptor.Independent, descriptor.AllOrNothing}).Draw(rt, "admission")}
		lasts := rapid.SampledFrom([]time.Duration{5 * time.Second, 30 * time.Second, 10 * time.Minute}).Draw(rt, "penalty")
		nodes := []descriptor.NodeSpec{perMinute("k", "", 3, penalty(lasts)), perMinute("other", "", 4)}
		plain := newFixture(t, s, nodes...)
		cached := newFixtureOn(t, overlimit.New(overlimit.Options{Store: memory.New(memory.Options{})}), s, nodes...)
		for step := range 60 {
			plain.now = plain.now.Add(rapid.SampledFrom([]time.Duration{0, time.Second, 7 * time.Second, 25 * time.Second}).Draw(rt, "pause"))
			cached.now = plain.now
			req := request(rapid.Uint32Range(1, 4).Draw(rt, "hits"), rapid.SampledFrom([][]string{{"k=a"}, {"k=b"}, {"k=a", "other=a"}, {"other=a", "k=b", "k=a"}}).Draw(rt, "pairs")...)
			want, got := plain.decide(req), cached.decide(req)
			for i := range want.Statuses {
				w, g := &want.Statuses[i], &got.Statuses[i]
				if w.Code != g.Code || w.Penalised != g.Penalised || w.RetryAfter != g.RetryAfter || w.Remaining != g.Remaining {
					rt.Fatalf("step %d, descriptor %d:\n want %+v\n got  %+v", step, i, w, g)
				}
			}
		}
	})
}

// A penalty also starts if the denial cache already has a denial by another limit.
func TestPenaltyBeginsBesideAKnownDenial(t *testing.T) {
	node := listNode("k", []descriptor.Limit{fixedLimit("minute", 5), fixedLimit("hour", 20, hourly)}, penalty(24*time.Hour))
	f := newFixtureOn(t, overlimit.New(overlimit.Options{Store: memory.New(memory.Options{})}), limiter.Settings{}, node)
	f.want(f.ask(5, "k=a"), limiter.OK, 0)
	f.want(f.ask(1, "k=a"), limiter.OverLimit, 0)
	f.want(f.ask(30, "k=a"), limiter.OverLimit, 0) // more than either limit
	f.now = noon.Add(time.Minute)
	f.penalised(f.ask(1, "k=a"), 24*time.Hour-time.Minute)
}

// The same holds if the limits are of two descriptors, and a request stops at the first denial.
func TestPenaltyBeginsWhenARequestStops(t *testing.T) {
	f := newFixtureOn(t, overlimit.New(overlimit.Options{Store: memory.New(memory.Options{})}), limiter.Settings{StopWhenOver: true},
		perMinute("l", "", 5), perMinute("k", "", 20, penalty(24*time.Hour)))
	f.want(f.ask(5, "l=a"), limiter.OK, 0)
	f.want(f.ask(1, "l=a"), limiter.OverLimit, 0)
	f.penalised(f.decide(request(30, "l=a", "k=a")).Statuses[1], 24*time.Hour)
	f.now = noon.Add(time.Minute)
	f.penalised(f.ask(1, "k=a"), 24*time.Hour-time.Minute)
}
