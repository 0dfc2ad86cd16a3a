package limiter_test

import (
	"context"
	"fmt"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/backend/memory"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
	"github.com/ratelimitd/ratelimitd/internal/testkit/racetest"
)

var allOrNothing = limiter.Settings{Admission: descriptor.AllOrNothing}

func shadow(r *descriptor.Rule) { r.Shadow = true }
func quota(r *descriptor.Rule)  { r.Quota = true }

// request has one descriptor per pair, each adding this number of hits.
func request(hits uint32, pairs ...string) *limiter.Request {
	req := &limiter.Request{Domain: "d", Hits: hits}
	for _, p := range pairs {
		req.Descriptors = append(req.Descriptors, limiter.Descriptor{Entries: entries(p)})
	}
	return req
}

func (f *fixture) left(pair string) uint64 {
	f.t.Helper()
	return f.ask(0, pair).Remaining
}

func TestAllOrNothing(t *testing.T) {
	type step struct {
		ask  *limiter.Request
		code limiter.Code
		left map[string]uint64 // afterwards
	}
	for name, c := range map[string]struct {
		settings limiter.Settings
		nodes    []descriptor.NodeSpec
		steps    []step
	}{
		"a denied request consumes nothing": {allOrNothing, []descriptor.NodeSpec{perMinute("wide", "", 10), perMinute("narrow", "", 2)}, []step{
			{request(1, "wide=a", "narrow=a"), limiter.OK, map[string]uint64{"wide=a": 9, "narrow=a": 1}},
			{request(2, "wide=a", "narrow=a"), limiter.OverLimit, map[string]uint64{"wide=a": 9, "narrow=a": 1}},
			{request(1, "narrow=a", "wide=a"), limiter.OK, map[string]uint64{"wide=a": 8, "narrow=a": 0}},
			{request(1, "wide=a", "narrow=a"), limiter.OverLimit, map[string]uint64{"wide=a": 8, "narrow=a": 0}},
		}},
		"independent ones count alone": {limiter.Settings{}, []descriptor.NodeSpec{perMinute("wide", "", 10), perMinute("narrow", "", 2)}, []step{
			{request(3, "wide=a", "narrow=a"), limiter.OverLimit, map[string]uint64{"wide=a": 7, "narrow=a": 0}},
		}},
		"two descriptors of one counter are one take": {allOrNothing, []descriptor.NodeSpec{perMinute("k", "", 3)}, []step{
			{request(1, "k=a", "k=a"), limiter.OK, map[string]uint64{"k=a": 1}},
			{request(1, "k=a", "k=a"), limiter.OverLimit, map[string]uint64{"k=a": 1}},
			{request(1, "k=a", "k=b"), limiter.OK, map[string]uint64{"k=a": 0, "k=b": 2}},
		}},
		"a shadow rule has no say, and counts with the request": {allOrNothing, []descriptor.NodeSpec{perMinute("k", "", 2), perMinute("shadow", "", 1, shadow)}, []step{
			{request(1, "k=a", "shadow=a"), limiter.OK, map[string]uint64{"k=a": 1, "shadow=a": 0}},
			{request(1, "k=a", "shadow=a"), limiter.OK, map[string]uint64{"k=a": 0, "shadow=a": 0}},
			{request(1, "k=a", "shadow=b"), limiter.OverLimit, map[string]uint64{"shadow=b": 1}},
		}},
		"quota mode denies when all are over": {allOrNothing, []descriptor.NodeSpec{perMinute("q", "", 1, quota), perMinute("r", "", 2, quota), perMinute("k", "", 9)}, []step{
			{request(1, "q=a", "r=a", "k=a"), limiter.OK, map[string]uint64{"q=a": 0, "r=a": 1, "k=a": 8}},
			{request(1, "q=a", "r=a", "k=a"), limiter.OK, map[string]uint64{"q=a": 0, "r=a": 0, "k=a": 7}},
			{request(1, "q=a", "r=a", "k=a"), limiter.OverLimit, map[string]uint64{"k=a": 7}},
		}},
		"global shadow mode lets all pass and counts what fits": {limiter.Settings{Admission: descriptor.AllOrNothing, Shadow: true}, []descriptor.NodeSpec{perMinute("k", "", 1), perMinute("wide", "", 9)}, []step{
			{request(1, "k=a", "wide=a"), limiter.OK, map[string]uint64{"k=a": 0, "wide=a": 8}},
			{request(1, "k=a", "wide=a"), limiter.OK, map[string]uint64{"k=a": 0, "wide=a": 7}},
		}},
		"a refund is given though a sibling is denied": {allOrNothing, []descriptor.NodeSpec{perMinute("k", "", 1), perMinute("back", "", 9)}, []step{
			{request(5, "back=a"), limiter.OK, map[string]uint64{"back=a": 4}},
			{&limiter.Request{Domain: "d", Descriptors: []limiter.Descriptor{
				{Entries: entries("k=a"), HasHits: true, Hits: 2},
				{Entries: entries("back=a"), HasHits: true, Hits: 3, Refund: true},
			}}, limiter.OverLimit, map[string]uint64{"k=a": 1, "back=a": 7}},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, c.settings, c.nodes...)
			for i, s := range c.steps {
				if d := f.decide(s.ask); d.Code != s.code {
					t.Errorf("step %d: %s, want %s", i, d.Code, s.code)
				}
				got := map[string]uint64{}
				for pair := range s.left {
					got[pair] = f.left(pair)
				}
				if diff := cmp.Diff(s.left, got); diff != "" {
					t.Errorf("step %d leaves (-want +got):\n%s", i, diff)
				}
			}
		})
	}
}

// A domain's own admission overrides the server's.
func TestAdmissionOfADomain(t *testing.T) {
	tree, err := descriptor.Compile([]descriptor.DomainSpec{{Name: "d", DomainSettings: descriptor.DomainSettings{Admission: descriptor.AllOrNothing}, Children: []descriptor.NodeSpec{perMinute("k", "", 1), perMinute("wide", "", 9)}}}, descriptor.Options{})
	if err != nil {
		t.Fatal(err)
	}
	l := limiter.New(limiter.Options{Store: memory.New(memory.Options{})})
	l.Swap(tree, limiter.Settings{})
	f := &fixture{Limiter: l, t: t, now: noon}
	f.decide(request(1, "k=a", "wide=a"))
	f.decide(request(1, "k=a", "wide=a"))
	if left := f.left("wide=a"); left != 8 {
		t.Errorf("%d left of 9 after one admitted and one denied request, want 8", left)
	}
}

// Under contention, all_or_nothing must not let more hits pass than the narrow limit, nor charge the wide one for
// denied requests. The order of the counters must not matter.
func TestAllOrNothingUnderContention(t *testing.T) {
	const narrow, wide, goroutines, each = 200, 100_000, 32, 50
	f := newFixture(t, allOrNothing, perMinute("narrow", "", narrow), perMinute("wide", "", wide))
	orders := []*limiter.Request{request(1, "narrow=a", "wide=a"), request(1, "wide=a", "narrow=a")}
	var admitted atomic.Int64
	var wg sync.WaitGroup
	for i := range goroutines {
		wg.Go(func() {
			d := &limiter.Decision{}
			for range each {
				if err := f.Decide(context.Background(), noon, orders[i%2], d); err != nil {
					t.Error(err)
				}
				if d.Code == limiter.OK {
					admitted.Add(1)
				}
			}
		})
	}
	wg.Wait()
	if admitted.Load() != narrow || f.left("wide=a") != wide-narrow {
		t.Errorf("admitted %d of %d, and the wide limit has %d left of %d", admitted.Load(), narrow, f.left("wide=a"), wide)
	}
}

// Descriptors with one counter share a take, however many other descriptors the request has.
func TestManyDescriptorsShareTakes(t *testing.T) {
	const values, limit = 60, 5
	f := newFixture(t, allOrNothing, perMinute("k", "", limit))
	ask := func(each int) *limiter.Decision {
		var pairs []string
		for i := range each * values {
			pairs = append(pairs, fmt.Sprint("k=", i%values))
		}
		return f.decide(request(1, pairs...))
	}
	if d := ask(limit + 1); d.Code != limiter.OverLimit {
		t.Errorf("%d hits of %d: %v", limit+1, limit, d.Code)
	}
	if d := ask(limit); d.Code != limiter.OK || d.Statuses[0].Remaining != 0 {
		t.Errorf("%d hits of %d after a denied request: %v, %d left", limit, limit, d.Code, d.Statuses[0].Remaining)
	}
	if d := ask(1); d.Code != limiter.OverLimit {
		t.Errorf("one more hit each: %v", d.Code)
	}
}

// ofManyLimits is a node with sixteen limits.
func ofManyLimits(replaces ...string) descriptor.NodeSpec {
	rule := &descriptor.Rule{Replaces: replaces}
	for n := range 16 {
		window := descriptor.Window{Unit: descriptor.Minute, Multiplier: uint32(n + 1)}
		rule.Limits = append(rule.Limits, descriptor.Limit{Name: fmt.Sprint("limit-", n), Requests: 1_000_000, Window: window})
	}
	return descriptor.NodeSpec{Key: "k", Rule: rule}
}

// costs returns how long a decision takes on one limiter and on another: the shortest of several times, taken in turn.
// As long as the other seems to take more than most times as long, it asks again, because a busy machine is not always
// busy.
func costs(one, other *fixture, req *limiter.Request, most time.Duration) (a, b time.Duration) {
	cost := func(f *fixture) time.Duration {
		began := time.Now()
		f.decide(req)
		return time.Since(began)
	}
	a, b = time.Hour, time.Hour
	for round := 0; round < 10 || b > most*a && round < 200; round++ {
		a, b = min(a, cost(one)), min(b, cost(other))
	}
	return a, b
}

// A request with very many takes costs about as much under all_or_nothing as without it: its cost does not grow with
// the square of its size. That also holds if the store has no room for their counters.
func TestCostOfManyTakes(t *testing.T) {
	racetest.Sequential(t)
	var pairs []string
	for i := range 512 {
		pairs = append(pairs, fmt.Sprintf("k=%s%d", strings.Repeat("x", 400), i))
	}
	req := request(1, pairs...)
	for what, counters := range map[string]int{"room": 1_000_000, "no room": 10} {
		on := func(s limiter.Settings) *fixture {
			return newFixtureOn(t, memory.New(memory.Options{MaxCounters: counters}), s, ofManyLimits())
		}
		independent, atomic := costs(on(limiter.Settings{}), on(allOrNothing), req, 8)
		if atomic > 8*independent { // less than 2 times; about 20 times if each take is compared with all others
			t.Errorf("%s: %d takes cost %s, and %s under all_or_nothing", what, 16*len(pairs), independent, atomic)
		}
	}
}

// several is a node with several limits: 2 a second and 5 a day.
func several(key string) descriptor.NodeSpec {
	return descriptor.NodeSpec{Key: key, Rule: &descriptor.Rule{Limits: []descriptor.Limit{
		{Name: "burst", Requests: 2, Window: descriptor.Window{Unit: descriptor.Second}},
		{Name: "daily", Requests: 5, Window: descriptor.Window{Unit: descriptor.Day}},
	}}}
}

func TestSeveralLimitsOnOneDescriptor(t *testing.T) {
	f := newFixture(t, limiter.Settings{}, several("k"))
	name := func(s limiter.Status) string { return s.Limit.Name }
	for i, want := range []struct {
		after time.Duration
		code  limiter.Code
		name  string
		left  uint64
	}{
		{0, limiter.OK, "burst", 1},
		{0, limiter.OK, "burst", 0},
		{0, limiter.OverLimit, "burst", 0}, // and takes nothing from the limit per day
		{time.Second, limiter.OK, "burst", 1},
		{0, limiter.OK, "burst", 0},
		{time.Second, limiter.OK, "daily", 0},
		{time.Second, limiter.OverLimit, "daily", 0},
	} {
		f.now = f.now.Add(want.after)
		s := f.ask(1, "k=a")
		if s.Code != want.code || name(s) != want.name || s.Remaining != want.left {
			t.Errorf("step %d: %s by %q with %d left, want %+v", i, s.Code, name(s), s.Remaining, want)
		}
	}
}

func TestHeaderFamilies(t *testing.T) {
	all := descriptor.HeadersReference | descriptor.HeadersDraft03 | descriptor.HeadersIETF | descriptor.HeadersRetryAfter
	f := newFixture(t, limiter.Settings{Headers: all},
		several("k"),
		perMinute("plain", "", 9, func(r *descriptor.Rule) { r.Name = "say \"hi\"" }),
		perMinute("shadow", "", 0, shadow))
	f.decide(request(1, "k=a"))
	f.decide(request(1, "k=a"))
	d := f.decide(request(1, "shadow=a", "plain=a", "k=a"))
	want := []limiter.Header{
		{Key: "Retry-After", Value: "1"},
		{Key: "RateLimit-Limit", Value: "2"},
		{Key: "RateLimit-Remaining", Value: "0"},
		{Key: "RateLimit-Reset", Value: "1"},
		{Key: "X-RateLimit-Limit", Value: `2, 9;w=60;name="say \"hi\"", 2;w=1;name="burst", 5;w=86400;name="daily"`},
		{Key: "X-RateLimit-Remaining", Value: "0"},
		{Key: "X-RateLimit-Reset", Value: "1"},
		{Key: "RateLimit-Policy", Value: `"say \"hi\"";q=9;w=60, "burst";q=2;w=1, "daily";q=5;w=86400`},
		{Key: "RateLimit", Value: `"burst";r=0;t=1`},
	}
	if diff := cmp.Diff(want, d.Headers); diff != "" {
		t.Error(diff)
	}
	// The request is heavier than the limit: it would never pass, so there is no Retry-After.
	d = f.decide(request(10, "plain=b"))
	for _, h := range d.Headers {
		if h.Key == "Retry-After" {
			t.Errorf("a request that never passes has Retry-After: %s", h.Value)
		}
	}
}

// The delay comes from the longest queue, even where another limit of the list has less left.
func TestTheLongestDelayOfSeveralLimits(t *testing.T) {
	queue := func(name string, unit descriptor.Unit, requests uint64) descriptor.Limit {
		return descriptor.Limit{Name: name, Requests: requests, Window: descriptor.Window{Unit: unit}, Algorithm: descriptor.LeakyBucket, Burst: 9}
	}
	f := newFixture(t, limiter.Settings{}, descriptor.NodeSpec{Key: "k", Rule: &descriptor.Rule{Limits: []descriptor.Limit{
		queue("slow", descriptor.Minute, 120), queue("quick", descriptor.Second, 10), {Name: "tight", Requests: 2, Window: descriptor.Window{Unit: descriptor.Day}},
	}}})
	for i, want := range []time.Duration{0, 500 * time.Millisecond, 0} {
		d := f.decide(request(1, "k=a"))
		if d.Delay != want || d.Statuses[0].Delay != want || (i == 2) != (d.Code == limiter.OverLimit) {
			t.Errorf("request %d: %s with a delay of %v, want %v: %+v", i, d.Code, d.Delay, want, d.Statuses)
		}
	}
}

// With envoy_delay, the delay is a header of the request that Envoy's fault filter obeys. In shadow mode it is not.
func TestEnvoyDelay(t *testing.T) {
	waits := []limiter.Header{{Key: "x-ratelimit-delay-ms", Value: "334"}}
	holds := []limiter.Header{{Key: "x-envoy-fault-delay-request", Value: "334"}}
	for name, c := range map[string]struct {
		envoy, shadow, shadowRule bool
		client, upstream          []limiter.Header
	}{
		"off":              {client: waits},
		"on":               {envoy: true, upstream: holds},
		"in shadow mode":   {envoy: true, shadow: true, client: waits},
		"of a shadow rule": {envoy: true, shadowRule: true},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, limiter.Settings{})
			tree, err := descriptor.Compile([]descriptor.DomainSpec{{Name: "d", DomainSettings: descriptor.DomainSettings{EnvoyDelay: c.envoy}, Children: []descriptor.NodeSpec{
				{Key: "k", Rule: &descriptor.Rule{RuleSettings: descriptor.RuleSettings{Shadow: c.shadowRule}, Limits: []descriptor.Limit{
					{Requests: 3, Window: descriptor.Window{Unit: descriptor.Second}, Algorithm: descriptor.LeakyBucket, Burst: 1},
				}}},
			}}}, descriptor.Options{})
			if err != nil {
				t.Fatal(err)
			}
			f.Swap(tree, limiter.Settings{Shadow: c.shadow})
			d := &limiter.Decision{}
			for _, want := range []struct {
				code             limiter.Code
				delay            time.Duration
				client, upstream []limiter.Header
			}{
				{code: limiter.OK},
				{code: limiter.OK, delay: 333334 * time.Microsecond, client: c.client, upstream: c.upstream},
				{code: limiter.OverLimit},
			} {
				req := request(1, "k=a")
				if err := f.Decide(t.Context(), f.now, req, d); err != nil { // into the same Decision
					t.Fatal(err)
				}
				if c.shadow || c.shadowRule {
					want.code = limiter.OK
				}
				if c.shadowRule {
					want.delay = 0
				}
				if d.Code != want.code || d.Delay != want.delay {
					t.Errorf("%s with a delay of %v, want %s and %v", d.Code, d.Delay, want.code, want.delay)
				}
				if diff := cmp.Diff(want.client, d.Headers, cmpopts.EquateEmpty()); diff != "" {
					t.Errorf("headers for the client (-want +got):\n%s", diff)
				}
				if diff := cmp.Diff(want.upstream, d.Upstream, cmpopts.EquateEmpty()); diff != "" {
					t.Errorf("headers of the request (-want +got):\n%s", diff)
				}
			}
		})
	}
}

func TestLeakyBucketReportsTheWait(t *testing.T) {
	f := newFixture(t, limiter.Settings{Explain: true}, descriptor.NodeSpec{Key: "k", Rule: &descriptor.Rule{Limits: []descriptor.Limit{
		{Requests: 3, Window: descriptor.Window{Unit: descriptor.Second}, Algorithm: descriptor.LeakyBucket, Burst: 1},
	}}})
	if d := f.decide(request(1, "k=a")); d.Code != limiter.OK || len(d.Headers) != 0 {
		t.Errorf("first: %+v", d)
	}
	d := f.decide(request(1, "k=a"))
	if diff := cmp.Diff([]limiter.Header{{Key: "x-ratelimit-delay-ms", Value: "334"}}, d.Headers); d.Code != limiter.OK || diff != "" {
		t.Errorf("second: %s %s", d.Code, diff)
	}
	d = f.decide(request(1, "k=a"))
	decision := d.Metadata["decision"]
	want := map[string]any{
		"rule": "d.k", "descriptor": 0, "code": "OVER_LIMIT", "requests_per_unit": uint64(3),
		"window_seconds": int64(1), "remaining": uint64(0), "retry_after_ms": int64(334),
	}
	if diff := cmp.Diff(any(want), decision); d.Code != limiter.OverLimit || diff != "" {
		t.Errorf("third: %s %s", d.Code, diff)
	}
}

// The wire has 32 bits for these numbers. Headers and metadata have them exactly.
func TestLargeNumbersAreExact(t *testing.T) {
	f := newFixture(t, limiter.Settings{Explain: true, Headers: descriptor.HeadersReference}, descriptor.NodeSpec{Key: "k", Rule: &descriptor.Rule{Limits: []descriptor.Limit{
		{Requests: descriptor.MaxRequests, Window: descriptor.Window{Unit: descriptor.Month}},
	}}})
	d := f.decide(&limiter.Request{Domain: "d", Descriptors: []limiter.Descriptor{{Entries: entries("k=a"), Hits: 5_000_000_000, HasHits: true}}})
	const left = descriptor.MaxRequests - 5_000_000_000
	if s := d.Statuses[0]; s.Limit.Requests != descriptor.MaxRequests || s.Remaining != left {
		t.Errorf("%+v", s)
	}
	if m, ok := d.Metadata["decision"].(map[string]any); !ok || m["requests_per_unit"] != uint64(descriptor.MaxRequests) || m["remaining"] != uint64(left) {
		t.Errorf("metadata: %v", d.Metadata)
	}
	d = f.decide(&limiter.Request{Domain: "d", Descriptors: []limiter.Descriptor{{Entries: entries("k=b"), Hits: math.MaxUint64, HasHits: true}}})
	if d.Code != limiter.OverLimit || d.Statuses[0].RetryAfter != backend.Never {
		t.Errorf("more hits than any limit: %+v", d.Statuses[0])
	}
}

// Answers that count whole seconds round up a window in milliseconds, and the protocol has no unit for it. The metadata
// is exact.
func TestWindowInMilliseconds(t *testing.T) {
	f := newFixture(t, limiter.Settings{Explain: true, Headers: descriptor.HeadersDraft03 | descriptor.HeadersIETF}, descriptor.NodeSpec{Key: "k", Rule: &descriptor.Rule{Limits: []descriptor.Limit{
		{Requests: 1, Window: descriptor.Window{Unit: descriptor.Millisecond, Multiplier: 250}},
	}}})
	f.decide(request(1, "k=a"))
	d := f.decide(request(1, "k=a"))
	if s := d.Statuses[0]; d.Code != limiter.OverLimit || s.Limit.Unit != descriptor.UnitUnknown || s.Reset != time.Second || s.RetryAfter > 250*time.Millisecond {
		t.Errorf("%s %+v", d.Code, s)
	}
	if m, ok := d.Metadata["decision"].(map[string]any); !ok || m["window_seconds"] != 0.25 {
		t.Errorf("metadata: %v", d.Metadata)
	}
	want := []limiter.Header{
		{Key: "X-RateLimit-Limit", Value: "1, 1;w=1"}, {Key: "X-RateLimit-Remaining", Value: "0"}, {Key: "X-RateLimit-Reset", Value: "1"},
		{Key: "RateLimit-Policy", Value: `"250-millisecond";q=1;w=1`}, {Key: "RateLimit", Value: `"250-millisecond";r=0;t=1`},
	}
	if diff := cmp.Diff(want, d.Headers); diff != "" {
		t.Errorf("headers (-want +got):\n%s", diff)
	}
}

// Who is denied learns when to come again, not when the limit is full again.
func TestDenialSaysWhenToComeAgain(t *testing.T) {
	bucket := descriptor.Limit{Requests: 1, Window: descriptor.Window{Unit: descriptor.Second}, Algorithm: descriptor.TokenBucket, Burst: 60}
	f := newFixture(t, limiter.Settings{}, descriptor.NodeSpec{Key: "k", Rule: &descriptor.Rule{Limits: []descriptor.Limit{bucket}}}, perMinute("window", "", 5))
	f.ask(60, "k=a")
	f.ask(5, "window=a")
	for _, c := range []struct {
		hits        int64
		entry       string
		code        limiter.Code
		reset, want time.Duration
	}{
		{0, "k=a", limiter.OK, time.Minute, time.Minute},
		{1, "k=a", limiter.OverLimit, time.Minute, time.Second},
		{30, "k=a", limiter.OverLimit, time.Minute, 30 * time.Second},
		{61, "k=a", limiter.OverLimit, time.Minute, time.Minute}, // never
		{1, "window=a", limiter.OverLimit, 50 * time.Second, 50 * time.Second},
	} {
		s := f.ask(c.hits, c.entry)
		if s.Code != c.code || s.Reset != c.reset || s.UntilReset() != c.want {
			t.Errorf("%d hits of %s: %s, reset %v, until reset %v; want %s, %v, %v", c.hits, c.entry, s.Code, s.Reset, s.UntilReset(), c.code, c.reset, c.want)
		}
	}
}

// Raising or lowering a limit keeps the used hits. Another window starts from zero.
func TestChangingARule(t *testing.T) {
	f := newFixture(t, limiter.Settings{}, perMinute("k", "", 5))
	change := func(n descriptor.NodeSpec) {
		tree, err := descriptor.Compile([]descriptor.DomainSpec{{Name: "d", Children: []descriptor.NodeSpec{n}}}, descriptor.Options{})
		if err != nil {
			t.Fatal(err)
		}
		f.Swap(tree, limiter.Settings{})
	}
	f.ask(4, "k=a")
	change(perMinute("k", "", 10))
	f.want(f.ask(0, "k=a"), limiter.OK, 6)
	change(perMinute("k", "", 3))
	f.want(f.ask(1, "k=a"), limiter.OverLimit, 0)
	change(perMinute("k", "", 10, func(r *descriptor.Rule) { r.Limits[0].Window.Multiplier = 2 }))
	f.want(f.ask(0, "k=a"), limiter.OK, 10)
	change(perMinute("k", "", 10, func(r *descriptor.Rule) { r.Limits[0].Algorithm = descriptor.SlidingLog }))
	f.want(f.ask(0, "k=a"), limiter.OK, 10)
}
