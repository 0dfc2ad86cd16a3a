package e2e

import (
	"bytes"
	"io"
	"net"
	"slices"
	"sync"
	"testing"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/ratelimitd/ratelimitd/internal/testkit/envoytest"
)

// envoytest builds the header blocks that the transport's tests and benchmarks and the load generator send. They are
// the blocks of this Envoy: the same fields in the same order, encoded to the same bytes, on the first call of a
// connection, on the following ones, and when the dynamic table is full.
func TestHeaderBlocksAreEnvoys(t *testing.T) {
	needsEnvoy(t)
	const calls = 80 // the table is full after 40 traced calls
	for tracing, settings := range map[envoytest.Tracing]string{
		envoytest.Untraced: "",
		envoytest.OpenTelemetry: `
tracing:
  provider:
    name: envoy.tracers.opentelemetry
    typed_config:
      "@type": type.googleapis.com/envoy.config.trace.v3.OpenTelemetryConfig
      service_name: e2e
      grpc_service: {envoy_grpc: {cluster_name: collector}}`,
		envoytest.Zipkin: `
tracing:
  provider:
    name: envoy.tracers.zipkin
    typed_config:
      "@type": type.googleapis.com/envoy.config.trace.v3.ZipkinConfig
      collector_cluster: collector
      collector_endpoint: /api/v2/spans
      collector_endpoint_version: HTTP_JSON`,
	} {
		t.Run(tracing.String(), func(t *testing.T) {
			s := startService(t, tracing.String(), rules(t, perUser(1000)))
			between := record(t, s.GRPC)
			upstream := upstreamCluster(startUpstream(t))
			l := byUser("failure_mode_deny: true")
			l.Connections = settings
			e := startEnvoy(t, bootstrap{Listeners: []listener{l}, Clusters: []cluster{
				upstream,
				{Name: "rls", HTTP2: true, Endpoints: []string{between.addr}},
				{Name: "collector", HTTP2: tracing == envoytest.OpenTelemetry, Endpoints: upstream.Endpoints},
			}})
			for _, code := range e.codes(t, calls, l.Name, "/", "x-user", "u") {
				if code != 200 {
					t.Fatalf("Envoy answers %d", code)
				}
			}
			blocks := between.blocks(t)
			if len(blocks) != calls {
				t.Fatalf("Envoy sent %d header blocks for %d calls", len(blocks), calls)
			}
			decoder := hpack.NewDecoder(4096, nil)
			var encoder envoytest.Encoder
			for i, block := range blocks {
				fields, err := decoder.DecodeFull(block)
				if err != nil {
					t.Fatal(err)
				}
				if got := encoder.Append(nil, fields...); !bytes.Equal(got, block) {
					t.Fatalf("call %d: envoytest encodes %v\n as    %x\n Envoy %x", i, fields, got, block)
				}
				if ours := envoytest.Fields(tracing, "/", "rls"); !slices.EqualFunc(fields, ours, func(a, b hpack.HeaderField) bool { return a.Name == b.Name }) {
					t.Fatalf("call %d has the fields %v, envoytest %v", i, fields, ours)
				}
			}
		})
	}
}

// recorder passes one connection at a time on to a server, and records the bytes that the client sends.
type recorder struct {
	addr string

	mu   sync.Mutex
	sent bytes.Buffer
}

// Write implements io.Writer.
func (r *recorder) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.sent.Write(p)
}

func record(t *testing.T, server string) *recorder {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	r := &recorder{addr: l.Addr().String()}
	go func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			onward, err := net.Dial("tcp", server)
			if err != nil {
				_ = client.Close()
				continue
			}
			go func() {
				_, _ = io.Copy(client, onward)
				_ = client.Close()
			}()
			_, _ = io.Copy(onward, io.TeeReader(client, r))
			_ = onward.Close()
		}
	}()
	return r
}

// blocks returns the header blocks of the connection so far.
func (r *recorder) blocks(t *testing.T) (all [][]byte) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	rest, ok := bytes.CutPrefix(r.sent.Bytes(), []byte(http2.ClientPreface))
	if !ok {
		t.Fatalf("Envoy began with %q", rest[:min(len(rest), 100)])
	}
	framer := http2.NewFramer(nil, bytes.NewReader(rest))
	for {
		frame, err := framer.ReadFrame()
		if err != nil {
			return all // the next frame is incomplete
		}
		if f, ok := frame.(*http2.HeadersFrame); ok {
			all = append(all, bytes.Clone(f.HeaderBlockFragment()))
		}
	}
}
