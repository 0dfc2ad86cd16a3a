package server

import (
	"encoding/hex"
	"testing"

	"google.golang.org/grpc/metadata"

	"github.com/ratelimitd/ratelimitd/internal/platform/tracing"
	"github.com/ratelimitd/ratelimitd/internal/testkit/otlptest"
)

// A call whose client samples its trace arrives at the collector, as a part of that trace.
func TestSpansReachACollector(t *testing.T) {
	c := otlptest.Start(t, "grpc")
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", c.URL)

	tracer, err := tracing.Start(t.Context(), tracing.Options{Protocol: "grpc"}) // samples only traces that clients sample
	if err != nil {
		t.Fatal(err)
	}
	r := start(t, Options{Tracer: tracer})
	const traceID, spanID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
	for _, flags := range []string{"-00", "-01"} {
		ctx := metadata.AppendToOutgoingContext(within(t), "traceparent", "00-"+traceID+"-"+spanID+flags)
		if _, err := r.rateLimit().ShouldRateLimit(ctx, smallRequest()); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := r.rateLimit().ShouldRateLimit(within(t), smallRequest()); err != nil {
		t.Fatal(err)
	}
	if err := tracer.Stop(within(t)); err != nil {
		t.Fatal(err)
	}
	spans, _ := c.Spans()
	if len(spans) != 1 {
		t.Fatalf("received %v", spans)
	}
	span := spans[0]
	about := map[string]string{}
	for _, a := range span.GetAttributes() {
		about[a.GetKey()] = a.GetValue().String()
	}
	if hex.EncodeToString(span.GetTraceId()) != traceID || hex.EncodeToString(span.GetParentSpanId()) != spanID || about["ratelimitd.domain"] != `string_value:"edge-proxy"` {
		t.Errorf("span %v", span)
	}
}
