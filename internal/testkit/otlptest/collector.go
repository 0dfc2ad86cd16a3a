package otlptest

import (
	"compress/gzip"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	collectorv1 "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	tracev1 "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
)

// Collector is an OTLP receiver.
type Collector struct {
	collectorv1.UnimplementedTraceServiceServer

	URL string // value for OTEL_EXPORTER_OTLP_ENDPOINT

	mu       sync.Mutex
	received []*tracev1.ResourceSpans
}

// Start starts a collector for a protocol, "grpc" or "http", which ends with the test.
func Start(t testing.TB, protocol string) *Collector {
	t.Helper()
	c := &Collector{}
	if protocol == "http" {
		s := httptest.NewServer(c)
		t.Cleanup(s.Close)
		c.URL = s.URL
		return c
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
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
	c.URL = "http://" + l.Addr().String()
	return c
}

// Export implements collectorv1.TraceServiceServer.
func (c *Collector) Export(_ context.Context,
	req *collectorv1.ExportTraceServiceRequest) (*collectorv1.ExportTraceServiceResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.received = append(c.received, req.GetResourceSpans()...)
	return &collectorv1.ExportTraceServiceResponse{}, nil
}

// ServeHTTP implements http.Handler.
func (c *Collector) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body := io.Reader(r.Body)
	if r.Header.Get("Content-Encoding") == "gzip" {
		unzipped, err := gzip.NewReader(r.Body)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		body = unzipped
	}
	data, err := io.ReadAll(body)
	var req collectorv1.ExportTraceServiceRequest
	if err == nil {
		err = proto.Unmarshal(data, &req)
	}
	if err != nil || r.URL.Path != "/v1/traces" {
		http.Error(w, r.URL.Path, http.StatusBadRequest)
		return
	}
	_, _ = c.Export(r.Context(), &req)
	w.Header().Set("Content-Type", "application/x-protobuf")
}

// Spans returns the received spans, and the attributes of their sender by key.
func (c *Collector) Spans() (spans []*tracev1.Span, sender map[string]string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	sender = make(map[string]string)
	for _, r := range c.received {
		for _, a := range r.GetResource().GetAttributes() {
			sender[a.GetKey()] = a.GetValue().GetStringValue()
		}
		for _, s := range r.GetScopeSpans() {
			spans = append(spans, s.GetSpans()...)
		}
	}
	return spans, sender
}
