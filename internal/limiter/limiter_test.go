package limiter_test

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/backend/memory"
	"github.com/ratelimitd/ratelimitd/internal/backend/overlimit"
	"github.com/ratelimitd/ratelimitd/internal/config/override"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
	"github.com/ratelimitd/ratelimitd/internal/testkit/racetest"
)

var noon = time.Date(2026, 3, 10, 12, 0, 10, 0, time.UTC)

// perMinute is a node with a rule of this number of requests a minute.
func perMinute(key, value string, requests uint64, change ...func(*descriptor.Rule)) descriptor.NodeSpec {
	r := &descriptor.Rule{Limits: []descriptor.Limit{{Requests: requests, Window: descriptor.Window{Unit: descriptor.Minute}}}}
	for _, c := range change {
		c(r)
	}
	r.Limits[0].Name = r.Name
	return descriptor.NodeSpec{Key: key, Value: value, Rule: r}
}

type fixture struct {
	*limiter.Limiter
	t        *testing.T
	now      time.Time
	registry *prometheus.Registry // registry of newFallback

	overrides *override.Set
}

func newFixture(t *testing.T, s limiter.Settings, nodes ...descriptor.NodeSpec) *fixture {
	t.Helper()
	return newFixtureOn(t, memory.New(memory.Options{}), s, nodes...)
}

func newFixtureOn(t *testing.T, b backend.Store, s limiter.Settings, nodes ...descriptor.NodeSpec) *fixture {
	t.Helper()
	tree, err := descriptor.Compile([]descriptor.DomainSpec{{Name: "d", Children: nodes}}, descriptor.Options{})
	if err != nil {
		t.Fatal(err)
	}
	l := limiter.New(limiter.Options{Store: b})
	l.Swap(tree, s)
	return &fixture{Limiter: l, t: t, now: noon, overrides: &override.Set{}}
}

func (f *fixture) decide(req *limiter.Request) *limiter.Decision {
	f.t.Helper()
	d := &limiter.Decision{}
	if err := f.Decide(context.Background(), f.now, req, d); err != nil {
		f.t.Fatal(err)
	}
	return d
}

func entries(pairs ...string) []descriptor.Entry {
	var out []descriptor.Entry
	for _, p := range pairs {
		k, v, _ := strings.Cut(p, "=")
		out = append(out, descriptor.Entry{Key: k, Value: v})
	}
	return out
}

// ask decides one descriptor that adds hits; 0 peeks, a negative number refunds.
func (f *fixture) ask(hits int64, pairs ...string) limiter.Status {
	f.t.Helper()
	d := limiter.Descriptor{Entries: entries(pairs...), HasHits: true, Hits: uint64(max(hits, -hits)), Refund: hits < 0}
	return f.decide(&limiter.Request{Domain: "d", Descriptors: []limiter.Descriptor{d}}).Statuses[0]
}

func (f *fixture) want(s limiter.Status, code limiter.Code, remaining uint64) {
	f.t.Helper()
	if s.Code != code || s.Remaining != remaining {
		f.t.Errorf("got %s with %d left, want %s with %d", s.Code, s.Remaining, code, remaining)
	}
}

func TestRefundGivesBackAndNeverMore(t *testing.T) {
	f := newFixture(t, limiter.Settings{}, perMinute("k", "", 3))
	f.want(f.ask(2, "k=a"), limiter.OK, 1)
	f.want(f.ask(-1, "k=a"), limiter.OK, 2)
	f.want(f.ask(-2, "k=a"), limiter.OK, 2) // more than is used: dropped
	f.want(f.ask(-100, "k=a"), limiter.OK, 2)
	f.want(f.ask(-1, "k=a"), limiter.OK, 3)
	f.want(f.ask(3, "k=a"), limiter.OK, 0)
	f.want(f.ask(1, "k=a"), limiter.OverLimit, 0)
	f.want(f.ask(-2, "k=a"), limiter.OK, 1) // the denied hit counted, as in envoyproxy/ratelimit
}

func TestHitsNearTheEndOfTheirRangeAreClamped(t *testing.T) {
	f := newFixture(t, limiter.Settings{}, perMinute("k", "", 3))
	for _, hits := range []uint64{1 << 32, 1 << 63, math.MaxUint64} {
		d := limiter.Descriptor{Entries: entries("k=a"), HasHits: true, Hits: hits}
		got := f.decide(&limiter.Request{Domain: "d", Descriptors: []limiter.Descriptor{d}})
		f.want(got.Statuses[0], limiter.OverLimit, 0)
	}
	f.want(f.ask(0, "k=b"), limiter.OK, 3)
	f.now = f.now.Add(time.Minute)
	f.want(f.ask(1, "k=a"), limiter.OK, 2)
}

func TestInvalidRequests(t *testing.T) {
	f := newFixture(t, limiter.Settings{}, perMinute("k", "", 3))
	one := []limiter.Descriptor{{Entries: entries("k=a")}}
	for name, c := range map[string]struct {
		req  limiter.Request
		want string
	}{
		"no domain":      {limiter.Request{Descriptors: one}, "domain must not be empty"},
		"no descriptors": {limiter.Request{Domain: "d"}, "descriptor list must not be empty"},
		"unit 0":         {limiter.Request{Domain: "d", Descriptors: []limiter.Descriptor{one[0], {HasLimit: true}}}, "descriptors[1].limit.unit is 0"},
		"unit 8":         {limiter.Request{Domain: "d", Descriptors: []limiter.Descriptor{{HasLimit: true, Limit: limiter.RequestLimit{Unit: 8}}}}, "limit.unit is 8"},
		"unit 257":       {limiter.Request{Domain: "d", Descriptors: []limiter.Descriptor{{HasLimit: true, Limit: limiter.RequestLimit{Unit: 257}}}}, "limit.unit is 257"},
		"unit -1":        {limiter.Request{Domain: "d", Descriptors: []limiter.Descriptor{{HasLimit: true, Limit: limiter.RequestLimit{Unit: -1}}}}, "limit.unit is -1"},
	} {
		err := f.Decide(context.Background(), noon, &c.req, &limiter.Decision{})
		if invalid, ok := errors.AsType[*limiter.InvalidError](err); !ok || invalid.Field == "" || !strings.Contains(invalid.Message, c.want) {
			t.Errorf("%s: got %v, want an InvalidError with its field and %q", name, err, c.want)
		}
	}
	none := limiter.New(limiter.Options{Store: memory.New(memory.Options{})})
	if err := none.Decide(context.Background(), noon, &limiter.Request{Domain: "d", Descriptors: one}, &limiter.Decision{}); !errors.Is(err, limiter.ErrNoRules) {
		t.Errorf("without rules: got %v, want ErrNoRules", err)
	}
}

func TestWhatMatchesNothingPasses(t *testing.T) {
	f := newFixture(t, limiter.Settings{}, perMinute("k", "", 0))
	want := []limiter.Status{{Code: limiter.OK}}
	for name, req := range map[string]*limiter.Request{
		"unknown domain": {Domain: "x", Descriptors: []limiter.Descriptor{{Entries: entries("k=a"), HasLimit: true, Limit: limiter.RequestLimit{Unit: 1}}}},
		"no entries":     {Domain: "d", Descriptors: []limiter.Descriptor{{}}},
		"empty key":      {Domain: "d", Descriptors: []limiter.Descriptor{{Entries: entries("=a")}}},
		"too deep":       {Domain: "d", Descriptors: []limiter.Descriptor{{Entries: entries("k=a", "k=a")}}},
	} {
		d := f.decide(req)
		if d.Code != limiter.OK || !cmp.Equal(d.Statuses, want, anyRule) {
			t.Errorf("%s: got %s %+v", name, d.Code, d.Statuses)
		}
	}
}

// If the denial cache has a denial of one descriptor, the other descriptors do not count: nothing is added to them, and
// they are not over.
func TestStopWhenOverAndTheOverLimitCache(t *testing.T) {
	f := newFixtureOn(t, overlimit.New(overlimit.Options{Store: memory.New(memory.Options{})}), limiter.Settings{StopWhenOver: true},
		perMinute("a", "", 8), perMinute("b", "", 0))
	f.want(f.ask(1, "b=x"), limiter.OverLimit, 0)
	d := f.decide(&limiter.Request{Domain: "d", Hits: 100, Descriptors: []limiter.Descriptor{{Entries: entries("a=x")}, {Entries: entries("b=x")}}})
	f.want(d.Statuses[0], limiter.OK, 8)
	f.want(d.Statuses[1], limiter.OverLimit, 0)
	f.want(f.ask(1, "a=x"), limiter.OK, 7)
}

// The denial cache must not change an answer: not to a peek, not after a refund, not under another limit.
func TestOverLimitCacheIsInvisible(t *testing.T) {
	counting := &countingBackend{Store: memory.New(memory.Options{})}
	cached := newFixtureOn(t, overlimit.New(overlimit.Options{Store: counting}), limiter.Settings{}, perMinute("k", "", 3))
	plain := newFixture(t, limiter.Settings{}, perMinute("k", "", 3))
	limited := func(f *fixture, requests uint32) limiter.Status {
		d := limiter.Descriptor{Entries: entries("k=a"), HasLimit: true, Limit: limiter.RequestLimit{Requests: requests, Unit: int32(descriptor.Minute)}}
		return f.decide(&limiter.Request{Domain: "d", Descriptors: []limiter.Descriptor{d}}).Statuses[0]
	}
	steps := []func(f *fixture) limiter.Status{
		func(f *fixture) limiter.Status { return f.ask(3, "k=a") },
		func(f *fixture) limiter.Status { return f.ask(0, "k=a") },
		func(f *fixture) limiter.Status { return f.ask(1, "k=a") }, // denied, and now in the cache
		func(f *fixture) limiter.Status { return f.ask(0, "k=a") },
		func(f *fixture) limiter.Status { return limited(f, 100) },
		func(f *fixture) limiter.Status { return limited(f, 2) },
		func(f *fixture) limiter.Status { return f.ask(1, "k=a") },
		func(f *fixture) limiter.Status { return f.ask(-20, "k=a") },
		func(f *fixture) limiter.Status { return f.ask(1, "k=a") },
		func(f *fixture) limiter.Status { return f.ask(9, "k=a") },
		func(f *fixture) limiter.Status { f.now = f.now.Add(50 * time.Second); return f.ask(1, "k=a") },
	}
	for i, step := range steps {
		if got, want := step(cached), step(plain); !cmp.Equal(got, want, anyRule) {
			t.Errorf("step %d: got %+v, without the cache %+v", i, got, want)
		}
	}
	cached.ask(9, "k=a")
	before := counting.calls
	for range 10 {
		cached.want(cached.ask(1, "k=a"), limiter.OverLimit, 0)
	}
	if counting.calls != before {
		t.Errorf("the backend was asked %d times about what the cache knows", counting.calls-before)
	}
}

type countingBackend struct {
	backend.Store
	calls int
}

// Start implements backend.Store.
func (b *countingBackend) Start(ctx context.Context, now time.Time, _ *backend.Batch, r *backend.Request, _ func(error)) (settled bool, err error) {
	return true, b.take(ctx, now, r)
}

func (b *countingBackend) take(ctx context.Context, now time.Time, r *backend.Request) error {
	b.calls++
	return backend.Await(ctx, b.Store, now, r)
}

func TestShadowRuleNeverShowsInHeaders(t *testing.T) {
	s := limiter.Settings{Headers: descriptor.HeadersReference, HeaderNames: limiter.HeaderNames{Limit: "L", Remaining: "R", Reset: "S"}}
	f := newFixture(t, s, perMinute("shadow", "", 1, func(r *descriptor.Rule) { r.Shadow = true }), perMinute("k", "", 5))
	for i, want := range []string{"4", "3", "2"} {
		d := f.decide(&limiter.Request{Domain: "d", Descriptors: []limiter.Descriptor{{Entries: entries("shadow=x")}, {Entries: entries("k=x")}}})
		if diff := cmp.Diff([]limiter.Header{{Key: "L", Value: "5"}, {Key: "R", Value: want}, {Key: "S", Value: "50"}}, d.Headers); diff != "" {
			t.Errorf("request %d: %s", i, diff)
		}
	}
	only := f.decide(&limiter.Request{Domain: "d", Descriptors: []limiter.Descriptor{{Entries: entries("shadow=x")}}})
	if len(only.Headers) != 0 {
		t.Errorf("headers about a shadow rule: %v", only.Headers)
	}
}

// A rule's metadata is merged into answers and must come out of every later answer as the rule file has it.
func TestMetadataOfRulesStaysAsLoaded(t *testing.T) {
	meta := func(m map[string]any) func(*descriptor.Rule) {
		return func(r *descriptor.Rule) { r.Metadata, r.DetailedMetric = m, true }
	}
	f := newFixture(t, limiter.Settings{Metadata: true},
		perMinute("a", "", 9, meta(map[string]any{"owner": "a", "nested": map[string]any{"x": 1}})),
		perMinute("b", "", 9, meta(map[string]any{"owner": "b", "nested": map[string]any{"x": 2, "y": 3}, "more": true})))
	ask := func(keys ...string) any {
		req := &limiter.Request{Domain: "d"}
		for _, k := range keys {
			req.Descriptors = append(req.Descriptors, limiter.Descriptor{Entries: entries(k + "=1")})
		}
		return f.decide(req).Metadata["metadata"]
	}
	both := map[string]any{"owner": "a", "nested": map[string]any{"x": 1, "y": 3}, "more": true}
	for range 2 {
		if diff := cmp.Diff(any(both), ask("a", "b")); diff != "" {
			t.Error(diff)
		}
		if diff := cmp.Diff(any(map[string]any{"owner": "a", "nested": map[string]any{"x": 1}}), ask("a")); diff != "" {
			t.Error(diff)
		}
	}
}

func TestFullMemoryFailsNewCountersAndKeepsOldOnes(t *testing.T) {
	store := memory.New(memory.Options{MaxCounters: 2, Shared: -1})
	f := newFixtureOn(t, store, limiter.Settings{}, perMinute("k", "", 1))
	f.want(f.ask(1, "k=a"), limiter.OK, 0)
	f.want(f.ask(1, "k=b"), limiter.OK, 0)
	d := &limiter.Decision{}
	req := &limiter.Request{Domain: "d", Descriptors: []limiter.Descriptor{{Entries: entries("k=c")}}}
	if err := f.Decide(context.Background(), f.now, req, d); !errors.Is(err, backend.ErrFull) {
		t.Fatalf("third counter of two: %v, want ErrFull", err)
	}
	f.want(f.ask(1, "k=a"), limiter.OverLimit, 0)
	f.now = f.now.Add(time.Minute)
	store.Sweep(f.now) // removes the others, which have expired
	f.want(f.ask(1, "k=c"), limiter.OK, 0)
}

// When memory is full, new customers are still held to the rule's limit, and a request's own limit holds too.
func TestFullMemoryStillLimitsNewCallers(t *testing.T) {
	f := newFixtureOn(t, memory.New(memory.Options{MaxCounters: 2}), limiter.Settings{}, perMinute("k", "", 1), perMinute("l", "", 2))
	f.want(f.ask(1, "k=a"), limiter.OK, 0)
	f.want(f.ask(1, "k=b"), limiter.OK, 0)
	f.want(f.ask(1, "k=c"), limiter.OK, 0)
	f.want(f.ask(1, "k=c"), limiter.OverLimit, 0)
	f.want(f.ask(1, "l=c"), limiter.OK, 1)
	for i := range 4 {
		d := f.decide(&limiter.Request{Domain: "d", Descriptors: []limiter.Descriptor{{
			Entries: entries("k=new"), HasLimit: true, Limit: limiter.RequestLimit{Requests: 3, Unit: int32(descriptor.Hour)},
		}}})
		if (d.Code == limiter.OK) != (i < 3) {
			t.Errorf("request %d with a limit of 3 of its own: %v", i, d.Code)
		}
	}
	if c, err := f.Peek(context.Background(), f.now, "d", &limiter.Descriptor{Entries: entries("k=c")}); err != nil || c.List[0].Used != 2 {
		t.Errorf("a look at a shared counter: %+v %v", c.List, err)
	}
}

func TestDecideDoesNotAllocate(t *testing.T) {
	f := newFixture(t, limiter.Settings{}, perMinute("a", "", 1000), perMinute("b", "x*", 1000))
	req := &limiter.Request{Domain: "d", Descriptors: []limiter.Descriptor{{Entries: entries("a=1")}, {Entries: entries("b=xyz")}}}
	d := &limiter.Decision{}
	if n := testing.AllocsPerRun(100, func() {
		if err := f.Decide(context.Background(), noon, req, d); err != nil {
			t.Fatal(err)
		}
	}); n > 0 && !racetest.On {
		t.Errorf("%v allocations for a decision on known counters, want none", n)
	}
}

func BenchmarkDecide(b *testing.B) {
	tree, err := descriptor.Compile([]descriptor.DomainSpec{{Name: "d", Children: []descriptor.NodeSpec{perMinute("to_number", "", math.MaxUint32)}}}, descriptor.Options{})
	if err != nil {
		b.Fatal(err)
	}
	l := limiter.New(limiter.Options{Store: memory.New(memory.Options{})})
	l.Swap(tree, limiter.Settings{})
	reqs := make([]*limiter.Request, 1<<16)
	for i := range reqs {
		reqs[i] = &limiter.Request{Domain: "d", Descriptors: []limiter.Descriptor{{Entries: []descriptor.Entry{
			{Key: "to_number", Value: "206555" + string(rune('0'+i%10)) + string(rune('A'+i/10%26)) + string(rune('A'+i/260%26)) + string(rune('A'+i/6760))},
		}}}}
	}
	d := &limiter.Decision{}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if err := l.Decide(context.Background(), noon, reqs[i%len(reqs)], d); err != nil {
			b.Fatal(err)
		}
	}
}

// Matching against patterns may take long. It stops when the client has gone, and nothing is counted then.
func TestMatchingStopsWhenTheCallerHasLeft(t *testing.T) {
	regex := perMinute("path", "/[a-z]+", 5)
	regex.Kind = descriptor.MatchRegex
	f := newFixture(t, limiter.Settings{}, regex)
	ctx, leave := context.WithCancel(context.Background())
	leave()
	two := request(1, "path=/a", "path=/a")
	if err := f.Decide(ctx, f.now, two, &limiter.Decision{}); !errors.Is(err, context.Canceled) {
		t.Errorf("a call that was left: %v", err)
	}
	if d := f.decide(request(1, "path=/a")); d.Statuses[0].Remaining != 4 {
		t.Errorf("%d are left of 5 after one hit", d.Statuses[0].Remaining)
	}
}
