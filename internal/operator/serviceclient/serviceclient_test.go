package serviceclient

import (
	"context"
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	descriptorv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/ratelimitd/ratelimitd/internal/authoring/explain"
	"github.com/ratelimitd/ratelimitd/internal/backend/memory"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
	"github.com/ratelimitd/ratelimitd/internal/operator"
	"github.com/ratelimitd/ratelimitd/internal/platform/async"
	"github.com/ratelimitd/ratelimitd/internal/platform/endpoint"
	"github.com/ratelimitd/ratelimitd/internal/server"
	"github.com/ratelimitd/ratelimitd/internal/testkit/golden"
	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

func entries(pairs ...string) (all []descriptor.Entry) {
	for _, p := range pairs {
		k, v, _ := strings.Cut(p, "=")
		all = append(all, descriptor.Entry{Key: k, Value: v})
	}
	return all
}

// slowed is a decider that takes its time.
type slowed struct {
	server.Decider
	pause func(n int64) <-chan time.Time // pause before the n-th decision; nil without a pause
	n     atomic.Int64
	busy  atomic.Int64
	most  atomic.Int64 // largest number of concurrent decisions
}

func (s *slowed) Start(ctx context.Context, now time.Time, _ *limiter.Batch, req *limiter.Request, d *limiter.Decision, done func(error)) (decided bool, err error) {
	async.Go(func() error { return s.Decide(ctx, now, req, d) }, done)
	return false, nil
}

// Decide decides after the pause.
func (s *slowed) Decide(ctx context.Context, now time.Time, req *limiter.Request, d *limiter.Decision) error {
	busy := s.busy.Add(1)
	defer s.busy.Add(-1)
	for most := s.most.Load(); busy > most && !s.most.CompareAndSwap(most, busy); most = s.most.Load() {
	}
	if s.pause != nil {
		if c := s.pause(s.n.Add(1)); c != nil {
			<-c
		}
	}
	return limiter.Decide(ctx, s.Decider, now, req, d)
}

// anyToken is everybody's.
type anyToken struct{}

func (anyToken) Owner(string) (string, string, error) { return "anybody", "operate", nil }

// start starts a server with some rules and returns where it listens.
func start(t *testing.T, pause func(n int64) <-chan time.Time) (addr, admin string, s *slowed) {
	t.Helper()
	tree, err := descriptor.Compile([]descriptor.DomainSpec{{Name: "d", Children: []descriptor.NodeSpec{
		{Key: "k", Rule: &descriptor.Rule{Name: "yearly", Limits: []descriptor.Limit{{Name: "yearly", Requests: 3, Window: descriptor.Window{Unit: descriptor.Year}}}}},
		{Key: "week", Rule: &descriptor.Rule{Limits: []descriptor.Limit{{Requests: 3, Window: descriptor.Window{Unit: descriptor.Week}}}}},
		{Key: "free", Rule: &descriptor.Rule{Unlimited: true}},
	}}}, descriptor.Options{})

	if err != nil {
		t.Fatal(err)
	}
	l := limiter.New(limiter.Options{Store: memory.New(memory.Options{})})
	l.Swap(tree, limiter.Settings{Headers: descriptor.HeadersReference, Explain: true})
	s = &slowed{Decider: l, pause: pause}
	shared, err := endpoint.New(endpoint.Options{Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	callers, err := server.New(server.Options{Decider: s, Shared: shared, Listen: server.Listen{GRPC: "127.0.0.1:0", HTTP: "127.0.0.1:0"}})
	if err != nil {
		t.Fatal(err)
	}
	operators, err := operator.New(operator.Options{Shared: shared, Addr: "127.0.0.1:0", Counters: l, Access: operator.Access{Tokens: anyToken{}}})
	if err != nil {
		t.Fatal(err)
	}
	callers.SetServing(true)
	ctx, stop := context.WithCancel(context.Background())
	var g errgroup.Group
	g.Go(func() error { return callers.Run(ctx) })
	g.Go(func() error { return operators.Run(ctx) })
	t.Cleanup(func() {
		stop()
		if err := g.Wait(); err != nil {
			t.Error(err)
		}
	})
	return callers.GRPCAddr.String(), operators.DebugAddr.String(), s
}

func client(t *testing.T, o Options) *Client {
	t.Helper()
	if o.Timeout == 0 {
		o.Timeout = 20 * time.Second
	}
	c, err := Dial(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func TestDecide(t *testing.T) {
	addr, _, _ := start(t, nil)
	c := client(t, Options{Server: addr})
	ask := func(hits int64, o *limiter.RequestLimit) *ratelimitv3.RateLimitResponse {
		t.Helper()
		r := &Request{Domain: "d", Descriptors: [][]descriptor.Entry{entries("k=v"), entries("week=x"), entries("free=x")}, Hits: hits, Limit: o}
		a, err := c.ShouldRateLimit(t.Context(), r.Message())
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	for _, step := range []struct {
		hits int64
		code ratelimitv3.RateLimitResponse_Code
		left uint32
	}{
		{1, ratelimitv3.RateLimitResponse_OK, 2}, {2, ratelimitv3.RateLimitResponse_OK, 0}, {0, ratelimitv3.RateLimitResponse_OK, 0}, {1, OverLimit, 0},
		{-3, ratelimitv3.RateLimitResponse_OK, 2}, {1 << 32, OverLimit, 0},
	} {
		if a := ask(step.hits, nil); a.GetOverallCode() != step.code || len(a.GetStatuses()) != 3 || a.GetStatuses()[0].GetLimitRemaining() != step.left {
			t.Errorf("%d hits: %v, want %s, %d", step.hits, a, step.code, step.left)
		}
	}
	of := ask(1, &limiter.RequestLimit{Requests: 9, Unit: int32(descriptor.Second), Multiplier: 20}).GetStatuses()[0]
	if l := of.GetCurrentLimit(); unitName(int32(l.GetUnit())) != "second" || l.GetUnitMultiplier().GetValue() != 20 || of.GetLimitRemaining() != 8 {
		t.Errorf("a limit of the request: %v", of)
	}
}

func TestMessage(t *testing.T) {
	entry := []*descriptorv3.RateLimitDescriptor_Entry{{Key: "k", Value: "v"}}
	for name, c := range map[string]struct {
		r    Request
		want *ratelimitv3.RateLimitRequest
	}{
		"one": {Request{Hits: 1}, &ratelimitv3.RateLimitRequest{HitsAddend: 1, Descriptors: []*descriptorv3.RateLimitDescriptor{{Entries: entry}}}},
		"none": {Request{}, &ratelimitv3.RateLimitRequest{Descriptors: []*descriptorv3.RateLimitDescriptor{
			{Entries: entry, HitsAddend: wrapperspb.UInt64(0)},
		}}},
		"back": {Request{Hits: -2}, &ratelimitv3.RateLimitRequest{Descriptors: []*descriptorv3.RateLimitDescriptor{
			{Entries: entry, HitsAddend: wrapperspb.UInt64(2), IsNegativeHits: true},
		}}},
		"many": {Request{Hits: 1 << 32}, &ratelimitv3.RateLimitRequest{Descriptors: []*descriptorv3.RateLimitDescriptor{
			{Entries: entry, HitsAddend: wrapperspb.UInt64(1 << 32)},
		}}},
		"limit": {Request{Hits: 1, Limit: &limiter.RequestLimit{Requests: 5, Unit: 2, Multiplier: 3}}, &ratelimitv3.RateLimitRequest{HitsAddend: 1, Descriptors: []*descriptorv3.RateLimitDescriptor{
			{Entries: entry, Limit: &descriptorv3.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: 5, Unit: typev3.RateLimitUnit_MINUTE, UnitMultiplier: wrapperspb.UInt32(3)}},
		}}},
	} {
		c.r.Domain, c.want.Domain = "d", "d"
		c.r.Descriptors = [][]descriptor.Entry{entries("k=v")}
		if diff := cmp.Diff(c.want, c.r.Message(), protocmp.Transform()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestLoadCounts(t *testing.T) {
	addr, _, s := start(t, nil)
	r := &Request{Domain: "d", Descriptors: [][]descriptor.Entry{entries("k=v")}, Hits: 1}
	sum := client(t, Options{Server: addr}).Load(t.Context(), r, Load{Count: 50, Concurrency: 4})
	if sum.Sent != 50 || sum.OK != 3 || sum.OverLimit != 47 || sum.Failed != 0 || sum.P50 <= 0 || sum.Max < sum.P99 || sum.P99 < sum.P50 {
		t.Errorf("%+v", sum)
	}
	if most := s.most.Load(); most > 4 {
		t.Errorf("%d at once, want 4 at most", most)
	}
}

// A load that is stopped ends with the answers received so far.
func TestLoadEnds(t *testing.T) {
	addr, _, _ := start(t, nil)
	r := &Request{Domain: "d", Descriptors: [][]descriptor.Entry{entries("free=v")}, Hits: 1}
	ctx, stop := context.WithCancel(t.Context())
	time.AfterFunc(50*time.Millisecond, stop)
	if sum := client(t, Options{Server: addr}).Load(ctx, r, Load{Count: 1_000_000_000}); sum.Sent == 0 || sum.Sent == 1_000_000_000 {
		t.Errorf("after it was stopped: %+v", sum)
	}
}

func TestLoadOfAServerThatIsGone(t *testing.T) {
	r := &Request{Domain: "d", Descriptors: [][]descriptor.Entry{entries("free=v")}, Hits: 1}
	sum := client(t, Options{Server: redistest.FreeAddr(t)}).Load(t.Context(), r, Load{Count: 10})
	if sum.Sent != 10 || sum.Failed != 10 || sum.Errors["UNAVAILABLE"] != 10 || !strings.Contains(sum.Messages["UNAVAILABLE"], "refused") {
		t.Errorf("%+v", sum)
	}
	addr, _, _ := start(t, nil)
	sum = client(t, Options{Server: addr}).Load(t.Context(), &Request{Descriptors: r.Descriptors, Hits: 1}, Load{Count: 3})
	if sum.Errors["INVALID_ARGUMENT"] != 3 {
		t.Errorf("%+v", sum)
	}
}

func TestFailuresSayWhatToDo(t *testing.T) {
	stalled := make(chan time.Time)
	addr, admin, _ := start(t, func(int64) <-chan time.Time { return stalled })
	defer close(stalled)
	ask := func(c *Client) error {
		_, err := c.ShouldRateLimit(t.Context(), (&Request{Domain: "d", Descriptors: [][]descriptor.Entry{entries("k=v")}, Hits: 1}).Message())
		return err
	}
	peek := func(c *Client) error {
		_, err := c.Peek(t.Context(), "d", entries("k=v"), nil)
		return err
	}
	for name, c := range map[string]struct {
		o    Options
		call func(*Client) error
		want []string
	}{
		"nobody there":   {Options{Server: redistest.FreeAddr(t)}, ask, []string{"UNAVAILABLE", "refused", "is a server listening there, and do both sides use TLS, or neither?"}},
		"no TLS there":   {Options{Server: addr, TLS: true}, ask, []string{"UNAVAILABLE", "trust each other's certificates"}},
		"the wrong port": {Options{Server: addr}, peek, []string{"UNIMPLEMENTED", "is that the right port?"}},
		"the other one":  {Options{Server: admin, Token: "some-token"}, ask, []string{"UNIMPLEMENTED", "is that the right port?"}},
		"no flag for it": {Options{Server: admin, NoToken: true}, ask, []string{"UNAUTHENTICATED", "makes no decisions: the gRPC port does"}},
		"no token":       {Options{Server: admin}, peek, []string{"UNAUTHENTICATED", "a token is required", "--token-file"}},
		"too slow":       {Options{Server: addr, Timeout: 50 * time.Millisecond}, ask, []string{"DEADLINE_EXCEEDED", "no answer within 50ms"}},
	} {
		err := c.call(client(t, c.o))
		for _, want := range append(c.want, c.o.Server) {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, want %q in it", name, err, want)
			}
		}
	}
}

func TestBadCertificateFiles(t *testing.T) {
	empty := filepath.Join(t.TempDir(), "empty")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for want, o := range map[string]Options{
		"no certificate in it": {CA: empty},
		"gone":                 {CA: empty + "gone"},
		"needs its key":        {Cert: empty},
		"and key":              {Cert: empty, Key: empty},
	} {
		o.Server = "127.0.0.1:1"
		if _, err := Dial(o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

func TestCounters(t *testing.T) {
	addr, admin, _ := start(t, nil)
	request := &Request{Domain: "d", Descriptors: [][]descriptor.Entry{entries("k=v")}, Hits: 5}
	if _, err := client(t, Options{Server: addr}).ShouldRateLimit(t.Context(), request.Message()); err != nil {
		t.Fatal(err)
	}
	c := client(t, Options{Server: admin, Token: "some-token"})
	check := func(what string, got Counters, err error) {
		t.Helper()
		if err != nil || got.GetRule().GetPath() != "d.k" || len(got.GetCounters()) != 1 || string(got.GetCounters()[0].GetLimit().GetCounterKey()) != "d|k=v|f31536000" {
			t.Fatalf("%s: %v %v", what, got, err)
		}
		state := StateOf(got.GetCounters()[0])
		if off := time.Until(state.ResetAt).Seconds() - state.Reset; state.WaitSeconds != state.Reset || state.Reset <= 0 || off > 20 || off < -20 {
			t.Errorf("%s: %+v", what, state)
		}
		state.WaitSeconds, state.Reset, state.ResetAt = 0, 0, time.Time{}
		if diff := cmp.Diff(&explain.State{Used: 5, Capacity: 3}, state); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
	}
	peeked, err := c.Peek(t.Context(), "d", entries("k=v"), nil)
	check("Peek", peeked, err)
	reset, err := c.Reset(t.Context(), "d", entries("k=v"), nil)
	check("Reset", reset, err)
	if peeked, err = c.Peek(t.Context(), "d", entries("k=v"), nil); err != nil || peeked.GetCounters()[0].GetUsed() != 0 || StateOf(peeked.GetCounters()[0]).Never {
		t.Errorf("after the reset: %v %v", peeked, err)
	}
	o := &limiter.RequestLimit{Requests: 0, Unit: int32(descriptor.Minute), Multiplier: 2}
	if peeked, err = c.Peek(t.Context(), "d", entries("k=v"), o); err != nil || peeked.GetRule() != nil || len(peeked.GetCounters()) != 1 || !StateOf(peeked.GetCounters()[0]).Never {
		t.Errorf("a limit of the request: %v %v", peeked, err)
	}
	if peeked, err = c.Peek(t.Context(), "nobody", entries("k=v"), o); err != nil || len(peeked.GetCounters()) != 0 || peeked.GetReason() == "" {
		t.Errorf("a domain without rules: %v %v", peeked, err)
	}
}

func TestTexts(t *testing.T) {
	request := &Request{Descriptors: [][]descriptor.Entry{entries("method=GET", "path=/search\x1b[2J"), entries("to_number=2061234567"), entries("nobody=knows")}}
	metadata, err := structpb.NewStruct(map[string]any{"decision": map[string]any{"rule": "edge.<path>"}})
	if err != nil {
		t.Fatal(err)
	}
	answer := &ratelimitv3.RateLimitResponse{
		OverallCode: OverLimit,
		Statuses: []*ratelimitv3.RateLimitResponse_DescriptorStatus{
			{Code: OverLimit, CurrentLimit: &ratelimitv3.RateLimitResponse_RateLimit{Name: "search", RequestsPerUnit: 5}, DurationUntilReset: durationpb.New(41 * time.Second)},
			{
				Code: ratelimitv3.RateLimitResponse_OK, CurrentLimit: &ratelimitv3.RateLimitResponse_RateLimit{RequestsPerUnit: 5, Unit: ratelimitv3.RateLimitResponse_RateLimit_DAY},
				LimitRemaining: 4, DurationUntilReset: durationpb.New(30476 * time.Second),
			},
			{Code: ratelimitv3.RateLimitResponse_OK},
		},
		ResponseHeadersToAdd: []*commonv3.HeaderValue{{Key: "RateLimit-Limit", Value: "5"}, {Key: "Retry-After", RawValue: []byte("41")}},
		RequestHeadersToAdd:  []*commonv3.HeaderValue{{Key: "x-shadow", Value: "yes"}},
		DynamicMetadata:      metadata, RawBody: []byte("slow down"),
	}
	summary := &Summary{
		Sent: 1000, OK: 500, OverLimit: 480, Failed: 20, Errors: map[string]int64{"UNAVAILABLE": 15, "DEADLINE_EXCEEDED": 5},
		Messages: map[string]string{"UNAVAILABLE": "connection refused", "DEADLINE_EXCEEDED": "too slow"},
		Seconds:  10.01, Rate: 99.9, P50: 0.431, P90: 1.2, P99: 20.1, Max: 5001,
	}
	limit := func(name, words, key string, used, capacity, remaining uint64, wait, reset time.Duration) *adminv1.CounterState {
		return &adminv1.CounterState{
			Limit: &adminv1.Limit{Name: name, CounterKey: []byte(key)}, Words: words, Used: used, Capacity: capacity, Remaining: remaining,
			Wait: durationpb.New(wait), ResetAfter: durationpb.New(reset), ResetAt: &timestamppb.Timestamp{},
		}
	}
	of := [][]descriptor.Entry{entries("method=GET"), entries("method=OPTIONS"), entries("nobody=knows")}
	peeked := []*adminv1.PeekResponse{
		{Rule: &adminv1.Rule{Path: "edge.method", Name: "short", ShadowMode: true, Position: &adminv1.Position{File: "rules/edge.yaml", Line: 4, Column: 5}}, Counters: []*adminv1.CounterState{
			limit("short", "2 per second, fixed window", "edge|method=GET|f1", 3, 2, 0, time.Second/2, time.Second/2),
			limit("long", "100 per day, fixed window", "edge|method=GET|f86400", 3, 100, 97, 0, time.Hour),
		}, Override: "factor"},
		{Rule: &adminv1.Rule{Path: "edge.method_OPTIONS", Unlimited: true}},
		{Reason: "nothing matches entry 1"},
	}
	cleared := []*adminv1.ResetResponse{{Counters: []*adminv1.CounterState{limit("", "9 per minute, fixed window", "edge|method=PUT|f60", 9, 9, 0, 0, 0)}}}
	var b strings.Builder
	for name, write := range map[string]func() error{
		"answer.txt":    func() error { return WriteAnswer(&b, request, answer, 1234*time.Microsecond, false) },
		"answer.json":   func() error { return WriteMessage(&b, answer) },
		"summary.txt":   func() error { return WriteSummary(&b, summary, false) },
		"summary.json":  func() error { return WriteJSON(&b, summary) },
		"counters.txt":  func() error { return WriteCounters(&b, "edge", of, peeked, false) },
		"counters.json": func() error { return WriteMessages(&b, peeked) },
		"cleared.txt": func() error {
			return WriteCounters(&b, "edge", [][]descriptor.Entry{entries("method=PUT")}, cleared, false)
		},
	} {
		b.Reset()
		if err := write(); err != nil {
			t.Fatal(err)
		}
		golden.Compare(t, "testdata/"+name, b.String())
		if strings.HasSuffix(name, ".json") && !json.Valid([]byte(b.String())) || strings.HasSuffix(name, ".txt") && strings.Contains(b.String(), "\x1b") {
			t.Errorf("%s:\n%s", name, b.String())
		}
	}
	b.Reset()
	if err := WriteAnswer(&b, request, answer, 0, true); err != nil || !strings.Contains(b.String(), "\x1b[31mOVER_LIMIT\x1b[0m") {
		t.Errorf("%v %q", err, b.String())
	}
}
