package server

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/backend/memory"
	"github.com/ratelimitd/ratelimitd/internal/backend/redis"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
	"github.com/ratelimitd/ratelimitd/internal/platform/async"
	"github.com/ratelimitd/ratelimitd/internal/platform/endpoint"
	"github.com/ratelimitd/ratelimitd/internal/platform/intake"
	"github.com/ratelimitd/ratelimitd/internal/server/transport"
	"github.com/ratelimitd/ratelimitd/internal/testkit/racetest"
	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
	ratelimitdv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/v1"
)

// manyLimits are rules for every kind of difference between answers, in a store.
func manyLimits(t testing.TB, store backend.Store, settings limiter.Settings) *limiter.Limiter {
	t.Helper()
	rule := func(name string, l descriptor.Limit, r descriptor.Rule) descriptor.NodeSpec {
		l.Window = descriptor.Window{Unit: descriptor.Day}
		r.Limits = []descriptor.Limit{l}
		return descriptor.NodeSpec{Key: name, Rule: &r}
	}
	tree, err := descriptor.Compile([]descriptor.DomainSpec{{Name: "d", Children: []descriptor.NodeSpec{
		rule("plain", descriptor.Limit{Requests: 5_000_000_000}, descriptor.Rule{}),
		rule("three", descriptor.Limit{Requests: 3, Algorithm: descriptor.TokenBucket}, descriptor.Rule{}),
		rule("tokens", descriptor.Limit{Requests: 100, Reservations: &descriptor.Reservations{Cost: descriptor.Cost{{Name: "output", Millionths: 4_000_000}}}}, descriptor.Rule{}),
		rule("waits", descriptor.Limit{Requests: 7, Algorithm: descriptor.LeakyBucket, Burst: 9}, descriptor.Rule{}),
		rule("allow", descriptor.Limit{Requests: 3}, descriptor.Rule{RuleSettings: descriptor.RuleSettings{OnError: descriptor.OnErrorAllow}}),
		rule("deny", descriptor.Limit{Requests: 3}, descriptor.Rule{RuleSettings: descriptor.RuleSettings{OnError: descriptor.OnErrorDeny}}),
		{Key: "free", Rule: &descriptor.Rule{Unlimited: true}},
	}}}, descriptor.Options{})
	if err != nil {
		t.Fatal(err)
	}
	l := limiter.New(limiter.Options{Store: store})
	l.Swap(tree, settings)
	return l
}

func inMemory(t testing.TB) *limiter.Limiter {
	t.Helper()
	return manyLimits(t, memory.New(memory.Options{}), limiter.Settings{Headers: descriptor.HeadersIETF})
}

// stopped is a limiter at one point in time, so that two of them give the same answers.
type stopped struct{ *limiter.Limiter }

var stoppedAt = time.Date(2026, 3, 4, 5, 6, 7, 8_000, time.UTC)

func (s stopped) Start(ctx context.Context, _ time.Time, b *limiter.Batch, req *limiter.Request, d *limiter.Decision, done func(error)) (bool, error) {
	return s.Limiter.Start(ctx, stoppedAt, b, req, d, done)
}

// pending is a Decider that answers when answerAll is called, except for the domain "at once".
type pending struct {
	decider

	began chan struct{} // receives an element for each request that is not decided immediately

	mu      sync.Mutex
	answers []func()
}

func (p *pending) Start(ctx context.Context, now time.Time, _ *limiter.Batch, req *limiter.Request, d *limiter.Decision, done func(error)) (bool, error) {
	err := p.Decide(ctx, now, req, d)
	if req.Domain == "at once" {
		return true, err
	}
	p.mu.Lock()
	p.answers = append(p.answers, func() { done(err) })
	p.mu.Unlock()
	p.began <- struct{}{}
	return false, nil
}

func (p *pending) answerAll() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, answer := range p.answers {
		answer()
	}
	p.answers = nil
}

// decide returns a request with one descriptor.
func decide(key, value string, amount *ratelimitdv1.Amount) *ratelimitdv1.DecideRequest {
	return &ratelimitdv1.DecideRequest{Domain: "d", Amount: amount, Descriptors: []*ratelimitdv1.Descriptor{{Entries: []*ratelimitdv1.Entry{{Key: key, Value: value}}}}}
}

// mixed is a batch whose requests cover every kind of answer.
func mixed() []*ratelimitdv1.DecideRequest {
	several := decide("three", "b", hitsOf(2))
	several.Descriptors = append(several.Descriptors, descriptorOf("three", hitsOf(4)), descriptorOf("unknown", nil))
	many := decide("plain", "a", nil)
	many.Descriptors = append(many.Descriptors, many.Descriptors[0], many.Descriptors[0], many.Descriptors[0])
	return []*ratelimitdv1.DecideRequest{
		0:  decide("three", "a", nil),
		1:  decide("three", "c", hitsOf(4)), // never passes
		2:  {Descriptors: []*ratelimitdv1.Descriptor{descriptorOf("plain", nil)}},
		3:  {Domain: "d"},
		4:  decide("none", "a", nil),
		5:  {Domain: "other", Descriptors: []*ratelimitdv1.Descriptor{descriptorOf("plain", nil)}},
		6:  many,
		7:  decide("tokens", "a", &ratelimitdv1.Amount{Hits: 2, Units: map[string]uint64{"output": 3}}),
		8:  decide("tokens", "b", &ratelimitdv1.Amount{Units: map[string]uint64{"outptu": 3}}),
		9:  decide("plain", "b", &ratelimitdv1.Amount{}), // a peek
		10: several,
		11: decide("free", "a", nil),
		12: decide("waits", "a", hitsOf(3)),
		13: decide("waits", "b", hitsOf(30)),
		14: {},
	}
}

type batching struct {
	ratelimitdv1.DecisionServiceClient
	t *testing.T
}

// newDeciding is a client with a server.
func newDeciding(t *testing.T, opts Options) (*batching, *running) {
	t.Helper()
	if opts.Decider == nil {
		opts.Decider = inMemory(t)
	}
	r := start(t, opts)
	return &batching{ratelimitdv1.NewDecisionServiceClient(r.conn), t}, r
}

func (d *batching) batch(requests ...*ratelimitdv1.DecideRequest) []*ratelimitdv1.DecideResponse {
	d.t.Helper()
	got, err := d.DecideBatch(within(d.t), &ratelimitdv1.DecideBatchRequest{Requests: requests})
	if err != nil || len(got.GetResponses()) != len(requests) {
		d.t.Fatalf("%d answers to %d requests: %v", len(got.GetResponses()), len(requests), err)
	}
	return got.GetResponses()
}

func TestDecideBatch(t *testing.T) {
	d, _ := newDeciding(t, Options{Decider: stopped{inMemory(t)}, Requests: Requests{MaxDescriptors: 3}})
	got := d.batch(mixed()...)
	for i, want := range map[int]string{
		0:  `code:CODE_OK statuses:{code:CODE_OK rule:"d.three" limit:3 remaining:2 reset_after:{seconds:28800}} headers:{key:"RateLimit-Policy" value:"\"day\";q=3;w=86400"} headers:{key:"RateLimit" value:"\"day\";r=2;t=28800"}`,
		1:  `code:CODE_OVER_LIMIT statuses:{code:CODE_OVER_LIMIT rule:"d.three" limit:3 remaining:3 reset_after:{}} headers:{key:"RateLimit-Policy" value:"\"day\";q=3;w=86400;qu=\"hits\""} headers:{key:"RateLimit" value:"\"day\";r=3;t=0"}`,
		2:  `error:{code:3 message:"rate limit domain must not be empty"}`,
		3:  `error:{code:3 message:"rate limit descriptor list must not be empty"}`,
		4:  `code:CODE_OK statuses:{code:CODE_OK}`,
		5:  `code:CODE_OK statuses:{code:CODE_OK}`,
		6:  `error:{code:3 message:"descriptors: more than 3 in one request"}`,
		8:  `error:{code:3 message:"descriptors[0].amount: the cost of the rule d.tokens has no weight for \"outptu\"; it has weights for output"}`,
		14: `error:{code:3 message:"rate limit domain must not be empty"}`,
	} {
		if diff := cmp.Diff(answerOf(t, want), got[i], protocmp.Transform()); diff != "" {
			t.Errorf("request %d: %s", i, diff)
		}
	}
	if s := got[7].GetStatuses()[0]; s.GetRemaining() != 86 { // 2 and 3 × 4
		t.Errorf("units: %v", s)
	}
	if s := got[9].GetStatuses()[0]; s.GetRemaining() != 5_000_000_000 || s.GetLimit() != 5_000_000_000 {
		t.Errorf("a peek: %v", s)
	}
	if s := got[10].GetStatuses(); len(s) != 3 || got[10].GetCode() != codeOver || s[0].GetCode() != codeOK || s[0].GetRemaining() != 1 || s[1].GetCode() != codeOver || s[2].GetCode() != codeOK {
		t.Errorf("several descriptors: %v", got[10])
	}
	// Times are exact, while the reset is in whole seconds.
	day, free := 24*time.Hour, 3*24*time.Hour/7 // free: time until the bucket of 12 is empty again
	waiting := d.batch(decide("waits", "a", hitsOf(7)))[0]
	if wait := waiting.GetDelay().AsDuration(); waiting.GetCode() != codeOK || (wait-free).Abs() > time.Microsecond {
		t.Errorf("a request that waits: %v, want a delay of %v", waiting, free)
	}
	over := d.batch(decide("waits", "a", hitsOf(9)))[0].GetStatuses()[0]
	if over.GetCode() != codeOver || over.GetRetryAfter().AsDuration()%time.Second == 0 || over.GetResetAfter().AsDuration()%time.Second != 0 {
		t.Errorf("a request that would wait too long: %v", over)
	}
	d.batch(decide("three", "a", hitsOf(2)))
	if s := d.batch(decide("three", "a", nil))[0]; s.GetCode() != codeOver || s.GetStatuses()[0].GetRetryAfter().AsDuration() != day/3 {
		t.Errorf("after 3 hits in three requests: %v", s)
	}
	if s := d.batch(decide("three", "a", hitsOf(0)))[0]; s.GetCode() != codeOK || s.GetStatuses()[0].GetRemaining() != 0 {
		t.Errorf("a peek asks for nothing, so it passes when nothing is left: %v", s)
	}
}

func answerOf(t *testing.T, text string) *ratelimitdv1.DecideResponse {
	t.Helper()
	var m ratelimitdv1.DecideResponse
	if err := prototext.Unmarshal([]byte(text), &m); err != nil {
		t.Fatal(err)
	}
	return &m
}

// In a batch, each request gets the same answer as in a separate call, and a failed request the same error.
func TestBatchAnswersLikeSingleRequests(t *testing.T) {
	opts := func() Options {
		return Options{Decider: stopped{inMemory(t)}, Requests: Requests{MaxDescriptors: 3}}
	}
	together, _ := newDeciding(t, opts())
	alone, r := newDeciding(t, opts())
	for round := range 3 {
		for i, got := range together.batch(mixed()...) {
			if diff := cmp.Diff(alone.batch(mixed()[i])[0], got, protocmp.Transform()); diff != "" {
				t.Errorf("round %d, request %d: %s", round, i, diff)
			}
			// The messages for entries and domains are the same in both services.
			data, err := proto.Marshal(&ratelimitdv1.DecideRequest{Domain: mixed()[i].GetDomain(), Descriptors: withoutAmounts(mixed()[i].GetDescriptors())})
			if err != nil {
				t.Fatal(err)
			}
			if st := status.Convert(sendRaw(t, r, data)); i != 8 && (int32(st.Code()) != got.GetError().GetCode() || st.Message() != got.GetError().GetMessage()) {
				t.Errorf("request %d: %v, a call of its own: %v", i, got.GetError(), st)
			}
		}
		alone, r = newDeciding(t, opts()) // drops the counts of these calls
		for range round + 1 {
			for _, req := range mixed() {
				alone.batch(req)
			}
		}
	}
}

func withoutAmounts(all []*ratelimitdv1.Descriptor) (plain []*ratelimitdv1.Descriptor) {
	for _, d := range all {
		plain = append(plain, &ratelimitdv1.Descriptor{Entries: d.GetEntries()})
	}
	return plain
}

// hundred are requests for separate counters.
func hundred(n int) (all []*ratelimitdv1.DecideRequest) {
	for i := range n {
		all = append(all, decide("three", fmt.Sprint("v", i), hitsOf(uint64(1+i%5))))
	}
	return all
}

func TestSizeOfBatches(t *testing.T) {
	d, _ := newDeciding(t, Options{Requests: Requests{MaxEntries: 2, MaxDescriptors: 50}})
	for i, got := range d.batch(hundred(100)...) {
		want := codeOK
		if 1+i%5 > 3 {
			want = codeOver
		}
		if got.GetCode() != want {
			t.Errorf("request %d: %v", i, got)
		}
	}
	wide := decide("three", "w", nil)
	wide.Descriptors[0].Entries = append(wide.Descriptors[0].Entries, wide.Descriptors[0].Entries[0])
	for range 49 {
		wide.Descriptors = append(wide.Descriptors, wide.Descriptors[0])
	}
	d.batch(wide) // 100 entries
	for _, tt := range []struct {
		name     string
		requests []*ratelimitdv1.DecideRequest
		says     string
	}{
		{"none", nil, "at least one"},
		{"101", hundred(101), "requests: more than 100 in one batch"},
		{"entries", []*ratelimitdv1.DecideRequest{wide, decide("three", "w", nil)}, "requests: more than 100 entries in one batch"},
	} {
		_, err := d.DecideBatch(within(t), &ratelimitdv1.DecideBatchRequest{Requests: tt.requests})
		if s := status.Convert(err); s.Code() != codes.InvalidArgument || !strings.Contains(s.Message(), tt.says) {
			t.Errorf("%s: %v, want %q", tt.name, err, tt.says)
		}
	}
	if got := d.batch(decide("three", "v0", hitsOf(0))); got[0].GetStatuses()[0].GetRemaining() != 2 {
		t.Errorf("a batch that was rejected counted: %v", got)
	}
}

// Each request of a batch counts as a call in flight. Otherwise batches could cause a hundred times the work of calls.
func TestRequestsOfBatchesCountAsCalls(t *testing.T) {
	registry := prometheus.NewRegistry()
	held := &pending{decider: passAll, began: make(chan struct{}, 1000)}
	r := startWith(t, endpoint.Options{Metrics: registry}, Options{Calls: Calls{Max: 100}, Decider: held})
	d := ratelimitdv1.NewDecisionServiceClient(r.conn)
	first := make(chan error, 1)
	go func() {
		_, err := d.DecideBatch(within(t), &ratelimitdv1.DecideBatchRequest{Requests: hundred(30)})
		first <- err
	}()
	for range 30 {
		<-held.began
	}
	if n := r.calls.InFlight(); n != 30 {
		t.Errorf("%d calls in flight", n)
	}
	_, err := d.DecideBatch(within(t), &ratelimitdv1.DecideBatchRequest{Requests: hundred(71)})
	if s := status.Convert(err); s.Code() != codes.ResourceExhausted || s.Message() != "too many calls in flight" {
		t.Errorf("%v", err)
	}
	held.answerAll()
	if err := <-first; err != nil {
		t.Error(err)
	}
	if n := r.calls.InFlight(); n != 0 {
		t.Errorf("%d calls in flight", n)
	}
	checkMetrics(t, registry, map[string]float64{
		`ratelimitd_requests_total{code=OK transport=grpc}`:                1,
		`ratelimitd_requests_total{code=ResourceExhausted transport=grpc}`: 1,
	})
}

// A batch with many descriptors counts as more calls: a few compressed bytes can encode 25,600 descriptors.
func TestDescriptorsOfBatchesCountAsCalls(t *testing.T) {
	for name, opts := range map[string][]grpc.CallOption{
		"usual":                {},
		"another content type": {grpc.ForceCodecV2(otherName{encoding.GetCodecV2("proto")})},
	} {
		t.Run(name, func(t *testing.T) { descriptorsCountAsCalls(t, opts) })
	}
}

// otherName is a codec whose content type has another subtype.
type otherName struct{ encoding.CodecV2 }

func (otherName) Name() string { return "x" }

func descriptorsCountAsCalls(t *testing.T, opts []grpc.CallOption) {
	held := &pending{decider: passAll, began: make(chan struct{}, 1000)}
	r := start(t, Options{Calls: Calls{Max: 100}, Decider: held})
	d := ratelimitdv1.NewDecisionServiceClient(r.conn)
	withDescriptors := func(n int) *ratelimitdv1.DecideRequest {
		one := hundred(1)[0]
		for len(one.Descriptors) < n {
			one.Descriptors = append(one.Descriptors, one.Descriptors[0])
		}
		return one
	}
	first := make(chan error, 1)
	go func() {
		_, err := d.DecideBatch(within(t), &ratelimitdv1.DecideBatchRequest{Requests: []*ratelimitdv1.DecideRequest{
			withDescriptors(1), withDescriptors(16), withDescriptors(33),
		}}, opts...)
		first <- err
	}()
	for range 3 {
		<-held.began
	}
	if n := r.calls.InFlight(); n != 5 {
		t.Errorf("%d calls in flight, want 1 + 1 + 3", n)
	}
	_, err := d.DecideBatch(within(t), &ratelimitdv1.DecideBatchRequest{Requests: []*ratelimitdv1.DecideRequest{
		withDescriptors(256), withDescriptors(256), withDescriptors(256), withDescriptors(256), withDescriptors(256), withDescriptors(256),
	}}, opts...)
	if status.Code(err) != codes.ResourceExhausted {
		t.Errorf("%v", err)
	}
	held.answerAll()
	if err := <-first; err != nil {
		t.Error(err)
	}
	if n := r.calls.InFlight(); n != 0 {
		t.Errorf("%d calls in flight", n)
	}
}

// A batch counts while it is decoded: when there are too many calls, its rest uses no memory.
func TestRejectedBatchIsNotDecoded(t *testing.T) {
	counted, err := intake.NewMetrics(nil)
	if err != nil {
		t.Fatal(err)
	}
	calls := intake.NewCalls(100, counted)
	bounds := Requests{MaxDescriptors: 256, MaxEntries: 256, MaxTextBytes: 100}
	reader, m := &decisions{bounds}, describeDecisions(new(transport.Services), &deciding{bounds: bounds})
	long, wide := hundred(1)[0], hundred(1)[0]
	for len(long.Descriptors) < 256 {
		long.Descriptors = append(long.Descriptors, long.Descriptors[0])
	}
	for d := wide.Descriptors[0]; len(d.Entries) < 256; {
		d.Entries = append(d.Entries, d.Entries[0])
	}
	wide.Descriptors = append(wide.Descriptors, wide.Descriptors[0], wide.Descriptors[0], wide.Descriptors[0])
	for name, request := range map[string]*ratelimitdv1.DecideRequest{"descriptors": long, "entries": wide} {
		t.Run(name, func(t *testing.T) {
			var all ratelimitdv1.DecideBatchRequest
			for range maxBatch {
				all.Requests = append(all.Requests, request)
			}
			data := encode(t, &all)
			c := m.pool.Get().(*rateLimitCall)
			c.method, c.size = m, len(data)
			inFlight, ok := calls.Begin(nil)
			if !ok {
				t.Fatal("no place is free")
			}
			more := func(n int) bool { return calls.More(&inFlight, n) }
			if err := reader.readCounted(c, data, string(data), more); err != errTooManyCalls { //nolint:errorlint // it is returned as it is
				t.Errorf("%v", err)
			}
			if n, in := len(c.batch), calls.InFlight(); n != 7 || in != 96 { // each counts as 16 calls
				t.Errorf("%d requests were decoded, and %d calls are in flight", n, in)
			}
			calls.End(inFlight)
			c.release()
			if n := calls.InFlight(); n != 0 {
				t.Errorf("%d calls in flight at the end", n)
			}
		})
	}
}

func inRedis(t *testing.T, stored *redistest.Server) *limiter.Limiter {
	t.Helper()
	store := redis.New(redis.Options{Client: stored.Client(t), Timeout: 2 * time.Second})
	t.Cleanup(func() { _ = store.Close() })
	return manyLimits(t, store, limiter.Settings{})
}

// The requests of a batch reach Redis together, and have the same answers as in memory.
func TestBatchInRedis(t *testing.T) {
	stored := redistest.Start(t)
	d, _ := newDeciding(t, Options{Decider: inRedis(t, stored)})
	m, _ := newDeciding(t, Options{})
	calls := func() int { return stored.Calls(t, "evalsha") + stored.Calls(t, "eval") }
	began := time.Now()
	for before := calls(); ; before = calls() { // loads the script into Redis, and lets the store detect a single server
		d.batch(hundred(3)...)
		m.batch(hundred(3)...)
		if calls()-before < 3 {
			break
		}
		if time.Since(began) > 20*time.Second {
			t.Fatal("each request has a call of its own")
		}
	}
	before := calls()
	got := d.batch(hundred(100)...)
	if n := calls() - before; n > 4 { // 64 counters in one trip, and the rest at the same time
		t.Errorf("a batch of 100 requests made %d calls of Redis", n)
	}
	for i, want := range m.batch(hundred(100)...) {
		if g, w := got[i].GetStatuses()[0], want.GetStatuses()[0]; g.GetCode() != w.GetCode() || g.GetRemaining() != w.GetRemaining() || g.GetDegraded() {
			t.Errorf("request %d: %v, memory %v", i, g, w)
		}
	}
	for i, want := range m.batch(mixed()...) {
		if got := d.batch(mixed()[i])[0]; got.GetCode() != want.GetCode() || got.GetError().GetMessage() != want.GetError().GetMessage() {
			t.Errorf("request %d: %v, memory %v", i, got, want)
		}
	}
}

// Without Redis, on_error decides about each request.
func TestBatchWithoutRedis(t *testing.T) {
	stored := redistest.Start(t)
	d, r := newDeciding(t, Options{Decider: inRedis(t, stored)})
	d.batch(decide("three", "a", nil))
	stored.Kill(t)
	got := d.batch(decide("three", "a", nil), decide("allow", "a", nil), decide("deny", "a", nil), decide("none", "a", nil), decide("free", "a", nil), &ratelimitdv1.DecideRequest{})
	if e := got[0].GetError(); codes.Code(e.GetCode()) != codes.Unavailable || !strings.Contains(e.GetMessage(), "Redis") || got[0].GetCode() != 0 || got[0].GetStatuses() != nil {
		t.Errorf("on_error: error: %v", got[0])
	}
	for i, want := range map[int]ratelimitdv1.Code{1: codeOK, 2: codeOver} {
		if s := got[i].GetStatuses(); got[i].GetCode() != want || got[i].GetError() != nil || len(s) != 1 || !s[0].GetDegraded() {
			t.Errorf("request %d: %v, want %v", i, got[i], want)
		}
	}
	for _, i := range []int{3, 4} {
		if s := got[i].GetStatuses(); got[i].GetCode() != codeOK || len(s) != 1 || s[0].GetDegraded() {
			t.Errorf("request %d: %v", i, got[i])
		}
	}
	if e := got[5].GetError(); codes.Code(e.GetCode()) != codes.InvalidArgument {
		t.Errorf("%v", e)
	}
	if n := r.calls.InFlight(); n != 0 {
		t.Errorf("%d calls in flight", n)
	}
}

// A request that is not decided yet delays its batch, and no other call of its connection.
func TestSlowRequestHoldsUpItsBatchAlone(t *testing.T) {
	held := &pending{decider: passAll, began: make(chan struct{}, 1)}
	d, r := newDeciding(t, Options{Decider: held})
	first := make(chan *ratelimitdv1.DecideBatchResponse, 1)
	go func() {
		slow := decide("k", "v", nil)
		quick := decide("k", "v", nil)
		quick.Domain = "at once"
		got, err := d.DecideBatch(within(t), &ratelimitdv1.DecideBatchRequest{Requests: []*ratelimitdv1.DecideRequest{quick, slow, quick}})
		if err != nil {
			t.Error(err)
		}
		first <- got
	}()
	<-held.began
	quick := smallRequest()
	quick.Domain = "at once"
	if _, err := r.rateLimit().ShouldRateLimit(within(t), quick); err != nil {
		t.Error(err)
	}
	select {
	case got := <-first:
		t.Errorf("answered before all requests were decided: %v", got)
	default:
	}
	held.answerAll()
	if got := <-first; len(got.GetResponses()) != 3 || got.GetResponses()[1].GetCode() != codeOK {
		t.Errorf("%v", got)
	}
}

// A panic fails only its own request.
func TestPanicInABatch(t *testing.T) {
	for name, later := range map[string]bool{"at once": false, "later": true} {
		t.Run(name, func(t *testing.T) {
			bombs := decider(func(ctx context.Context, now time.Time, req *limiter.Request, d *limiter.Decision) error {
				if req.Domain == "bomb" {
					panic("kaboom")
				}
				return passAll(ctx, now, req, d)
			})
			var by Decider = bombs
			if !later {
				by = atOnce{bombs}
			}
			d, r := newDeciding(t, Options{Decider: by})
			bomb := decide("k", "v", nil)
			bomb.Domain = "bomb"
			for range 3 {
				got := d.batch(decide("k", "v", nil), bomb, decide("k", "v", nil))
				if got[0].GetCode() != codeOK || codes.Code(got[1].GetError().GetCode()) != codes.Internal || got[2].GetCode() != codeOK {
					t.Errorf("%v", got)
				}
			}
			if n := strings.Count(r.log.String(), "kaboom"); n != 3 {
				t.Errorf("logged %d times:\n%s", n, r.log)
			}
		})
	}
}

// atOnce is a Decider that decides immediately.
type atOnce struct{ decider }

func (a atOnce) Start(ctx context.Context, now time.Time, _ *limiter.Batch, req *limiter.Request, d *limiter.Decision, _ func(error)) (bool, error) {
	return true, a.Decide(ctx, now, req, d)
}

func TestTracerSeesTheRequestsOfABatch(t *testing.T) {
	tracer := newRecorder()
	registry := prometheus.NewRegistry()
	r := startWith(t, endpoint.Options{Metrics: registry}, Options{Decider: inMemory(t), Tracer: tracer})
	d := ratelimitdv1.NewDecisionServiceClient(r.conn)
	ctx := metadata.AppendToOutgoingContext(within(t), "traceparent", "yes")
	for i, ctx := range []context.Context{within(t), ctx} {
		if _, err := d.DecideBatch(ctx, &ratelimitdv1.DecideBatchRequest{Requests: hundred(20)}); err != nil {
			t.Fatal(err)
		}
		if n, want := len(tracer.spans.Ended()), []int{0, 20}[i]; n != want {
			t.Errorf("%d spans, want %d", n, want)
		}
	}
	for _, span := range tracer.spans.Ended() {
		if span.Name() != "ratelimitd.v1.DecisionService/DecideBatch" {
			t.Errorf("span %s", span.Name())
		}
	}
	checkMetrics(t, registry, map[string]float64{`ratelimitd_requests_total{code=OK transport=grpc}`: 2})
}

// Bytes that are not a batch fail the call, and count nothing.
func TestMalformedBatches(t *testing.T) {
	d, r := newDeciding(t, Options{})
	good, left := encode(t, decide("plain", "m", nil)), uint64(5_000_000_000)
	for name, data := range wireCases(t) {
		message := join(field(1, good), field(1, data))
		want := codes.InvalidArgument
		if proto.Unmarshal(message, new(ratelimitdv1.DecideBatchRequest)) == nil {
			want = codes.OK
			left--
		}
		var out []byte
		err := r.conn.Invoke(within(t), ratelimitdv1.DecisionService_DecideBatch_FullMethodName, &message, &out, grpc.ForceCodec(rawBytes{}))
		if status.Code(err) != want {
			t.Errorf("%s: %v, want %v", name, err, want)
		}
		if got := d.batch(decide("plain", "m", hitsOf(0)))[0].GetStatuses()[0]; got.GetRemaining() != left {
			t.Errorf("%s: %d are left, want %d", name, got.GetRemaining(), left)
		}
	}
}

// alwaysRoom counts a call as more calls, without a bound.
func alwaysRoom(int) bool { return true }

// decideHere decides a decoded call, and waits for the result.
func (m *method) decideHere(b *limiter.Batch, c *rateLimitCall) error {
	w := async.NewWaiter()
	decided, err := m.decide(context.Background(), b, c, w.Done)
	b.Send()
	return limiter.Ended(w, decided, err)
}

// In steady state a batch costs the string of its message. The race detector empties pools at random, so allocations
// cannot be measured with it.
func TestBatchAllocatesOneString(t *testing.T) {
	decider := manyLimits(t, memory.New(memory.Options{}), limiter.Settings{})
	m := describeDecisions(new(transport.Services), &deciding{decider: decider, bounds: unbounded})
	reader, together := &decisions{unbounded}, new(limiter.Batch)
	data := encode(t, &ratelimitdv1.DecideBatchRequest{Requests: hundred(100)})
	if n := testing.AllocsPerRun(100, func() {
		c := m.pool.Get().(*rateLimitCall)
		c.method, c.size, c.start = m, len(data), stoppedAt
		if err := reader.readCounted(c, data, string(data), alwaysRoom); err != nil {
			t.Fatal(err)
		}
		if err := m.decideHere(together, c); err != nil {
			t.Fatal(err)
		}
		if err := c.encode(); err != nil {
			t.Fatal(err)
		}
		c.release()
	}); n > 1 && !racetest.On {
		t.Errorf("%v allocations for a batch of 100 requests", n)
	}
}

// FuzzDecideBatch compares decoding and encoding with the generated code.
func FuzzDecideBatch(f *testing.F) {
	for _, all := range [][]*ratelimitdv1.DecideRequest{nil, {{}}, mixed(), hundred(2)} {
		f.Add(encode(f, &ratelimitdv1.DecideBatchRequest{Requests: all}))
	}
	for _, data := range wireCases(f) {
		f.Add(join(field(1, data), field(9, "?"), field(1, data)))
		f.Add(data)
	}
	l := inMemory(f)
	bounds := Requests{MaxDescriptors: 256, MaxEntries: 256, MaxTextBytes: 64 << 10}
	reader, m := &decisions{bounds}, describeDecisions(new(transport.Services), &deciding{decider: l, bounds: bounds})
	f.Fuzz(func(t *testing.T, data []byte) {
		var want ratelimitdv1.DecideBatchRequest
		wantErr := proto.Unmarshal(data, &want)
		c := m.pool.Get().(*rateLimitCall)
		c.method, c.size, c.start = m, len(data), stoppedAt
		defer c.release()
		err := reader.readCounted(c, data, string(data), alwaysRoom)
		if err != nil && strings.Contains(err.Error(), "requests: ") {
			return // a bound that the generated code does not have
		}
		for _, r := range c.batch {
			if r.err != nil {
				return // likewise
			}
		}
		if (err == nil) != (wantErr == nil) {
			t.Fatalf("%v, want %v", err, wantErr)
		}
		if err != nil {
			return
		}
		if len(c.batch) != len(want.GetRequests()) {
			t.Fatalf("%d requests, want %d", len(c.batch), len(want.GetRequests()))
		}
		for i, w := range want.GetRequests() {
			checkDecideRequest(t, &c.batch[i].request, w)
		}
		_ = m.decideHere(new(limiter.Batch), c)
		if err := c.encode(); err != nil {
			t.Fatal(err)
		}
		var got ratelimitdv1.DecideBatchResponse
		if err := proto.Unmarshal(c.reply, &got); err != nil || len(got.GetResponses()) != len(c.batch) {
			t.Fatalf("%d answers: %v", len(got.GetResponses()), err)
		}
		for i, r := range got.GetResponses() {
			if (r.GetError() == nil) != (r.GetCode() != 0) || r.GetError() == nil && len(r.GetStatuses()) != len(want.GetRequests()[i].GetDescriptors()) {
				t.Errorf("request %d: %v", i, r)
			}
		}
	})
}

func checkDecideRequest(t *testing.T, got *limiter.Request, want *ratelimitdv1.DecideRequest) {
	t.Helper()
	if got.Domain != want.GetDomain() || got.Reservation != nil || len(got.Descriptors) != len(want.GetDescriptors()) {
		t.Fatalf("%+v, want %v", got, want)
	}
	for i, w := range want.GetDescriptors() {
		amount := w.GetAmount()
		if amount == nil {
			amount = want.GetAmount()
		}
		if amount == nil {
			amount = hitsOf(1)
		}
		g := got.Descriptors[i]
		if !g.HasHits || g.Hits != amount.GetHits() || len(g.Amounts) != len(amount.GetUnits()) || len(g.Entries) != len(w.GetEntries()) {
			t.Fatalf("%+v, want %v and %v", g, w, amount)
		}
		for j, e := range w.GetEntries() {
			if g.Entries[j] != (descriptor.Entry{Key: e.GetKey(), Value: e.GetValue()}) {
				t.Errorf("%+v, want %v", g.Entries[j], e)
			}
		}
		for _, a := range g.Amounts {
			if n, ok := amount.GetUnits()[a.Name]; !ok || n != a.Units {
				t.Errorf("%+v, want %v", a, amount)
			}
		}
	}
}

// Submessages of every size around the sizes at which the length needs another byte.
func TestAppendNested(t *testing.T) {
	for _, size := range []int{0, 1, 126, 127, 128, 129, 16_383, 16_384, 2_097_151, 2_097_152} {
		body := []byte(strings.Repeat("x", size))
		got := appendNested([]byte("before"), 3, func(b []byte) []byte { return append(b, body...) })
		want := protowire.AppendBytes(protowire.AppendTag([]byte("before"), 3, protowire.BytesType), body)
		if string(got) != string(want) {
			t.Errorf("%d bytes: % x, want % x", size, got[:12], want[:12])
		}
	}
}
