package server

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/attribute"
	otelcodes "go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/ratelimitd/ratelimitd/internal/limiter"
)

// recorder is a Tracer that keeps spans, of requests whose traceparent is "yes".
type recorder struct {
	spans    *tracetest.SpanRecorder
	provider *sdktrace.TracerProvider
	states   chan string // tracestates of sampled requests
}

func newRecorder() *recorder {
	spans := tracetest.NewSpanRecorder()
	return &recorder{spans, sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans)), make(chan string, 100)}
}

func (r *recorder) Sampled(traceparent string) bool { return traceparent == "yes" }

func (r *recorder) Start(ctx context.Context, _, tracestate, name string, start time.Time) (context.Context, trace.Span) {
	r.states <- tracestate
	return r.provider.Tracer("test").Start(ctx, name, trace.WithTimestamp(start))
}

// everySecond samples every second request.
type everySecond struct {
	*recorder
	asked atomic.Int64
}

func (e *everySecond) Sampled(string) bool { return e.asked.Add(1)%2 == 0 }

// A request is sampled once: asking twice would record a hundredth of the requests where the rate is a tenth.
func TestARequestIsSampledOnce(t *testing.T) {
	tracer := &everySecond{recorder: newRecorder()}
	r := start(t, Options{Tracer: tracer})
	for range 10 {
		if _, err := r.rateLimit().ShouldRateLimit(within(t), smallRequest()); err != nil {
			t.Fatal(err)
		}
	}
	if asked, spans := tracer.asked.Load(), len(tracer.spans.Ended()); asked != 10 || spans != 5 {
		t.Errorf("of 10 requests, %d were sampled and %d recorded", asked, spans)
	}
}

func TestSampledDecisionsAreRecorded(t *testing.T) {
	tracer := newRecorder()
	r := start(t, Options{Tracer: tracer, Decider: decider(func(ctx context.Context, now time.Time, req *limiter.Request, d *limiter.Decision) error {
		if sampled := trace.SpanFromContext(ctx).IsRecording(); sampled != (req.Domain != "unseen") {
			t.Errorf("domain %s: the decider has a span: %v", req.Domain, sampled)
		}
		return byDomain(ctx, now, req, d)
	})})
	for _, tt := range []struct {
		domain string
		code   codes.Code // code that the client gets
		said   otelcodes.Code
		about  []attribute.KeyValue
	}{
		{"d", codes.OK, otelcodes.Unset, []attribute.KeyValue{attribute.String("ratelimitd.code", "OK")}},
		{"over", codes.OK, otelcodes.Unset, []attribute.KeyValue{attribute.String("ratelimitd.code", "OVER_LIMIT")}},
		{"", codes.InvalidArgument, otelcodes.Unset, nil},
		{"down", codes.Unavailable, otelcodes.Error, nil},
		{"bomb", codes.Internal, otelcodes.Unset, nil},
	} {
		for _, transport := range []string{"gRPC", "JSON"} {
			tracer.spans.Reset()
			req := smallRequest()
			req.Domain = tt.domain
			name := "/json"
			if transport == "gRPC" {
				name = "envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"
				ctx := metadata.AppendToOutgoingContext(within(t), "traceparent", "yes", "tracestate", "a=1")
				if _, err := r.rateLimit().ShouldRateLimit(ctx, req); status.Code(err) != tt.code {
					t.Errorf("%s: %v", tt.domain, err)
				}
			} else {
				posted, err := http.NewRequestWithContext(within(t), http.MethodPost, "http://"+r.HTTPAddr.String()+"/json",
					strings.NewReader(`{"domain":"`+tt.domain+`","descriptors":[{"entries":[{"key":"k"}]}]}`))
				if err != nil {
					t.Fatal(err)
				}
				posted.Close = true
				posted.Header.Set("Traceparent", "yes")
				posted.Header.Set("Tracestate", "a=1")
				resp, err := http.DefaultClient.Do(posted)
				if err != nil {
					t.Fatal(err)
				}
				_ = resp.Body.Close()
			}
			if state := <-tracer.states; state != "a=1" {
				t.Errorf("%s over %s: tracestate %q", tt.domain, transport, state)
			}
			ended := tracer.spans.Ended()
			if len(ended) != 1 || ended[0].Name() != name || ended[0].Status().Code != tt.said {
				t.Errorf("%s over %s: spans %v", tt.domain, transport, ended)
				continue
			}
			var call []attribute.KeyValue
			if transport == "gRPC" {
				call = []attribute.KeyValue{
					attribute.String("rpc.system", "grpc"),
					attribute.String("rpc.service", "envoy.service.ratelimit.v3.RateLimitService"),
					attribute.String("rpc.method", "ShouldRateLimit"),
				}
			}
			want := append(slices.Clone(call),
				attribute.Int("rpc.grpc.status_code", int(tt.code)),
				attribute.String("ratelimitd.domain", tt.domain),
				attribute.Int("ratelimitd.descriptors", 1),
			)
			want = append(want, tt.about...)
			if tt.domain == "bomb" {
				want = call
				if events := ended[0].Events(); len(events) != 1 || events[0].Name != "exception" {
					t.Errorf("over %s: the span of a panic has %v", transport, events)
				}
			}
			got := ended[0].Attributes()
			if !cmp.Equal(want, got, cmp.Comparer(func(a, b attribute.KeyValue) bool { return a == b })) {
				t.Errorf("%s over %s: attributes %v, want %v", tt.domain, transport, got, want)
			}
		}
	}

	tracer.spans.Reset()
	unseen := smallRequest()
	unseen.Domain = "unseen"
	for _, ctx := range []context.Context{within(t), metadata.AppendToOutgoingContext(within(t), "traceparent", "no")} {
		if _, err := r.rateLimit().ShouldRateLimit(ctx, unseen); err != nil {
			t.Fatal(err)
		}
	}
	if started := tracer.spans.Started(); len(started) != 0 {
		t.Errorf("unsampled requests started %v", started)
	}
}

// Measures the cost of a sampler that samples nothing.
func BenchmarkUnsampled(b *testing.B) {
	plain := decider(passAll)
	req := &limiter.Request{Domain: "d"}
	ctx := metadata.NewIncomingContext(context.Background(), metadata.Pairs(
		":authority", "ratelimit", "content-type", "application/grpc", "user-agent", "envoy", "x-request-id", "1", "traceparent", "no"))
	for name, d := range map[string]Decider{"off": plain, "on": observed(&Options{Decider: plain, Tracer: newRecorder()})} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			var decision limiter.Decision
			for b.Loop() {
				if err := limiter.Decide(ctx, d, time.Time{}, req, &decision); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
