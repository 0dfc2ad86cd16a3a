package limiter_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/backend/memory"
	"github.com/ratelimitd/ratelimitd/internal/config/override"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
	"github.com/ratelimitd/ratelimitd/internal/platform/metric/prom"
)

// flaky is a store that can be down, as a whole or for some counters.
type flaky struct {
	*memory.Store
	down func(t *backend.Take) bool
}

// Start implements backend.Store.
func (f *flaky) Start(ctx context.Context, now time.Time, _ *backend.Batch, r *backend.Request, _ func(error)) (settled bool, err error) {
	return true, f.take(ctx, now, r)
}

func (f *flaky) take(ctx context.Context, now time.Time, r *backend.Request) error {
	err := backend.Await(ctx, f.Store, now, r)
	for i := range r.Takes {
		if f.down(&r.Takes[i]) {
			r.Outcomes[i] = backend.Outcome{Failed: true}
			err = backend.ErrUnavailable
		}
	}
	return err
}

func (f *flaky) Peek(ctx context.Context, now time.Time, r *backend.Request) error {
	if f.down(&r.Takes[0]) {
		return backend.ErrUnavailable
	}
	return f.Store.Peek(ctx, now, r)
}

func all(*backend.Take) bool { return true }

func onError(o descriptor.OnError) func(*descriptor.Rule) {
	return func(r *descriptor.Rule) { r.OnError = o }
}

func newFallback(t *testing.T, down func(*backend.Take) bool, s limiter.Settings, spec descriptor.DomainSpec) *fixture {
	t.Helper()
	spec.Name = "d"
	tree, err := descriptor.Compile([]descriptor.DomainSpec{spec}, descriptor.Options{})
	if err != nil {
		t.Fatal(err)
	}
	registry := prometheus.NewPedanticRegistry()
	l := limiter.New(limiter.Options{
		Store:   &flaky{memory.New(memory.Options{}), down},
		Local:   memory.New(memory.Options{}),
		Metrics: prom.With(registry),
	})
	l.Swap(tree, s)
	return &fixture{Limiter: l, t: t, now: noon, registry: registry, overrides: &override.Set{}}
}

func TestOnError(t *testing.T) {
	nodes := []descriptor.NodeSpec{
		perMinute("error", "", 9, onError(descriptor.OnErrorError)),
		perMinute("allow", "", 9, onError(descriptor.OnErrorAllow)),
		perMinute("deny", "", 9, onError(descriptor.OnErrorDeny)),
		perMinute("local", "", 6, onError(descriptor.OnErrorLocal)),
		perMinute("shadow", "", 9, shadow),
		perMinute("inherits", "", 9),
	}
	s := limiter.Settings{Headers: descriptor.HeadersReference}
	f := newFallback(t, all, s, descriptor.DomainSpec{DomainSettings: descriptor.DomainSettings{OnError: descriptor.OnErrorDeny}, Children: nodes})
	f.SetReplicas(3)

	d := &limiter.Decision{}
	if err := f.Decide(t.Context(), noon, request(1, "allow=a", "error=a"), d); !errors.Is(err, backend.ErrUnavailable) {
		t.Errorf("one descriptor that wants the error: %v", err)
	}
	d = f.decide(request(1, "allow=a", "shadow=a"))
	want := []limiter.Status{{Code: limiter.OK, Degraded: descriptor.OnErrorAllow}, {Code: limiter.OK, Degraded: descriptor.OnErrorAllow}}
	if diff := cmp.Diff(want, d.Statuses, anyRule); d.Code != limiter.OK || diff != "" {
		t.Errorf("allow: %s %s", d.Code, diff)
	}
	if diff := cmp.Diff([]limiter.Header{{Key: "x-ratelimit-degraded", Value: "allow"}}, d.Headers); diff != "" {
		t.Errorf("headers of allow: %s", diff)
	}
	for _, pair := range []string{"deny=a", "inherits=a"} {
		d = f.decide(request(1, "allow=a", pair))
		if st := d.Statuses[1]; d.Code != limiter.OverLimit || st.Remaining != 0 || st.Limit.Requests != 9 || st.Degraded != descriptor.OnErrorDeny {
			t.Errorf("%s: %s %+v", pair, d.Code, st)
		}
	}
	for i, left := range []uint64{1, 0} {
		if st := f.ask(1, "local=a"); st.Code != limiter.OK || st.Remaining != left || st.Degraded != descriptor.OnErrorLocal {
			t.Errorf("local %d of the 2 that are this replica's: %+v, want %d left", i, st, left)
		}
	}
	f.want(f.ask(1, "local=a"), limiter.OverLimit, 0)

	// One request got the error, one was allowed, two denied, and three counted locally.
	if err := testutil.GatherAndCompare(f.registry, strings.NewReader(`# HELP ratelimitd_backend_errors_total Requests that the store did not answer.
# TYPE ratelimitd_backend_errors_total counter
ratelimitd_backend_errors_total 7
# HELP ratelimitd_degraded_requests_total Requests that on_error decided.
# TYPE ratelimitd_degraded_requests_total counter
ratelimitd_degraded_requests_total 6
`), "ratelimitd_backend_errors_total", "ratelimitd_degraded_requests_total"); err != nil {
		t.Error(err)
	}
}

// Only the descriptors whose counters are gone are answered without the backend.
func TestOnErrorOfSomeCounters(t *testing.T) {
	down := func(take *backend.Take) bool { return take.Limit.Requests == 5 }
	f := newFallback(t, down, limiter.Settings{OnError: descriptor.OnErrorAllow}, descriptor.DomainSpec{Children: []descriptor.NodeSpec{
		perMinute("down", "", 5), perMinute("up", "", 1),
	}})
	f.decide(request(1, "down=a", "up=a"))
	d := f.decide(request(1, "down=a", "up=a"))
	if d.Code != limiter.OverLimit || d.Statuses[0].Degraded != descriptor.OnErrorAllow || d.Statuses[1].Degraded != descriptor.OnErrorDefault {
		t.Errorf("%s %+v", d.Code, d.Statuses)
	}
}

// A client that has gone gets an error. Nothing is counted for it locally.
func TestOnErrorAfterTheCallerLeft(t *testing.T) {
	f := newFallback(t, all, limiter.Settings{OnError: descriptor.OnErrorLocal}, descriptor.DomainSpec{Children: []descriptor.NodeSpec{perMinute("k", "", 5)}})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := f.Decide(ctx, noon, request(1, "k=a"), &limiter.Decision{}); err == nil {
		t.Error("no error")
	}
	f.want(f.ask(1, "k=a"), limiter.OK, 4)
}

// All-or-nothing also applies where this replica counts alone.
func TestOnErrorLocalTogether(t *testing.T) {
	s := limiter.Settings{Admission: descriptor.AllOrNothing, OnError: descriptor.OnErrorLocal}
	f := newFallback(t, all, s, descriptor.DomainSpec{Children: []descriptor.NodeSpec{perMinute("narrow", "", 1), perMinute("wide", "", 9)}})
	f.decide(request(1, "narrow=a", "wide=a"))
	f.decide(request(1, "narrow=a", "wide=a"))
	if left := f.left("wide=a"); left != 8 {
		t.Errorf("%d left of 9, want 8: the denied request consumed", left)
	}
}

// The share of a replica has room for one hit of any cost. It is never larger than the limit.
func TestShareHasRoomForTheCost(t *testing.T) {
	bucket := func(a descriptor.Algorithm) func(*descriptor.Rule) {
		return func(r *descriptor.Rule) { r.Limits[0].Algorithm, r.Limits[0].Burst = a, 199 }
	}
	cost := func(n uint64) func(*descriptor.Rule) { return counting(descriptor.HitCost{Factor: n}) }
	f := newFallback(t, all, limiter.Settings{OnError: descriptor.OnErrorLocal}, descriptor.DomainSpec{Children: []descriptor.NodeSpec{
		perMinute("small", "", 200, cost(5)), perMinute("k", "", 200, cost(50)), perMinute("token", "", 200, cost(50), bucket(descriptor.TokenBucket)),
		perMinute("leaky", "", 200, cost(50), bucket(descriptor.LeakyBucket)), perMinute("over", "", 200, cost(201)),
		byModel(16, func(r *descriptor.Rule) { r.Limits[0].Name = "tokens" }), perMinute("own", "", 200, cost(50), overridable),
	}})
	f.SetReplicas(8)
	f.override("d.own", "", override.Numbers{Kind: override.Replace, Requests: 400}, "own=a")
	for _, test := range []struct {
		pair   string
		passes int
	}{{"small=a", 5}, {"k=a", 1}, {"token=a", 1}, {"leaky=a", 1}, {"over=a", 0}, {"model=large", 1}, {"own=a", 1}} {
		passed := 0
		for f.ask(1, test.pair).Code == limiter.OK {
			passed++
		}
		if passed != test.passes {
			t.Errorf("%s: %d passed, want %d", test.pair, passed, test.passes)
		}
	}
}

// Hits that have passed are counted here, under every algorithm and under several limits, as the store would count
// them.
func TestSettledHitsWithoutTheStore(t *testing.T) {
	bucket := func(r *descriptor.Rule) { r.Limits[0].Algorithm, r.Limits[0].Burst = descriptor.TokenBucket, 10 }
	f := newFallback(t, all, limiter.Settings{OnError: descriptor.OnErrorLocal}, descriptor.DomainSpec{Children: []descriptor.NodeSpec{
		perMinute("window", "", 10), perMinute("bucket", "", 10, bucket),
		listNode("two", []descriptor.Limit{fixedLimit("a", 10), fixedLimit("b", 10, hourly)}),
	}})
	for _, pair := range []string{"window=a", "bucket=a", "two=a"} {
		d := &limiter.Decision{}
		if err := f.Decide(t.Context(), noon, limiter.SettledRequest("d", entries(pair), 7), d); err != nil {
			t.Errorf("%s: %v", pair, err)
		}
		if s := f.ask(5, pair); s.Code != limiter.OverLimit {
			t.Errorf("%s: 5 of 10 pass after 7 that had passed: %+v", pair, s)
		}
	}
}

// The share of a replica has room for a request of several hits, if the whole limit has.
func TestShareHasRoomForTheRequest(t *testing.T) {
	bucket := func(r *descriptor.Rule) { r.Limits[0].Algorithm, r.Limits[0].Burst = descriptor.TokenBucket, 80 }
	f := newFallback(t, all, limiter.Settings{OnError: descriptor.OnErrorLocal}, descriptor.DomainSpec{Children: []descriptor.NodeSpec{
		perMinute("tokens", "", 100), perMinute("bucket", "", 100, bucket), perMinute("cost", "", 100, counting(descriptor.HitCost{Factor: 5})),
	}})
	f.SetReplicas(10)
	for _, test := range []struct {
		pair   string
		hits   int64
		passes int
	}{{"tokens=a", 50, 1}, {"tokens=b", 3, 3}, {"tokens=c", 101, 0}, {"bucket=a", 80, 1}, {"bucket=b", 81, 0}, {"cost=a", 10, 1}, {"cost=b", 21, 0}} {
		passed := 0
		for f.ask(test.hits, test.pair).Code == limiter.OK {
			passed++
		}
		if passed != test.passes {
			t.Errorf("%s: %d requests of %d hits passed, want %d", test.pair, passed, test.hits, test.passes)
		}
	}
}

// If only one of a descriptor's limits is counted by this replica, the others still apply as a whole.
func TestShareOfTheCountersThatFailed(t *testing.T) {
	down := func(take *backend.Take) bool { return take.Limit.Name == "down" }
	f := newFallback(t, down, limiter.Settings{OnError: descriptor.OnErrorLocal}, descriptor.DomainSpec{Children: []descriptor.NodeSpec{
		listNode("k", []descriptor.Limit{fixedLimit("up", 20), fixedLimit("down", 400, hourly)}),
	}})
	f.SetReplicas(4)
	if s := f.ask(6, "k=a"); s.Limit.Name != "up" || s.Remaining != 14 || s.Degraded != descriptor.OnErrorLocal {
		t.Errorf("%+v", s)
	}
}
