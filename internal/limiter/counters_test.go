package limiter_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/backend/memory"
	"github.com/ratelimitd/ratelimitd/internal/backend/overlimit"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
	"github.com/ratelimitd/ratelimitd/internal/testkit/backendtest"
)

// state is the expected state of a counter.
type state struct {
	Key       string
	Used      int64
	Remaining uint64
	Wait      time.Duration
	Reset     time.Duration
	Cached    bool
}

func states(c limiter.Counters) []state {
	var all []state
	for _, k := range c.List {
		all = append(all, state{k.Key, k.Used, k.Remaining, k.Wait, k.Reset, k.Cached})
	}
	return all
}

func (f *fixture) peek(pairs ...string) limiter.Counters {
	f.t.Helper()
	c, err := f.Peek(context.Background(), f.now, "d", &limiter.Descriptor{Entries: entries(pairs...)})
	if err != nil {
		f.t.Fatal(err)
	}
	return c
}

func (f *fixture) reset(pairs ...string) limiter.Counters {
	f.t.Helper()
	c, err := f.Limiter.Reset(context.Background(), f.now, "d", &limiter.Descriptor{Entries: entries(pairs...)})
	if err != nil {
		f.t.Fatal(err)
	}
	return c
}

// For every algorithm, a peek reports the same wait as a request gets, and changes nothing.
func TestPeekAgreesWithDecisions(t *testing.T) {
	for name, l := range backendtest.EveryAlgorithm(7) {
		t.Run(name, func(t *testing.T) {
			node := func() descriptor.NodeSpec {
				return descriptor.NodeSpec{Key: "k", Rule: &descriptor.Rule{Limits: []descriptor.Limit{*l}}}
			}
			peeked, alone := newFixture(t, limiter.Settings{}, node()), newFixture(t, limiter.Settings{}, node())
			capacity := int64(l.Capacity())
			for used := range capacity + 2 {
				c := peeked.peek("k=v").List[0]
				if want := min(used, capacity); used <= capacity && (c.Used != want || int64(c.Remaining) != capacity-want) {
					t.Fatalf("after %d hits: %+v", used, c)
				}
				got, want := peeked.ask(1, "k=v"), alone.ask(1, "k=v")
				if diff := cmp.Diff(want, got, anyRule); diff != "" {
					t.Fatalf("hit %d is answered otherwise when somebody peeks (-alone +peeked):\n%s", used, diff)
				}
				if c.Wait != got.RetryAfter || (c.Wait == 0) != (used < capacity) {
					t.Fatalf("after %d hits: Peek says wait %s, a request gets %s", used, c.Wait, got.RetryAfter)
				}
			}
			if before := peeked.reset("k=v").List[0]; before.Used < capacity || before.Remaining != 0 {
				t.Errorf("the reset answers with %+v, want what was there before", before)
			}
			if c := peeked.peek("k=v").List[0]; c.Used != 0 || c.Wait != 0 || int64(c.Remaining) != capacity {
				t.Errorf("after the reset: %+v", c)
			}
		})
	}
}

func TestPeekAndResetOfSeveralLimits(t *testing.T) {
	two := descriptor.NodeSpec{Key: "k", Rule: &descriptor.Rule{RuleSettings: descriptor.RuleSettings{Shadow: true}, Limits: []descriptor.Limit{
		{Name: "short", Requests: 2, Window: descriptor.Window{Unit: descriptor.Minute}},
		{Name: "long", Requests: 10, Window: descriptor.Window{Unit: descriptor.Hour}},
	}}}
	f := newFixture(t, limiter.Settings{}, two, descriptor.NodeSpec{Key: "free", Rule: &descriptor.Rule{Unlimited: true}})
	for range 2 {
		f.ask(1, "k=v")
	}
	f.ask(1, "k=other")
	want := []state{
		{Key: "d|k=v|f60", Used: 2, Wait: 50 * time.Second, Reset: 50 * time.Second},
		{Key: "d|k=v|f3600", Used: 2, Remaining: 8, Reset: 60*time.Minute - 10*time.Second},
	}
	if diff := cmp.Diff(want, states(f.peek("k=v"))); diff != "" {
		t.Errorf("peek (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(want, states(f.reset("k=v"))); diff != "" {
		t.Errorf("reset (-want +got):\n%s", diff)
	}
	want[0].Used, want[0].Remaining, want[0].Wait, want[1].Used, want[1].Remaining = 0, 2, 0, 0, 10
	if diff := cmp.Diff(want, states(f.peek("k=v")), cmpopts.IgnoreFields(state{}, "Reset")); diff != "" {
		t.Errorf("after the reset (-want +got):\n%s", diff)
	}
	if c := f.peek("k=other"); c.List[0].Used != 1 {
		t.Errorf("another value was reset: %+v", c.List)
	}
	if c := f.reset("free=x"); c.Explanation.Rule == nil || len(c.List) != 0 {
		t.Errorf("unlimited: %+v", c)
	}
	if c := f.reset("nobody=x"); c.Explanation.Rule != nil || c.Explanation.Reason == "" || len(c.List) != 0 {
		t.Errorf("no rule: %+v", c)
	}
}

func TestPeekAndResetOfARequestLimit(t *testing.T) {
	f := newFixture(t, limiter.Settings{}, perMinute("k", "", 5))
	d := limiter.Descriptor{
		Entries: entries("k=v"), HasLimit: true,
		Limit: limiter.RequestLimit{Requests: 3, Unit: int32(descriptor.Second), Multiplier: 20},
	}
	for range 3 {
		f.decide(&limiter.Request{Domain: "d", Descriptors: []limiter.Descriptor{d}})
	}
	c, err := f.Limiter.Reset(t.Context(), f.now, "d", &d)
	if want := []state{{Key: "d|k=v|f20", Used: 3, Wait: 10 * time.Second, Reset: 10 * time.Second}}; err != nil || !c.FromRequest || cmp.Diff(want, states(c)) != "" {
		t.Errorf("%v\n%s", err, cmp.Diff(want, states(c)))
	}
	if c, err = f.Peek(t.Context(), f.now, "d", &d); err != nil || c.List[0].Used != 0 {
		t.Errorf("after the reset: %+v %v", c, err)
	}
	if c, err = f.Peek(t.Context(), f.now, "nobody", &d); err != nil || len(c.List) != 0 || c.FromRequest {
		t.Errorf("in a domain without rules: %+v %v", c, err)
	}
	d.Limit.Unit = 99
	if _, err = f.Peek(t.Context(), f.now, "d", &d); !errors.As(err, new(*limiter.InvalidError)) {
		t.Errorf("a unit that is none: %v", err)
	}
}

// A limit of zero never lets anything pass.
func TestPeekOfNever(t *testing.T) {
	f := newFixture(t, limiter.Settings{}, perMinute("k", "", 0))
	if c := f.peek("k=v").List[0]; c.Wait != backend.Never || c.Remaining != 0 {
		t.Errorf("%+v", c)
	}
}

func TestResetThroughTheOverLimitCache(t *testing.T) {
	f := newFixtureOn(t, overlimit.New(overlimit.Options{Store: memory.New(memory.Options{})}), limiter.Settings{}, perMinute("k", "", 1))
	for range 3 {
		f.ask(1, "k=v")
	}
	if c := f.peek("k=v").List[0]; !c.Cached || c.Used != 2 || c.Wait != 50*time.Second {
		t.Errorf("before the reset: %+v, want what the cache remembers", c)
	}
	f.reset("k=v")
	f.want(f.ask(1, "k=v"), limiter.OK, 0)
}

// A reset also clears the counts of on_error: local.
func TestResetOfLocalCounters(t *testing.T) {
	down := true
	f := newFallback(t, func(*backend.Take) bool { return down }, limiter.Settings{OnError: descriptor.OnErrorLocal},
		descriptor.DomainSpec{Children: []descriptor.NodeSpec{perMinute("k", "", 2)}})
	for range 3 {
		f.ask(1, "k=v")
	}
	if _, err := f.Peek(t.Context(), f.now, "d", &limiter.Descriptor{Entries: entries("k=v")}); !errors.Is(err, backend.ErrUnavailable) {
		t.Errorf("a peek while the backend is down: %v", err)
	}
	if _, err := f.Limiter.Reset(t.Context(), f.now, "d", &limiter.Descriptor{Entries: entries("k=v")}); !errors.Is(err, backend.ErrUnavailable) {
		t.Errorf("a reset while the backend is down: %v", err)
	}
	f.want(f.ask(1, "k=v"), limiter.OverLimit, 0)
	down = false
	f.reset("k=v")
	down = true
	f.want(f.ask(1, "k=v"), limiter.OK, 1)
}

func TestCountersWithoutRules(t *testing.T) {
	l := limiter.New(limiter.Options{Store: memory.New(memory.Options{})})
	if _, err := l.Peek(t.Context(), noon, "d", &limiter.Descriptor{}); !errors.Is(err, limiter.ErrNoRules) {
		t.Errorf("%v", err)
	}
}
