package server

import (
	"context"
	"encoding/hex"
	"net"
	"testing"

	collectorv1 "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/ratelimitd/ratelimitd/internal/tracing"
)

// receiver is a collector of spans.
type receiver struct {
	collectorv1.UnimplementedTraceServiceServer

	got chan *collectorv1.ExportTraceServiceRequest
}

func (r *receiver) Export(_ context.Context, req *collectorv1.ExportTraceServiceRequest) (*collectorv1.ExportTraceServiceResponse, error) {
	r.got <- req
	return &collectorv1.ExportTraceServiceResponse{}, nil
}

// A call whose caller samples its trace arrives at the collector, as a part of that trace.
func TestSpansReachACollector(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &receiver{got: make(chan *collectorv1.ExportTraceServiceRequest, 10)}
	s := grpc.NewServer()
	collectorv1.RegisterTraceServiceServer(s, c)
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	t.Cleanup(func() {
		s.Stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://"+l.Addr().String())

	tracer, err := tracing.Start(t.Context(), tracing.Options{Protocol: "grpc"}) // samples only what callers do
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
	spans := (<-c.got).GetResourceSpans()[0].GetScopeSpans()[0].GetSpans()
	if len(spans) != 1 || len(c.got) != 0 {
		t.Fatalf("received %v and %d more", spans, len(c.got))
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
