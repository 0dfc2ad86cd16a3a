package server

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"

	"github.com/ratelimitd/ratelimitd/internal/platform/endpoint"
	"github.com/ratelimitd/ratelimitd/internal/platform/intake"
)

// Clients watch health, and keep reflection streams open, for days. These do not use places for calls.
func TestLongStreamsDoNotCountAsCalls(t *testing.T) {
	const watches = 200
	registry := prometheus.NewRegistry()
	r := startWith(t, endpoint.Options{Metrics: registry}, Options{Calls: Calls{Max: 64}, Reflection: true, Connections: Connections{MaxStreams: 300}})
	conn := dial(t, r.GRPCAddr)
	for range watches {
		stream, err := healthv1.NewHealthClient(conn).Watch(t.Context(), &healthv1.HealthCheckRequest{})
		if err == nil {
			_, err = stream.Recv()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for range maxReflections {
		asked := reflect(t, conn)
		asked.services()
	}
	checkMetrics(t, registry, map[string]float64{`ratelimitd_streams{kind=watch}`: watches + maxReflections, `ratelimitd_calls_in_flight`: 0})
	if _, err := r.rateLimit().ShouldRateLimit(within(t), smallRequest()); err != nil {
		t.Error(err)
	}
	_ = conn.Close()
	soon(t, "the streams have ended", func() bool { return gathered(t, registry)[`ratelimitd_streams{kind=watch}`] == 0 })
}

// One peer may use nearly half of the long streams over one connection. Calls are not affected.
func TestLongStreamsAreBounded(t *testing.T) {
	registry := prometheus.NewRegistry()
	r := startWith(t, endpoint.Options{Metrics: registry, Budget: intake.NewBudget(1 << 30)},
		Options{Connections: Connections{MaxStreams: maxLongStreams, MaxBytes: 1 << 30}})
	watch := func(conn *grpc.ClientConn) error {
		stream, err := healthv1.NewHealthClient(conn).Watch(t.Context(), &healthv1.HealthCheckRequest{})
		if err == nil {
			_, err = stream.Recv()
		}
		return err
	}
	greedy, rejected := dial(t, r.GRPCAddr), 0
	for range maxLongStreams/2 + 50 {
		if err := watch(greedy); status.Code(err) == codes.ResourceExhausted {
			rejected++
		} else if err != nil {
			t.Fatal(err)
		}
	}
	m := gathered(t, registry)
	if counted := m[`ratelimitd_streams_rejected_total{kind=watch reason=connection}`] + m[`ratelimitd_streams_rejected_total{kind=watch reason=peer}`]; rejected == 0 || counted != float64(rejected) {
		t.Errorf("%d streams were rejected, and %v counted", rejected, counted)
	}
	if _, err := r.rateLimit().ShouldRateLimit(within(t), smallRequest()); err != nil {
		t.Error("a call of another connection:", err)
	}
}

// Only a few people use reflection at a time. Each stream may keep a long answer in memory, so their number is small.
func TestReflectionStreamsAreBounded(t *testing.T) {
	registry := prometheus.NewRegistry()
	r := startWith(t, endpoint.Options{Metrics: registry}, Options{Reflection: true})
	open := func() (reflectionv1.ServerReflection_ServerReflectionInfoClient, error) {
		stream, err := reflectionv1.NewServerReflectionClient(dial(t, r.GRPCAddr)).ServerReflectionInfo(within(t))
		if err != nil {
			return nil, err
		}
		err = stream.Send(&reflectionv1.ServerReflectionRequest{MessageRequest: &reflectionv1.ServerReflectionRequest_ListServices{}})
		if err == nil || errors.Is(err, io.EOF) { // Recv returns the reason for the end of the stream
			_, err = stream.Recv()
		}
		return stream, err
	}
	var last reflectionv1.ServerReflection_ServerReflectionInfoClient
	for range maxReflections {
		var err error
		if last, err = open(); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := open(); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("one too many: %v", err)
	}
	checkMetrics(t, registry, map[string]float64{
		`ratelimitd_streams{kind=watch}`: maxReflections, `ratelimitd_streams_rejected_total{kind=watch reason=reflection}`: 1,
	})
	watch, err := healthv1.NewHealthClient(r.conn).Watch(within(t), &healthv1.HealthCheckRequest{})
	if err == nil {
		_, err = watch.Recv()
	}
	if err != nil {
		t.Error("health is watched:", err)
	}
	if err := last.CloseSend(); err != nil {
		t.Fatal(err)
	}
	if _, err := last.Recv(); !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	if _, err := open(); err != nil {
		t.Error("a place is free again:", err)
	}
}

// Reflection answers a small question with a large answer, so it must be enabled.
func TestReflectionIsOff(t *testing.T) {
	r := start(t, Options{})
	stream, err := reflectionv1.NewServerReflectionClient(r.conn).ServerReflectionInfo(within(t))
	if err == nil {
		_, err = stream.Recv()
	}
	if status.Code(err) != codes.Unimplemented {
		t.Error(err)
	}
}

// A request that is not a gRPC call does not use a place for calls, however long its body is.
func TestEndlessBody(t *testing.T) {
	r := start(t, Options{})
	plain := new(http.Transport)
	plain.Protocols = new(http.Protocols)
	plain.Protocols.SetUnencryptedHTTP2(true)
	t.Cleanup(plain.CloseIdleConnections)
	body, feed := io.Pipe()
	req, err := http.NewRequestWithContext(within(t), http.MethodPost, "http://"+r.GRPCAddr.String()+"/upload", body)
	if err != nil {
		t.Fatal(err)
	}
	answered := make(chan string, 1)
	go func() {
		resp, err := (&http.Client{Transport: plain}).Do(req)
		if err != nil {
			answered <- err.Error()
			return
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		answered <- fmt.Sprint(resp.StatusCode, string(text), err)
	}()
	if _, err := feed.Write([]byte("more")); err != nil {
		t.Fatal(err)
	}
	if n := r.calls.InFlight(); n != 0 {
		t.Errorf("%d calls in flight", n)
	}
	_ = feed.Close()
	if got, want := <-answered, fmt.Sprint(http.StatusUnsupportedMediaType, "this port answers gRPC calls\n", nil); got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// When a client stops reading a stream's answers, its messages on the stream are not received, but they count.
func TestStreamThatIsNotReadCounts(t *testing.T) {
	registry := prometheus.NewRegistry()
	r := startWith(t, endpoint.Options{Metrics: registry}, Options{Reflection: true})
	c := rawDial(t, r.GRPCAddr)
	if err := c.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0}); err != nil {
		t.Fatal(err)
	}
	if err := c.open(reflectionv1.ServerReflection_ServerReflectionInfo_FullMethodName); err != nil {
		t.Fatal(err)
	}
	ask := encode(t, &reflectionv1.ServerReflectionRequest{
		Host: strings.Repeat("x", 10_000), MessageRequest: &reflectionv1.ServerReflectionRequest_ListServices{},
	})
	const sent = 80
	for range sent {
		if err := c.send(len(ask), ask, false); err != nil {
			t.Fatal(err)
		}
	}
	// One message is being answered. Answers repeat the question.
	soon(t, "the others count", func() bool {
		return gathered(t, registry)[`ratelimitd_client_bytes{class=grpc}`] >= (sent-3)*10_000
	})
	if m := gathered(t, registry)[`ratelimitd_client_bytes{class=grpc}`]; m < (sent-3)*10_000 {
		t.Errorf("%v bytes count", m)
	}
	_ = c.Close()
	soon(t, "nothing counts", func() bool { return gathered(t, registry)[`ratelimitd_client_bytes{class=grpc}`] == 0 })
}
