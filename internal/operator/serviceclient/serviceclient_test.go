package serviceclient

import (
	"context"
	"encoding/json"
	"flag"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	descriptorv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/ratelimitd/ratelimitd/internal/authoring/explain"
	"github.com/ratelimitd/ratelimitd/internal/backend/memory"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
	"github.com/ratelimitd/ratelimitd/internal/operator"
	"github.com/ratelimitd/ratelimitd/internal/platform/async"
	"github.com/ratelimitd/ratelimitd/internal/platform/endpoint"
	"github.com/ratelimitd/ratelimitd/internal/server"
	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
)

var update = flag.Bool("update", false, "write the expected outputs; read them before they are kept")

func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s, if it is right: go test -update\n--- want\n%s--- got\n%s", file, want, got)
	}
}

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
	pause func(n int64) <-chan time.Time // of the n-th decision; nil: none
	n     atomic.Int64
	busy  atomic.Int64
	most  atomic.Int64 // at once
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
	year := 365 * 24 * time.Hour.Seconds()
	ask := func(hits int64, o *limiter.RequestLimit) *Answer {
		t.Helper()
		a, err := c.Decide(t.Context(), &Request{Domain: "d", Descriptors: [][]descriptor.Entry{entries("k=v"), entries("week=x"), entries("free=x")}, Hits: hits, Limit: o})
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	a := ask(1, nil)
	if r := a.Statuses[0].Reset; r == nil || *r <= 0 || *r > year {
		t.Errorf("reset in %v", r)
	}
	want := &Answer{Code: "OK", Statuses: []Status{
		{Entries: []Entry{{"k", "v"}}, Code: "OK", Limit: &Limit{"yearly", 3, "year", 0}, Remaining: 2},
		{Entries: []Entry{{"week", "x"}}, Code: "OK", Limit: &Limit{"", 3, "week", 0}, Remaining: 2},
		{Entries: []Entry{{"free", "x"}}, Code: "OK", Remaining: 1<<32 - 1},
	}, Headers: []Header{{"RateLimit-Limit", "3"}, {"RateLimit-Remaining", "2"}, {"RateLimit-Reset", ""}}}
	if a.Metadata["decision"] == nil || a.Millis <= 0 {
		t.Errorf("metadata %v, took %v", a.Metadata, a.Millis)
	}
	a.Headers[2].Value, a.Metadata, a.Millis = "", nil, 0
	for i := range a.Statuses {
		a.Statuses[i].Reset = nil
	}
	if diff := cmp.Diff(want, a); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for _, step := range []struct {
		hits int64
		code string
		left uint32
	}{{2, "OK", 0}, {0, "OK", 0}, {1, OverLimit, 0}, {-3, "OK", 2}, {1 << 32, OverLimit, 0}} {
		if a := ask(step.hits, nil); a.Code != step.code || a.Statuses[0].Remaining != step.left {
			t.Errorf("%d hits: %s, %d left, want %s, %d", step.hits, a.Code, a.Statuses[0].Remaining, step.code, step.left)
		}
	}
	if a := ask(1, &limiter.RequestLimit{Requests: 9, Unit: int32(descriptor.Second), Multiplier: 20}); a.Statuses[0].Limit.Unit != "second" || a.Statuses[0].Limit.UnitMultiplier != 20 || a.Statuses[0].Remaining != 8 {
		t.Errorf("a limit of the request: %+v", a.Statuses[0])
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
		if diff := cmp.Diff(c.want, c.r.message(), protocmp.Transform()); diff != "" {
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

// A load that is stopped ends with what was answered.
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
		_, err := c.Decide(t.Context(), &Request{Domain: "d", Descriptors: [][]descriptor.Entry{entries("k=v")}, Hits: 1})
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
		"come together":        {Cert: empty},
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
	if _, err := client(t, Options{Server: addr}).Decide(t.Context(), request); err != nil {
		t.Fatal(err)
	}
	c := client(t, Options{Server: admin, Token: "some-token"})
	got, err := c.Peek(t.Context(), "d", entries("k=v"), nil)
	if err != nil {
		t.Fatal(err)
	}
	want := &Counters{Server: admin, Domain: "d", Entries: []Entry{{"k", "v"}}, Matched: true, Rule: &Rule{Path: "d.k", Name: "yearly"}, Counters: []Counter{{
		Name: "yearly", Words: "3 per year, fixed window", Key: "d|k=v|f31536000",
		State: explain.State{Used: 5, Capacity: 3},
	}}}
	state := &got.Counters[0].State
	if off := time.Until(state.ResetAt).Seconds() - state.Reset; state.WaitSeconds != state.Reset || state.Reset <= 0 || off > 20 || off < -20 {
		t.Errorf("%+v", state)
	}
	forget := func(s *explain.State) { s.WaitSeconds, s.Reset, s.ResetAt = 0, 0, time.Time{} }
	forget(state)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("Peek (-want +got):\n%s", diff)
	}
	if got, err = c.Reset(t.Context(), "d", entries("k=v"), nil); err != nil {
		t.Fatal(err)
	}
	want.Cleared = true
	forget(&got.Counters[0].State)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("Reset (-want +got):\n%s", diff)
	}
	if got, err = c.Peek(t.Context(), "d", entries("k=v"), nil); err != nil || got.Counters[0].State.Used != 0 || got.Counters[0].State.Never {
		t.Errorf("after the reset: %+v %v", got, err)
	}
	o := &limiter.RequestLimit{Requests: 0, Unit: int32(descriptor.Minute), Multiplier: 2}
	if got, err = c.Peek(t.Context(), "d", entries("k=v"), o); err != nil || !got.FromRequest || !got.Matched || got.Rule != nil || !got.Counters[0].State.Never {
		t.Errorf("a limit of the request: %+v %v", got, err)
	}
	if got, err = c.Peek(t.Context(), "nobody", entries("k=v"), o); err != nil || got.FromRequest || got.Matched || got.Reason == "" {
		t.Errorf("a domain without rules: %+v %v", got, err)
	}
	if got, err = c.Reset(t.Context(), "d", entries("free=v"), nil); err != nil || !got.Matched || got.Cleared {
		t.Errorf("unlimited: %+v %v", got, err)
	}
}

func TestTexts(t *testing.T) {
	reset, whole := 41.0, 30476.0
	answer := &Answer{
		Code: OverLimit, Millis: 1.234,
		Statuses: []Status{
			{Entries: []Entry{{"method", "GET"}, {"path", "/search\x1b[2J"}}, Code: OverLimit, Limit: &Limit{"search", 5, "unknown", 0}, Reset: &reset},
			{Entries: []Entry{{"to_number", "2061234567"}}, Code: "OK", Limit: &Limit{"", 5, "day", 0}, Remaining: 4, Reset: &whole},
			{Entries: []Entry{{"nobody", "knows"}}, Code: "OK"},
		},
		Headers:  []Header{{"RateLimit-Limit", "5"}, {"Retry-After", "41"}},
		Upstream: []Header{{"x-shadow", "yes"}},
		Metadata: map[string]any{"decision": map[string]any{"rule": "edge.<path>"}},
		Body:     "slow down",
	}
	summary := &Summary{
		Sent: 1000, OK: 500, OverLimit: 480, Failed: 20, Errors: map[string]int64{"UNAVAILABLE": 15, "DEADLINE_EXCEEDED": 5},
		Messages: map[string]string{"UNAVAILABLE": "connection refused", "DEADLINE_EXCEEDED": "too slow"},
		Seconds:  10.01, Rate: 99.9, P50: 0.431, P90: 1.2, P99: 20.1, Max: 5001,
	}
	counters := []*Counters{
		{Domain: "edge", Entries: []Entry{{"method", "GET"}}, Matched: true, Rule: &Rule{Path: "edge.method", Name: "short", File: "rules/edge.yaml", Line: 4, Column: 5, Shadow: true}, Counters: []Counter{
			{Name: "short", Words: "2 per second, fixed window", Key: "edge|method=GET|f1", State: explain.State{Used: 3, Capacity: 2, WaitSeconds: 0.5, Reset: 0.5}},
			{Name: "long", Words: "100 per day, fixed window", Key: "edge|method=GET|f86400", State: explain.State{Used: 3, Capacity: 100, Remaining: 97, Reset: 3600}},
		}},
		{Domain: "edge", Entries: []Entry{{"method", "PUT"}}, Matched: true, Cleared: true, FromRequest: true, Counters: []Counter{
			{Words: "9 per minute, fixed window", Key: "edge|method=PUT|f60", State: explain.State{Used: 9, Capacity: 9}},
		}},
		{Domain: "edge", Entries: []Entry{{"method", "OPTIONS"}}, Matched: true, Rule: &Rule{Path: "edge.method_OPTIONS", Unlimited: true}},
		{Domain: "edge", Entries: []Entry{{"nobody", "knows"}}, Reason: "nothing matches entry 1"},
	}
	var b strings.Builder
	for name, write := range map[string]func() error{
		"answer.txt":    func() error { return WriteAnswer(&b, answer, false) },
		"answer.json":   func() error { return WriteJSON(&b, answer) },
		"summary.txt":   func() error { return WriteSummary(&b, summary, false) },
		"summary.json":  func() error { return WriteJSON(&b, summary) },
		"counters.txt":  func() error { return WriteCounters(&b, counters, false) },
		"counters.json": func() error { return WriteJSON(&b, counters) },
	} {
		b.Reset()
		if err := write(); err != nil {
			t.Fatal(err)
		}
		golden(t, name, b.String())
		if strings.HasSuffix(name, ".json") && !json.Valid([]byte(b.String())) || strings.HasSuffix(name, ".txt") && strings.Contains(b.String(), "\x1b") {
			t.Errorf("%s:\n%s", name, b.String())
		}
	}
	b.Reset()
	if err := WriteAnswer(&b, answer, true); err != nil || !strings.Contains(b.String(), "\x1b[31mOVER_LIMIT\x1b[0m") {
		t.Errorf("%v %q", err, b.String())
	}
}
