package server

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	quotav3 "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/lending/quota"
	"github.com/ratelimitd/ratelimitd/internal/lending/quota/assigner"
	"github.com/ratelimitd/ratelimitd/internal/platform/endpoint"
	"github.com/ratelimitd/ratelimitd/internal/platform/intake"
	"github.com/ratelimitd/ratelimitd/internal/testkit/tlstest"
)

const quotaPath = quotav3.RateLimitQuotaService_StreamRateLimitQuotas_FullMethodName

// shares answers each usage with an assignment whose tokens are the allowed requests.
type shares struct {
	report func(domain string, all []assigner.Usage) // called first; may be nil
	repeat int                                       // actions for each usage; 0 means one

	mu      sync.Mutex
	streams map[*share]bool
	clients []string
	closed  int
}

type share struct {
	of    *shares
	mu    sync.Mutex
	ready []assigner.Action
	more  chan struct{}
	sent  int
	ended bool
}

func (s *shares) Open(client string) QuotaStream {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.streams == nil {
		s.streams = make(map[*share]bool)
	}
	one := &share{of: s, more: make(chan struct{}, 1)}
	s.streams[one] = true
	s.clients = append(s.clients, client)
	return one
}

func (s *share) Report(_ time.Time, domain string, all []assigner.Usage) {
	if s.of.report != nil {
		s.of.report(domain, all)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		panic("a report after Close")
	}
	for _, u := range all {
		var id []descriptor.Entry
		for _, e := range u.ID {
			id = append(id, descriptor.Entry{Key: strings.Clone(e.Key), Value: strings.Clone(e.Value)})
		}
		for range max(1, s.of.repeat) {
			s.ready = append(s.ready, assigner.Action{ID: id, Assignment: quota.Assignment{
				Kind: quota.Tokens, TTL: 15 * time.Second, MaxTokens: uint32(u.Allowed), Fill: uint32(u.Denied), Interval: time.Second,
			}})
		}
	}
	select {
	case s.more <- struct{}{}:
	default: // Next has not seen the last one yet
	}
}

func (s *share) Next(ctx context.Context, all []assigner.Action) ([]assigner.Action, error) {
	for {
		s.mu.Lock()
		n := min(len(s.ready), maxAnswerActions)
		all = append(all, s.ready[:n]...)
		s.ready = s.ready[n:]
		s.mu.Unlock()
		if n > 0 {
			return all, nil
		}
		select {
		case <-s.more:
		case <-ctx.Done():
			return all, ctx.Err()
		}
	}
}

func (s *share) Sent(time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sent++
}

func (s *share) Close(time.Time) {
	s.mu.Lock()
	s.ended = true
	s.mu.Unlock()
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	delete(s.of.streams, s)
	s.of.closed++
}

func (s *shares) open() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.streams)
}

// soon waits until a condition holds.
func soon(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !holds(); {
		if time.Now().After(deadline) {
			t.Fatal("not in time: " + what)
		}
		<-time.After(time.Millisecond)
	}
}

type quotaClient = grpc.BidiStreamingClient[quotav3.RateLimitQuotaUsageReports, quotav3.RateLimitQuotaResponse]

func openQuota(t testing.TB, conn *grpc.ClientConn, opts ...grpc.CallOption) quotaClient {
	t.Helper()
	s, err := quotav3.NewRateLimitQuotaServiceClient(conn).StreamRateLimitQuotas(within(t), opts...)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// exchangeQuota sends usages and returns the actions for them.
func exchangeQuota(t testing.TB, s quotaClient, domain string, all ...*bucketUsage) []*bucketAction {
	t.Helper()
	if err := s.Send(&usageReports{Domain: domain, BucketQuotaUsages: all}); err != nil {
		t.Fatal(err)
	}
	var got []*bucketAction
	for len(got) < len(all) {
		m, err := s.Recv()
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, m.GetBucketAction()...)
	}
	return got
}

// rejectedQuota sends a message and returns the error that ends the stream.
func rejectedQuota(t testing.TB, s quotaClient, m *usageReports) *status.Status {
	t.Helper()
	_ = s.Send(m)
	return endOf(t, s)
}

func endOf(t testing.TB, s quotaClient) *status.Status {
	t.Helper()
	for {
		if _, err := s.Recv(); err != nil {
			return status.Convert(err)
		}
	}
}

func TestQuotaStream(t *testing.T) {
	registry := prometheus.NewRegistry()
	q := &shares{}
	r := startWith(t, endpoint.Options{Metrics: registry}, Options{Quota: q})
	s := openQuota(t, r.conn)
	for i := range 50 {
		got := exchangeQuota(t, s, "edge", bucket("name", fmt.Sprint(i), "group", "a"), bucket())
		if id := got[0].GetBucketId().GetBucket(); len(got) != 2 || len(id) != 2 || id["name"] != fmt.Sprint(i) || got[0].GetQuotaAssignmentAction().GetRateLimitStrategy().GetTokenBucket().GetMaxTokens() != 3 {
			t.Fatal(got)
		}
	}
	exchangeQuota(t, s, "", bucket()) // the domain is known
	if err := s.CloseSend(); err != nil {
		t.Fatal(err)
	}
	if st := endOf(t, s); st.Message() != "EOF" { // no error
		t.Error(st)
	}
	soon(t, "the stream is closed", func() bool { return q.open() == 0 && q.closed == 1 })
	if host, _, err := net.SplitHostPort(q.clients[0]); err != nil || host != "127.0.0.1" {
		t.Errorf("the client is %q, %v", q.clients[0], err)
	}
	checkMetrics(t, registry, map[string]float64{
		`ratelimitd_streams{kind=quota}`: 0, `ratelimitd_calls_in_flight`: 0,
	})
}

// Tools find the service by reflection.
func TestQuotaServiceIsDescribed(t *testing.T) {
	r := start(t, Options{Reflection: true, Quota: &shares{}})
	found := reflect(t, r.conn)
	if all := found.services(); !slices.Contains(all, "envoy.service.rate_limit_quota.v3.RateLimitQuotaService") {
		t.Error(all)
	}
	found.describes("envoy.service.rate_limit_quota.v3.RateLimitQuotaService")
}

func TestQuotaStreamOverTLS(t *testing.T) {
	ca := tlstest.NewAuthority(t, "ca")
	pair := ca.Issue(t, "rl.test")
	cert, err := tls.X509KeyPair(pair.Cert, pair.Key)
	if err != nil {
		t.Fatal(err)
	}
	r := start(t, Options{Quota: &shares{}, Listen: Listen{Credentials: credentials.NewServerTLSFromCert(&cert)}})
	s := openQuota(t, dial(t, r.GRPCAddr, grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{RootCAs: ca.Pool(), ServerName: "rl.test"}))))
	exchangeQuota(t, s, "edge", bucket("a", "b"))
	many := make([]*bucketUsage, 20_000)
	for i := range many {
		many[i] = bucket("name", fmt.Sprint(i), "long", strings.Repeat("x", 100))
	}
	exchangeQuota(t, s, "edge", many...)
}

func TestNoQuotaStreams(t *testing.T) {
	r := start(t, Options{})
	if st := rejectedQuota(t, openQuota(t, r.conn), &usageReports{Domain: "edge"}); st.Code() != codes.Unimplemented {
		t.Error(st)
	}
}

func TestQuotaStreamIsEndedByBadMessages(t *testing.T) {
	registry := prometheus.NewRegistry()
	q := &shares{}
	r := startWith(t, endpoint.Options{Metrics: registry}, Options{Quota: q})
	other := openQuota(t, r.conn)
	exchangeQuota(t, other, "edge", bucket())
	for name, tt := range map[string]struct {
		before, bad *usageReports
		want        codes.Code
	}{
		"no domain":        {nil, &usageReports{BucketQuotaUsages: []*bucketUsage{bucket()}}, codes.InvalidArgument},
		"a long domain":    {nil, &usageReports{Domain: strings.Repeat("x", 70_000)}, codes.InvalidArgument},
		"another domain":   {&usageReports{Domain: "edge"}, &usageReports{Domain: "other"}, codes.InvalidArgument},
		"too many usages":  {nil, &usageReports{Domain: "edge", BucketQuotaUsages: make([]*bucketUsage, maxReportUsages+1)}, codes.ResourceExhausted},
		"too long message": {nil, &usageReports{Domain: strings.Repeat("x", 17<<20)}, codes.ResourceExhausted},
	} {
		t.Run(name, func(t *testing.T) {
			for i := range tt.bad.GetBucketQuotaUsages() {
				if tt.bad.BucketQuotaUsages[i] == nil {
					tt.bad.BucketQuotaUsages[i] = &bucketUsage{}
				}
			}
			s := openQuota(t, r.conn)
			if tt.before != nil {
				if err := s.Send(tt.before); err != nil {
					t.Fatal(err)
				}
			}
			if st := rejectedQuota(t, s, tt.bad); st.Code() != tt.want {
				t.Error(st)
			}
		})
	}
	c := rawDial(t, r.GRPCAddr)
	if err := c.open(quotaPath); err != nil {
		t.Fatal(err)
	}
	if err := c.send(3, []byte{0x12, 0x05, 0x01}, false); err != nil {
		t.Fatal(err)
	}
	skipping := openQuota(t, r.conn)
	if err := skipping.Send(&usageReports{Domain: "edge", BucketQuotaUsages: []*bucketUsage{bucket("long", strings.Repeat("x", 70_000)), bucket("a", "b")}}); err != nil {
		t.Fatal(err)
	}
	if m, err := skipping.Recv(); err != nil || len(m.GetBucketAction()) != 1 || m.GetBucketAction()[0].GetBucketId().GetBucket()["a"] != "b" {
		t.Error("a bucket id that is too long:", m, err)
	}
	soon(t, "only two streams are left", func() bool { return q.open() == 2 })
	exchangeQuota(t, other, "edge", bucket())
}

// A report has a separate bound. The bounds of other messages do not change.
func TestLargeReport(t *testing.T) {
	q := &shares{repeat: 0}
	var usages int
	q.report = func(_ string, all []assigner.Usage) { usages += len(all) }
	r := start(t, Options{Quota: q})
	large := &usageReports{Domain: "edge"}
	for i := range maxReportUsages {
		large.BucketQuotaUsages = append(large.BucketQuotaUsages, bucket("name", fmt.Sprintf("bucket-%d", i), "path", "/some/path/of/a/request", "group", "customers"))
	}
	t.Logf("%d bytes", proto.Size(large))
	// with the race detector a report takes seconds
	s, err := quotav3.NewRateLimitQuotaServiceClient(r.conn).StreamRateLimitQuotas(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	const reports = 2 // together more than the bytes that a connection may hold
	for range reports {
		began := time.Now()
		exchangeQuota(t, s, "edge", large.GetBucketQuotaUsages()...)
		t.Logf("%v for the report and its answers", time.Since(began))
	}
	if usages != reports*maxReportUsages {
		t.Errorf("%d usages", usages)
	}
	req := smallRequest()
	req.Domain = strings.Repeat("x", 5<<20)
	if _, err := r.rateLimit().ShouldRateLimit(within(t), req); status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), "larger than max") {
		t.Error("another message:", err)
	}
}

// Messages that a stream has sent do not count towards the memory of its connection any longer.
func TestQuotaStreamMaySendForever(t *testing.T) {
	q := &shares{}
	r := start(t, Options{Quota: q, Connections: Connections{MaxBytes: 1 << 20}})
	s := openQuota(t, r.conn)
	for range 300 {
		exchangeQuota(t, s, "edge", bucket("long", strings.Repeat("x", 50_000)))
	}
	zipped := openQuota(t, r.conn, grpc.UseCompressor(gzip.Name))
	exchangeQuota(t, zipped, "edge", bucket("long", strings.Repeat("x", 50_000)))
}

// The memory of a decompressed message counts, so that small messages cannot use up all memory.
func TestCompressedReportIsBounded(t *testing.T) {
	wait := make(chan struct{})
	defer close(wait)
	q := &shares{report: func(string, []assigner.Usage) { <-wait }}
	registry := prometheus.NewRegistry()
	r := startWith(t, endpoint.Options{Metrics: registry, Budget: intake.NewBudget(32 << 20)}, Options{Quota: q, Connections: Connections{MaxBytes: 4 << 20}})
	m := &usageReports{Domain: "edge"}
	for range 100 {
		m.BucketQuotaUsages = append(m.BucketQuotaUsages, bucket("long", strings.Repeat("x", 30_000)))
	}
	for range 2 {
		if err := openQuota(t, r.conn, grpc.UseCompressor(gzip.Name)).Send(m); err != nil {
			t.Fatal(err)
		}
	}
	soon(t, "the connection is closed", func() bool {
		return gathered(t, registry)[`ratelimitd_connections_closed_total{listener=grpc reason=bytes}`] == 1
	})
}

// A client that sends reports faster than they are processed is slowed down by flow control.
func TestReportsAreReadOneAtATime(t *testing.T) {
	wait := make(chan struct{})
	q := &shares{report: func(string, []assigner.Usage) { <-wait }}
	r := start(t, Options{Quota: q})
	c := rawDial(t, r.GRPCAddr)
	if err := c.open(quotaPath); err != nil {
		t.Fatal(err)
	}
	message := encode(t, &usageReports{Domain: "edge", BucketQuotaUsages: []*bucketUsage{bucket("x", strings.Repeat("x", 10_000))}})
	go func() {
		for range 90 { // less than the window
			if c.send(len(message), message, false) != nil {
				return
			}
		}
	}()
	granted := 0
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			f, err := c.ReadFrame()
			if err != nil {
				return
			}
			if strings.HasPrefix(fmt.Sprintf("%T", f), "*http2.WindowUpdate") && f.Header().StreamID == c.Stream {
				granted++
			}
		}
	}()
	soon(t, "the first report", func() bool { return q.open() == 1 })
	_ = c.SetReadDeadline(time.Now().Add(300 * time.Millisecond))
	<-done
	if granted > 4 {
		t.Errorf("the client got credit %d times", granted)
	}
	close(wait)
}

func TestQuotaStreamsDoNotCountAsCalls(t *testing.T) {
	const most = 1_000
	registry := prometheus.NewRegistry()
	q := &shares{}
	r := startWith(t, endpoint.Options{Metrics: registry}, Options{
		Quota: q, Calls: Calls{Max: 64}, QuotaStreamsMax: 2 * most,
		Connections: Connections{FirstCallTimeout: 200 * time.Millisecond, MessageTimeout: 200 * time.Millisecond, MaxStreams: 300},
	})
	before := runtime.NumGoroutine()
	var conns []*grpc.ClientConn
	var streams []quotaClient
	for i := range most {
		if i%250 == 0 {
			conns = append(conns, dial(t, r.GRPCAddr))
		}
		s := openQuota(t, conns[len(conns)-1])
		streams = append(streams, s)
		if i%2 == 0 { // the others only open it
			exchangeQuota(t, s, "edge", bucket())
		} else if i%100 == 1 {
			soon(t, "the streams are open", func() bool { return q.open() > i })
		}
	}
	soon(t, "all streams are open", func() bool { return q.open() == most })
	checkMetrics(t, registry, map[string]float64{`ratelimitd_streams{kind=quota}`: most, `ratelimitd_calls_in_flight`: 0})
	for range 40 {
		if _, err := r.rateLimit().ShouldRateLimit(within(t), smallRequest()); err != nil {
			t.Fatal(err)
		}
		<-time.After(20 * time.Millisecond)
	}
	for _, s := range streams {
		exchangeQuota(t, s, "edge", bucket())
	}
	for _, c := range conns {
		_ = c.Close()
	}
	soon(t, "all streams are closed", func() bool { return q.open() == 0 })
	soon(t, "their goroutines are gone", func() bool { return runtime.NumGoroutine() < before+50 })
	soon(t, "none is counted", func() bool { return gathered(t, registry)[`ratelimitd_streams{kind=quota}`] == 0 })
	checkMetrics(t, registry, map[string]float64{`ratelimitd_streams{kind=quota}`: 0, `ratelimitd_calls_in_flight`: 0})
}

func TestQuotaStreamsAreBounded(t *testing.T) {
	registry := prometheus.NewRegistry()
	q := &shares{}
	r := startWith(t, endpoint.Options{Metrics: registry}, Options{Quota: q, QuotaStreamsMax: 20})
	for range 10 {
		exchangeQuota(t, openQuota(t, r.conn), "edge", bucket())
	}
	if st := rejectedQuota(t, openQuota(t, r.conn), &usageReports{Domain: "edge"}); st.Code() != codes.ResourceExhausted {
		t.Error("one connection:", st)
	}
	opened := 10
	for range 20 {
		s := openQuota(t, dial(t, r.GRPCAddr))
		if err := s.Send(&usageReports{Domain: "edge", BucketQuotaUsages: []*bucketUsage{bucket()}}); err != nil {
			break
		}
		if _, err := s.Recv(); status.Code(err) == codes.ResourceExhausted {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		opened++
	}
	if opened < 17 || opened > 19 {
		t.Errorf("one peer has %d of 20 streams", opened)
	}
	checkMetrics(t, registry, map[string]float64{
		`ratelimitd_streams_rejected_total{kind=quota reason=connection}`: 1, `ratelimitd_streams_rejected_total{kind=quota reason=peer}`: 1, `ratelimitd_streams_rejected_total{kind=quota reason=all}`: 0,
	})
}

// A client that reads nothing loses its connection, and does not delay other clients. On a busy machine even a client
// that reads may be slow: the timeout is far longer.
func TestQuotaClientThatReadsNothing(t *testing.T) {
	registry := prometheus.NewRegistry()
	q := &shares{repeat: 20_000}
	r := startWith(t, endpoint.Options{Metrics: registry}, Options{Quota: q, Connections: Connections{WriteTimeout: 3 * time.Second}})
	slow := rawDial(t, r.GRPCAddr)
	if err := slow.open(quotaPath); err != nil {
		t.Fatal(err)
	}
	message := encode(t, &usageReports{Domain: "edge", BucketQuotaUsages: []*bucketUsage{bucket("a", "b")}})
	if err := slow.send(len(message), message, false); err != nil {
		t.Fatal(err)
	}
	other := openQuota(t, r.conn)
	for range 3 {
		if err := other.Send(&usageReports{Domain: "edge", BucketQuotaUsages: []*bucketUsage{bucket()}}); err != nil {
			t.Fatal(err)
		}
		for n := 0; n < q.repeat; {
			m, err := other.Recv()
			if err != nil {
				t.Fatal(err)
			}
			n += len(m.GetBucketAction())
		}
	}
	slow.ended(t)
	soon(t, "its stream is closed", func() bool { return q.open() == 1 })
	if n := gathered(t, registry)[`ratelimitd_connections_closed_total{listener=grpc reason=not_reading}`]; n == 0 {
		t.Error("it is not counted")
	}
}

// Envoy opens its stream again elsewhere. The stop waits neither for streams nor for clients that do not read.
func TestQuotaStreamsEndWhenTheServerStops(t *testing.T) {
	q := &shares{}
	r := startWith(t, endpoint.Options{StopTimeout: time.Minute}, Options{Quota: q})
	s := openQuota(t, r.conn)
	exchangeQuota(t, s, "edge", bucket())
	q.repeat = 20_000
	slow := rawDial(t, r.GRPCAddr)
	message := encode(t, &usageReports{Domain: "edge", BucketQuotaUsages: []*bucketUsage{bucket("a", "b")}})
	if err := slow.open(quotaPath); err != nil {
		t.Fatal(err)
	}
	if err := slow.send(len(message), message, false); err != nil {
		t.Fatal(err)
	}
	soon(t, "both are open", func() bool { return q.open() == 2 })
	began := time.Now()
	r.stop()
	if st := endOf(t, s); st.Code() != codes.Unavailable || st.Message() != "the server is stopping" {
		t.Error(st)
	}
	if err := <-r.done; err != nil {
		t.Error(err)
	}
	if took := time.Since(began); took > 30*time.Second {
		t.Errorf("the stop took %v", took)
	}
	if n := q.open(); n != 0 {
		t.Errorf("%d streams are open", n)
	}
}

func TestPanicOfAQuotaStream(t *testing.T) {
	registry := prometheus.NewRegistry()
	q := &shares{report: func(domain string, _ []assigner.Usage) {
		if domain == "bad" {
			panic("no")
		}
	}}
	r := startWith(t, endpoint.Options{Metrics: registry}, Options{Quota: q})
	other := openQuota(t, r.conn)
	exchangeQuota(t, other, "edge", bucket())
	if st := rejectedQuota(t, openQuota(t, r.conn), &usageReports{Domain: "bad"}); st.Code() != codes.Internal {
		t.Error(st)
	}
	exchangeQuota(t, other, "edge", bucket())
	soon(t, "its stream is closed", func() bool { return q.open() == 1 })
	checkMetrics(t, registry, map[string]float64{`ratelimitd_panics_total`: 1})
}

// When a client cancels its stream or its connection is cut, it is gone immediately.
func TestQuotaClientThatLeaves(t *testing.T) {
	q := &shares{}
	r := start(t, Options{Quota: q})
	ctx, cancel := context.WithCancel(within(t))
	s, err := quotav3.NewRateLimitQuotaServiceClient(r.conn).StreamRateLimitQuotas(ctx)
	if err != nil {
		t.Fatal(err)
	}
	exchangeQuota(t, s, "edge", bucket())
	c := rawDial(t, r.GRPCAddr)
	if err := c.open(quotaPath); err != nil {
		t.Fatal(err)
	}
	if err := c.send(1_000_000, bytes.Repeat([]byte("x"), 10_000), false); err != nil { // it never sends the rest
		t.Fatal(err)
	}
	soon(t, "both are open", func() bool { return q.open() == 2 })
	cancel()
	soon(t, "one is gone", func() bool { return q.open() == 1 })
	_ = c.Conn.Close()
	soon(t, "both are gone", func() bool { return q.open() == 0 })
}
