package tracing_test

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	tracev1 "go.opentelemetry.io/proto/otlp/trace/v1"
	"go.uber.org/goleak"

	"github.com/ratelimitd/ratelimitd/internal/platform/tracing"
	"github.com/ratelimitd/ratelimitd/internal/testkit/otlptest"
	"github.com/ratelimitd/ratelimitd/internal/testkit/racetest"
	"github.com/ratelimitd/ratelimitd/internal/testkit/servicetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is the longest wait for an expected event.
const patience = 20 * time.Second

// collect starts a collector for a protocol and sets the OTEL_ variables to its address.
func collect(t *testing.T, protocol string) *otlptest.Collector {
	t.Helper()
	if protocol == "" {
		protocol = "http"
	}
	c := otlptest.Start(t, protocol)
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", c.URL)
	return c
}

func start(t *testing.T, o tracing.Options) *tracing.Tracing {
	t.Helper()
	tr, err := tracing.Start(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

func stop(t *testing.T, tr *tracing.Tracing) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := tr.Stop(ctx); err != nil {
		t.Error(err)
	}
}

const (
	sampledParent   = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	unsampledParent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"
)

func TestSpansReachTheCollector(t *testing.T) {
	for _, protocol := range []string{"http", "grpc", ""} {
		t.Run("protocol "+protocol, func(t *testing.T) {
			c := collect(t, protocol)
			tr := start(t, tracing.Options{Protocol: protocol, ServiceName: "edge", ServiceNamespace: "prod", ServiceInstanceID: "one"})
			began := time.Now().Add(-time.Minute).Round(0)
			_, span := tr.Start(t.Context(), sampledParent, "vendor=1", "asked", began)
			span.SetAttributes(attribute.String("ratelimitd.domain", "edge"))
			span.End()
			_, span = tr.Start(t.Context(), "", "", "root", time.Now())
			span.End()
			stop(t, tr) // sends the spans of the pending batch

			spans, sender := c.Spans()
			if len(spans) != 2 {
				t.Fatalf("%d spans were received", len(spans))
			}
			asked := spans[0]
			if asked.GetName() != "asked" || asked.GetKind() != tracev1.Span_SPAN_KIND_SERVER || asked.GetTraceState() != "vendor=1" {
				t.Errorf("span %v", asked)
			}
			if got := trace.TraceID(asked.GetTraceId()).String(); got != sampledParent[3:35] {
				t.Errorf("trace %s", got)
			}
			if got := trace.SpanID(asked.GetParentSpanId()).String(); got != sampledParent[36:52] {
				t.Errorf("parent %s", got)
			}
			if got := time.Unix(0, int64(asked.GetStartTimeUnixNano())); !got.Equal(began) {
				t.Errorf("the span began at %v, want %v", got, began)
			}
			if a := asked.GetAttributes(); len(a) != 1 || a[0].GetValue().GetStringValue() != "edge" {
				t.Errorf("attributes %v", a)
			}
			if root := spans[1]; len(root.GetParentSpanId()) != 0 || len(root.GetTraceId()) != 16 {
				t.Errorf("root %v", root)
			}
			for key, want := range map[string]string{"service.name": "edge", "service.namespace": "prod", "service.instance.id": "one"} {
				if sender[key] != want {
					t.Errorf("%s is %q, want %q", key, sender[key], want)
				}
			}
		})
	}
}

func TestWhoSendsTheSpans(t *testing.T) {
	for _, tt := range []struct {
		name       string
		env        map[string]string
		o          tracing.Options
		want       string // service.name
		instanceID string // empty: any
	}{
		{"nothing is said", nil, tracing.Options{}, "RateLimit", ""},
		{"the variables say", map[string]string{"OTEL_SERVICE_NAME": "env", "OTEL_RESOURCE_ATTRIBUTES": "service.instance.id=pod"}, tracing.Options{}, "env", "pod"},
		{"the options say too", map[string]string{"OTEL_SERVICE_NAME": "env"}, tracing.Options{ServiceName: "options", ServiceInstanceID: "two"}, "options", "two"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := collect(t, "http")
			for key, value := range tt.env {
				t.Setenv(key, value)
			}
			tr := start(t, tt.o)
			_, span := tr.Start(t.Context(), "", "", "s", time.Now())
			span.End()
			stop(t, tr)
			_, sender := c.Spans()
			if id := sender["service.instance.id"]; sender["service.name"] != tt.want || id == "" || tt.instanceID != "" && id != tt.instanceID {
				t.Errorf("got %v", sender)
			}
		})
	}
}

func TestSampled(t *testing.T) {
	for _, rate := range []float64{0, 0.25, 1} {
		tr := start(t, tracing.Options{SamplingRate: rate})
		if !tr.Sampled(sampledParent) || tr.Sampled(unsampledParent) {
			t.Errorf("rate %v: the caller's decision does not hold", rate)
		}
		const asked = 20_000
		for _, parent := range []string{"", "garbage"} {
			n := 0
			for range asked {
				if tr.Sampled(parent) {
					n++
				}
			}
			if want := rate * asked; float64(n) < want-500 || float64(n) > want+500 { // eight standard deviations
				t.Errorf("rate %v, parent %q: %d of %d were sampled", rate, parent, n, asked)
			}
		}
		if n := testing.AllocsPerRun(100, func() { tr.Sampled(unsampledParent) }); n > 0 {
			t.Errorf("rate %v: %v allocations", rate, n)
		}
		stop(t, tr)
	}
}

// The same traceparents count as with the standard propagator.
func TestSampledReadsTraceparentsAsThePropagatorDoes(t *testing.T) {
	tr := start(t, tracing.Options{SamplingRate: 0})
	defer stop(t, tr)
	const ids = "0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331"
	parents := []string{
		sampledParent, unsampledParent, "00-" + ids + "-03", "00-" + ids + "-02", "01-" + ids + "-01", "01-" + ids + "-01-more", "01-" + ids + "-00-more",
		"ff-" + ids + "-01", "00-" + ids + "-01-more", "00-" + ids + "-0", "00-" + ids + "-zz", "00-" + ids + "01", strings.ReplaceAll(sampledParent, "-", "_"),
		"00-00000000000000000000000000000000-b7ad6b7169203331-01", "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
		strings.ToUpper(sampledParent), "", "-", sampledParent + " ",
	}
	for at := range len(sampledParent) { // every byte, and every other byte in its place
		for b := range 256 {
			changed := []byte(sampledParent)
			changed[at] = byte(b)
			parents = append(parents, string(changed))
		}
	}
	for _, parent := range parents {
		ctx := propagation.TraceContext{}.Extract(context.Background(), propagation.MapCarrier{"traceparent": parent})
		if want := trace.SpanContextFromContext(ctx).IsSampled(); tr.Sampled(parent) != want {
			t.Errorf("%q: sampled %v, the propagator says %v", parent, tr.Sampled(parent), want)
		}
	}
}

func TestACollectorThatIsAwayIsLoggedOnce(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://"+l.Addr().String())
	t.Setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=hunter2")
	t.Setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "200")
	t.Setenv("OTEL_BSP_SCHEDULE_DELAY", "10")
	_ = l.Close()
	var log servicetest.Log
	tr := start(t, tracing.Options{Log: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))})
	deadline := time.Now().Add(patience)
	for !strings.Contains(log.String(), "cannot send spans") {
		if time.Now().After(deadline) {
			t.Fatalf("nothing was logged:\n%s", log.String())
		}
		_, span := tr.Start(t.Context(), "", "", "s", time.Now())
		span.End()
		<-time.After(time.Millisecond)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	_ = tr.Stop(ctx)
	if n := strings.Count(log.String(), "cannot send spans"); n > 3 {
		t.Errorf("logged %d times:\n%s", n, log.String())
	}
	if strings.Contains(log.String(), "hunter2") {
		t.Errorf("a secret is in the log:\n%s", log.String())
	}
}

// While a collector hangs, the number of waiting spans is bounded, and metrics show the waiting and the lost ones.
func TestACollectorThatHangsIsBounded(t *testing.T) {
	over := make(chan struct{})
	hangs := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-over }))
	defer hangs.Close()
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", hangs.URL)
	t.Setenv("OTEL_BSP_MAX_QUEUE_SIZE", "100")
	registry := prometheus.NewRegistry()
	tr := start(t, tracing.Options{Log: slog.New(slog.DiscardHandler), Metrics: registry})
	for range 1000 {
		_, span := tr.Start(t.Context(), "", "", "s", time.Now())
		span.End()
	}
	want := `
# HELP ratelimitd_spans_dropped_total Spans not sent.
# TYPE ratelimitd_spans_dropped_total counter
ratelimitd_spans_dropped_total 900
`
	if err := testutil.GatherAndCompare(registry, strings.NewReader(want)); err != nil {
		t.Error(err)
	}
	close(over)
	stop(t, tr)
}

// The log describes the error in a variable, without its value. The service starts anyway: OpenTelemetry ignores the
// variable.
func TestVariablesThatCannotBeRead(t *testing.T) {
	racetest.Sequential(t)
	for _, protocol := range []string{"http", "grpc"} {
		for variable, wrong := range map[string][]string{
			"OTEL_EXPORTER_OTLP_HEADERS":         {"authorization hunter2", "a=b,hunter2", "hunter2 key=b", "authorization=%zzhunter2"},
			"OTEL_EXPORTER_OTLP_TRACES_HEADERS":  {"authorization: hunter2"},
			"OTEL_EXPORTER_OTLP_ENDPOINT":        {"ht tp://user:hunter2@127.0.0.1:1", "http://user:hunter2@127.0.0.1:%zz"},
			"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": {"http://user:hunter2@[::1"},
		} {
			for _, value := range wrong {
				t.Run(protocol+" "+variable+" "+value, func(t *testing.T) {
					t.Setenv(variable, value)
					var log servicetest.Log
					tr := start(t, tracing.Options{Protocol: protocol, Log: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))})
					stop(t, tr)
					if got := log.String(); strings.Contains(got, "hunter2") || !strings.Contains(got, variable[:len("OTEL_EXPORTER_OTLP_")]) {
						t.Errorf("logged:\n%s", got)
					}
				})
			}
		}
	}
}

func TestBadOptions(t *testing.T) {
	for want, o := range map[string]tracing.Options{"protocol": {Protocol: "udp"}, "sampling rate": {SamplingRate: 1.5}} {
		if _, err := tracing.Start(t.Context(), o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v", o, err)
		}
	}
}
