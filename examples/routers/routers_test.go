package routers

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/gin-gonic/gin"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/ratelimitd/ratelimitd/limits"
	"github.com/ratelimitd/ratelimitd/ratelimit"
)

// twoForEachRoute returns a limiter that allows two requests a day for each route.
func twoForEachRoute(t *testing.T, observer limits.Observer) *ratelimit.Limiter {
	t.Helper()
	l, err := ratelimit.Open(t.Context(), ratelimit.Options{Observer: observer, Domains: []ratelimit.Domain{
		{Name: "api", Rules: []ratelimit.Rule{{Key: "route", Limit: ratelimit.Bucket(2, 24*time.Hour, 2)}}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

func request(t *testing.T, url, method, path string) *http.Response {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url+path, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	answer.Body.Close()
	return answer
}

// Requests that use up one route do not affect the others, and the values of parameters do not create separate routes.
func TestRoutesHaveTheirOwnCounters(t *testing.T) {
	gin.SetMode(gin.ReleaseMode)
	for name, open := range map[string]func(limits.Decider) http.Handler{"chi": Chi, "gin": Gin, "echo": Echo} {
		server := httptest.NewServer(open(twoForEachRoute(t, nil)))
		for _, q := range []struct {
			method, path string
			want         int
		}{
			{"GET", "/users/1", 200},
			{"GET", "/users/2", 200},
			{"GET", "/users/3", 429},
			{"GET", "/shop/", 200},
			{"POST", "/shop/items/1", 200},
			{"POST", "/shop/items/2", 200},
			{"POST", "/shop/items/3", 429},
			{"GET", "/shop/", 200},
			{"GET", "/shop/", 429},
			{"GET", "/nowhere", 404},
			{"GET", "/nowhere/1", 404},
			{"GET", "/nowhere/2", 429},
		} {
			answer := request(t, server.URL, q.method, q.path)
			if answer.StatusCode != q.want || (q.want == 429) != (answer.Header.Get("Retry-After") != "") {
				t.Errorf("%s: %s %s: %s, Retry-After %q", name, q.method, q.path, answer.Status, answer.Header.Get("Retry-After"))
			}
		}
		server.Close()
	}
}

// chi finds routes in the path as the client escaped it, and so does the key.
func TestChiEscapedPath(t *testing.T) {
	server := httptest.NewServer(Chi(twoForEachRoute(t, nil)))
	defer server.Close()
	for _, want := range []int{200, 200, 429} {
		if answer := request(t, server.URL, "GET", "/users/a%2Fb"); answer.StatusCode != want {
			t.Errorf("%s, not %d", answer.Status, want)
		}
	}
	if answer := request(t, server.URL, "GET", "/nowhere"); answer.StatusCode != http.StatusNotFound {
		t.Error(answer.Status)
	}
}

// A denial is resource_exhausted in each protocol, with the time to wait.
func TestConnectDenials(t *testing.T) {
	for protocol, options := range map[string][]connect.ClientOption{
		"Connect": nil, "Connect with JSON": {connect.WithProtoJSON()}, "gRPC": {connect.WithGRPC()}, "gRPC-Web": {connect.WithGRPCWeb()},
	} {
		server := httptest.NewUnstartedServer(Connect(twoForEachRoute(t, nil)))
		server.EnableHTTP2 = true
		server.StartTLS()
		for method, call := range map[string]func(c *connect.Client[name, name]) error{greet: callGreet, watch: callWatch} {
			c := connect.NewClient[name, name](server.Client(), server.URL+method, options...)
			for range 2 {
				if err := call(c); err != nil {
					t.Errorf("%s: %s: %v", protocol, method, err)
				}
			}
			err := call(c)
			var denial *connect.Error
			if !errors.As(err, &denial) || denial.Code() != connect.CodeResourceExhausted || denial.Meta().Get("Retry-After") != "43200" {
				t.Errorf("%s: %s: a denial is %v", protocol, method, err)
			}
		}
		server.Close()
	}
}

func callGreet(c *connect.Client[name, name]) error {
	_, err := c.CallUnary(context.Background(), connect.NewRequest(wrapperspb.String("ann")))
	return err
}

func callWatch(c *connect.Client[name, name]) error {
	s, err := c.CallServerStream(context.Background(), connect.NewRequest(wrapperspb.String("ann")))
	if err != nil {
		return err
	}
	defer func() { _ = s.Close() }()
	for s.Receive() {
	}
	return s.Err()
}

// Each decision is an event of the span, and is counted.
func TestOpenTelemetry(t *testing.T) {
	reader, spans := metric.NewManualReader(), tracetest.NewSpanRecorder()
	decisions, err := metric.NewMeterProvider(metric.WithReader(reader)).Meter("shop").Float64Histogram("ratelimit.decisions")
	if err != nil {
		t.Fatal(err)
	}
	l := twoForEachRoute(t, OpenTelemetry{Decisions: decisions})
	ctx, span := trace.NewTracerProvider(trace.WithSpanProcessor(spans)).Tracer("shop").Start(t.Context(), "request")
	for range 3 {
		if _, err := l.Allow(ctx, "api", "route", "/"); err != nil {
			t.Fatal(err)
		}
	}
	span.End()

	allowed := 0
	events := spans.Ended()[0].Events()
	for _, e := range events {
		for _, a := range e.Attributes {
			if a.Key == "ratelimit.allowed" && a.Value.AsBool() {
				allowed++
			}
		}
	}
	if len(events) != 3 || allowed != 2 {
		t.Errorf("%d events, %d of requests that passed", len(events), allowed)
	}
	var all metricdata.ResourceMetrics
	if err := reader.Collect(t.Context(), &all); err != nil {
		t.Fatal(err)
	}
	counted := uint64(0)
	for _, p := range all.ScopeMetrics[0].Metrics[0].Data.(metricdata.Histogram[float64]).DataPoints {
		counted += p.Count
	}
	if counted != 3 {
		t.Errorf("%d decisions were counted", counted)
	}
}

// docs/do/go.md shows lines of these files.
func TestPageHasTheLines(t *testing.T) {
	page, err := os.ReadFile("../../docs/do/go.md")
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	lines := map[string]bool{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			lines[strings.TrimSpace(line)] = true
		}
	}
	_, section, found := strings.Cut(string(page), "\n### With other routers\n")
	section, _, _ = strings.Cut(section, "\n### ")
	blocks := strings.Split(section, "```")
	if !found || len(blocks) < 3 {
		t.Fatal("the page has no snippets for other routers")
	}
	for i := 1; i < len(blocks); i += 2 {
		for line := range strings.Lines(strings.TrimPrefix(blocks[i], "go\n")) {
			if line = strings.TrimSpace(line); !lines[line] {
				t.Errorf("no file has the line of the page: %s", line)
			}
		}
	}
}
