package server

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"strings"
	"testing"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"

	"github.com/ratelimitd/ratelimitd/internal/limiter"
	"github.com/ratelimitd/ratelimitd/internal/platform/endpoint"
)

func TestShouldRateLimitCarriesEveryField(t *testing.T) {
	answer := smallDecision()
	answer.Headers = []limiter.Header{{Key: "RateLimit-Limit", Value: "10"}}
	answer.Metadata = map[string]any{"domain": "edge", "list": []any{1, "a"}}
	var seen limiter.Request
	for _, compressed := range []bool{false, true} {
		t.Run(fmt.Sprint("compressed ", compressed), func(t *testing.T) {
			r := start(t, Options{Decider: decider(func(_ context.Context, now time.Time, req *limiter.Request, d *limiter.Decision) error {
				if since := time.Since(now); since < 0 || since > patience {
					t.Errorf("Decide got a time %v ago", since)
				}
				seen = limiter.Request{Domain: req.Domain, Hits: req.Hits}
				for _, from := range req.Descriptors {
					from.Entries = append(from.Entries[:0:0], from.Entries...)
					seen.Descriptors = append(seen.Descriptors, from)
				}
				*d = *answer
				return nil
			})})
			var opts []grpc.CallOption
			if compressed {
				opts = append(opts, grpc.UseCompressor(gzip.Name))
			}
			got, err := r.rateLimit().ShouldRateLimit(within(t), fullRequest(), opts...)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(plainRequest(fullRequest()), seen, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("request (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(responseMessage(t, answer), got, protocmp.Transform()); diff != "" {
				t.Errorf("response (-want +got):\n%s", diff)
			}
		})
	}
}

// Clients other than Envoy find the delay in the metadata of the answer, or in the header of the answer over HTTP.
func TestTheDelayIsInTheMetadataOfTheAnswer(t *testing.T) {
	delay := time.Duration(0)
	r := start(t, Options{Decider: decider(func(_ context.Context, _ time.Time, _ *limiter.Request, d *limiter.Decision) error {
		d.Code, d.Delay = limiter.OK, delay
		d.Statuses = append(d.Statuses, limiter.Status{Code: limiter.OK})
		return nil
	})})
	for _, c := range []struct {
		delay time.Duration
		want  []string
	}{{333334 * time.Microsecond, []string{"334"}}, {0, nil}, {time.Hour, []string{"3600000"}}, {0, nil}} {
		delay = c.delay
		var head metadata.MD
		got, err := r.rateLimit().ShouldRateLimit(within(t), smallRequest(), grpc.Header(&head))
		if err != nil || got.OverallCode != ratelimitv3.RateLimitResponse_OK {
			t.Fatalf("got %v, %v", got, err)
		}
		if diff := cmp.Diff(c.want, head.Get("x-ratelimit-delay-ms")); diff != "" {
			t.Errorf("metadata after %v (-want +got):\n%s", delay, diff)
		}
		_, headers, _ := request(t, http.MethodPost, r.HTTPAddr, "/json", strings.NewReader(`{"domain": "d", "descriptors": [{"entries": [{"key": "k"}]}]}`))
		if diff := cmp.Diff(c.want, headers.Values("x-ratelimit-delay-ms"), cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("headers after %v (-want +got):\n%s", delay, diff)
		}
	}
}

func TestErrorsBecomeCodes(t *testing.T) {
	for _, tt := range []struct {
		err     error
		code    codes.Code
		message string
	}{
		{fmt.Errorf("decide: %w", &limiter.InvalidError{Field: "domain", Message: "rate limit domain must not be empty"}), codes.InvalidArgument, "rate limit domain must not be empty"},
		{limiter.ErrNoRules, codes.Unavailable, "no rate limit configuration loaded"},
		{fmt.Errorf("count hits: %w", context.DeadlineExceeded), codes.DeadlineExceeded, "count hits: context deadline exceeded"},
		{fmt.Errorf("count hits: %w", context.Canceled), codes.Canceled, "count hits: context canceled"},
		{errors.New("connection refused"), codes.Unavailable, "connection refused"},
	} {
		t.Run(tt.err.Error(), func(t *testing.T) {
			r := start(t, Options{Decider: failWith(tt.err)})
			_, err := r.rateLimit().ShouldRateLimit(within(t), smallRequest())
			if s := status.Convert(err); s.Code() != tt.code || s.Message() != tt.message {
				t.Errorf("got %v %q, want %v %q", s.Code(), s.Message(), tt.code, tt.message)
			}
		})
	}
}

func TestDeadlineReachesTheDecider(t *testing.T) {
	h := hold()
	r := start(t, Options{Decider: h})
	ctx, cancel := context.WithTimeout(within(t), 50*time.Millisecond)
	defer cancel()
	_, err := r.rateLimit().ShouldRateLimit(ctx, smallRequest())
	if status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("got %v", err)
	}
}

// rawBytes is a codec that sends bytes unchanged.
type rawBytes struct{}

func (rawBytes) Marshal(v any) ([]byte, error) { return *v.(*[]byte), nil }
func (rawBytes) Unmarshal(b []byte, v any) error {
	*v.(*[]byte) = append([]byte(nil), b...)
	return nil
}
func (rawBytes) Name() string { return "proto" }

func sendRaw(t *testing.T, r *running, data []byte) error {
	t.Helper()
	var out []byte
	return r.conn.Invoke(within(t), ratelimitv3.RateLimitService_ShouldRateLimit_FullMethodName, &data, &out, grpc.ForceCodec(rawBytes{}))
}

func TestBadInputIsInvalidArgument(t *testing.T) {
	r := start(t, Options{})
	for name, data := range wireCases(t) {
		want := codes.OK
		if decodeRequest(data, new(limiter.Request), unbounded) != nil {
			want = codes.InvalidArgument
		}
		if err := sendRaw(t, r, data); status.Code(err) != want {
			t.Errorf("%s: %v, want %v", name, err, want)
		}
	}
	if _, err := r.rateLimit().ShouldRateLimit(within(t), smallRequest()); err != nil {
		t.Errorf("a good request after the bad ones: %v", err)
	}
}

func TestLargeRequests(t *testing.T) {
	r := start(t, Options{})
	many := &ratelimitv3.RateLimitRequest{Domain: "d"}
	for range 1000 {
		many.Descriptors = append(many.Descriptors, smallRequest().GetDescriptors()...)
	}
	_, err := r.rateLimit().ShouldRateLimit(within(t), many)
	if s := status.Convert(err); s.Code() != codes.InvalidArgument || !strings.Contains(s.Message(), "descriptors: more than 256") {
		t.Errorf("a thousand descriptors: %v", err)
	}

	many.Descriptors = many.Descriptors[:256]
	if resp, err := r.rateLimit().ShouldRateLimit(within(t), many); err != nil || len(resp.GetStatuses()) != 256 {
		t.Errorf("256 descriptors: %v, %d statuses", err, len(resp.GetStatuses()))
	}

	huge := func(size int) *ratelimitv3.RateLimitRequest {
		return &ratelimitv3.RateLimitRequest{Domain: "d", Descriptors: []*commonv3.RateLimitDescriptor{{
			Entries: []*commonv3.RateLimitDescriptor_Entry{{Key: strings.Repeat("k", size), Value: "v"}},
		}}}
	}
	if _, err := r.rateLimit().ShouldRateLimit(within(t), huge(64<<10)); err != nil {
		t.Errorf("a key of 64 KiB: %v", err)
	}
	_, err = r.rateLimit().ShouldRateLimit(within(t), huge(64<<10+1))
	if s := status.Convert(err); s.Code() != codes.InvalidArgument || !strings.Contains(s.Message(), "a key or a value of more than 65536 bytes") {
		t.Errorf("a longer key: %v", err)
	}
	if _, err := r.rateLimit().ShouldRateLimit(within(t), huge(5<<20)); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("a key of five megabytes: %v", err)
	}
}

// The memory of a large message is not kept for small ones.
func TestPoolKeepsNoLargeCalls(t *testing.T) {
	c := &rateLimitCall{method: newMethod(&deciding{}, shouldRateLimitPath), size: maxKept + 1}
	c.release()
	for range 100 {
		if got := callPool.Get().(*rateLimitCall); got == c {
			t.Fatal("the large call came back")
		}
	}
}

func TestPanicIsInternalAndTheServerLives(t *testing.T) {
	registry := prometheus.NewRegistry()
	r := startWith(t, endpoint.Options{Metrics: registry}, Options{Decider: decider(func(ctx context.Context, now time.Time, req *limiter.Request, d *limiter.Decision) error {
		if req.Domain == "bomb" {
			panic("kaboom")
		}
		return passAll(ctx, now, req, d)
	})})
	bomb := smallRequest()
	bomb.Domain = "bomb"
	if _, err := r.rateLimit().ShouldRateLimit(within(t), bomb); status.Code(err) != codes.Internal || strings.Contains(err.Error(), "kaboom") {
		t.Errorf("got %v", err)
	}
	if _, err := r.rateLimit().ShouldRateLimit(within(t), smallRequest()); err != nil {
		t.Errorf("the next call: %v", err)
	}
	for _, want := range []string{"kaboom", "ratelimit_test.go", ratelimitv3.RateLimitService_ShouldRateLimit_FullMethodName} {
		if !strings.Contains(r.log.String(), want) {
			t.Errorf("the log does not have %q:\n%s", want, r.log)
		}
	}
	checkMetrics(t, registry, map[string]float64{
		`ratelimitd_panics_total`:                                 1,
		`ratelimitd_requests_total{code=Internal transport=grpc}`: 1,
		`ratelimitd_requests_total{code=OK transport=grpc}`:       1,
		`ratelimitd_request_duration_seconds{transport=grpc}`:     2,
		`ratelimitd_requests_total{code=OK transport=json}`:       0,
	})
}

func checkMetrics(t *testing.T, registry *prometheus.Registry, want map[string]float64) {
	t.Helper()
	got := gathered(t, registry)
	for name, n := range want {
		if v, ok := got[name]; !ok || v != n {
			t.Errorf("%s is %v (there: %v), want %v", name, v, ok, n)
		}
	}
}

// gathered returns the values in a registry, by name and labels.
func gathered(t *testing.T, registry *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			name := f.GetName()
			if labels := m.GetLabel(); len(labels) > 0 {
				var all []string
				for _, l := range labels {
					all = append(all, l.GetName()+"="+l.GetValue())
				}
				name += "{" + strings.Join(all, " ") + "}"
			}
			got[name] = m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	return got
}

// Envoy's connection_keepalive pings at the configured interval, also without calls; grpc-go's default answers the
// third such ping with GOAWAY.
func TestKeepalivePingsAreTolerated(t *testing.T) {
	r := start(t, Options{})
	c := rawDial(t, r.GRPCAddr)
	const pings = 20 // two strikes are tolerated
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for n := range pings {
		if err := c.WritePing(false, [8]byte{byte(n)}); err != nil {
			t.Fatal(err)
		}
		for answered := false; !answered; {
			frame, err := c.ReadFrame()
			if err != nil {
				t.Fatalf("ping %d: %v", n, err)
			}
			switch frame := frame.(type) {
			case *http2.GoAwayFrame:
				t.Fatalf("ping %d was answered by GOAWAY %v %q", n, frame.ErrCode, frame.DebugData())
			case *http2.PingFrame:
				answered = frame.IsAck() && frame.Data == [8]byte{byte(n)}
			}
		}
		<-tick.C
	}
}

func TestManyCallsAtOnceGetTheirOwnAnswers(t *testing.T) {
	r := start(t, Options{Decider: decider(func(_ context.Context, _ time.Time, req *limiter.Request, d *limiter.Decision) error {
		d.Code = limiter.OK
		for _, descriptor := range req.Descriptors {
			d.Statuses = append(d.Statuses, limiter.Status{Code: limiter.OK, Limited: true, Remaining: descriptor.Hits & math.MaxUint32,
				Limit: limiter.CurrentLimit{Name: descriptor.Entries[0].Value}})
		}
		return nil
	})})
	const callers, each = 16, 200
	errs := make(chan error, callers)
	for caller := range callers {
		go func() {
			errs <- func() error {
				ctx := within(t)
				for n := range each {
					req := fullRequest()
					req.Descriptors = req.Descriptors[:1]
					id := fmt.Sprintf("%d-%d", caller, n)
					hits := uint64(caller*each + n)
					req.Descriptors[0].Entries[0].Value = id
					req.Descriptors[0].HitsAddend.Value = hits
					resp, err := r.rateLimit().ShouldRateLimit(ctx, req)
					if err != nil {
						return err
					}
					s := resp.GetStatuses()
					if len(s) != 1 || s[0].GetCurrentLimit().GetName() != id || uint64(s[0].GetLimitRemaining()) != hits&math.MaxUint32 {
						return fmt.Errorf("call %s got %v", id, s)
					}
				}
				return nil
			}()
		}()
	}
	for range callers {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
}
