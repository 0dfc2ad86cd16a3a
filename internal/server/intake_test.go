package server

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math"
	"net"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/net/http2"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/ratelimitd/ratelimitd/internal/limiter"
	"github.com/ratelimitd/ratelimitd/internal/platform/endpoint"
	"github.com/ratelimitd/ratelimitd/internal/platform/intake"
	"github.com/ratelimitd/ratelimitd/internal/testkit/http2test"
)

// rawClient is a client that sends any frames.
type rawClient struct {
	net.Conn
	*http2test.Client
}

func rawDial(t *testing.T, to net.Addr) *rawClient {
	t.Helper()
	conn, err := net.Dial("tcp", to.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	c := &rawClient{conn, http2test.New(conn, conn)}
	if err := c.Greet(); err != nil {
		t.Fatal(err)
	}
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	return c
}

// open starts a call of a method, and sends no message.
func (c *rawClient) open(method string, more ...string) error {
	return c.Begin(c.Encode(http2test.Fields(method, more...)...))
}

// send sends the message of the last call, with claimed as its length prefix.
func (c *rawClient) send(claimed int, message []byte, end bool) error {
	return c.WriteData(c.Stream, end, http2test.Message(claimed, message))
}

// ended reads until the server closes the connection, and fails if it does not.
func (c *rawClient) ended(t *testing.T) {
	t.Helper()
	if _, err := io.Copy(io.Discard, c.Conn); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatal("the connection stays open")
	}
}

// rejections counts rejected streams, until the given number of frames has reported them.
func (c *rawClient) rejections(t *testing.T, want int) {
	t.Helper()
	rejected := 0
	for rejected < want {
		f, err := c.ReadFrame()
		if err != nil {
			t.Fatalf("%d streams were rejected, want %d: %v", rejected, want, err)
		}
		if reset, ok := f.(*http2.RSTStreamFrame); ok && reset.ErrCode == http2.ErrCodeRefusedStream {
			rejected++
		}
	}
}

func smallMessage(t *testing.T) []byte {
	t.Helper()
	message, err := proto.Marshal(smallRequest())
	if err != nil {
		t.Fatal(err)
	}
	return message
}

const shouldRateLimitPath = ratelimitv3.RateLimitService_ShouldRateLimit_FullMethodName

func TestStreamsOfAConnectionAreBounded(t *testing.T) {
	r := start(t, Options{})
	c := rawDial(t, r.GRPCAddr)
	go func() {
		for range 1_500 {
			if c.open(shouldRateLimitPath) != nil {
				return
			}
		}
	}()
	c.rejections(t, 500)
	if _, err := r.rateLimit().ShouldRateLimit(within(t), smallRequest()); err != nil {
		t.Error("a call on another connection:", err)
	}
}

// Calls that never send their message count too, for every service.
func TestCallsInFlightAreBounded(t *testing.T) {
	for _, method := range []string{shouldRateLimitPath, "/grpc.health.v1.Health/Check", "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"} {
		t.Run(method, func(t *testing.T) {
			registry := prometheus.NewRegistry()
			r := startWith(t, endpoint.Options{Metrics: registry}, Options{Calls: Calls{Max: 64}})
			for range 2 {
				c := rawDial(t, r.GRPCAddr)
				for range 100 {
					if err := c.open(method); err != nil {
						t.Fatal(err)
					}
				}
				answered := 0 // each connection gets at most half of the free places
				for answered < 66 {
					f, err := c.ReadFrame()
					if err != nil {
						t.Fatalf("%d calls were rejected: %v", answered, err)
					}
					if h, ok := f.(*http2.HeadersFrame); ok && h.StreamEnded() {
						answered++
					}
				}
			}
			if _, err := r.rateLimit().ShouldRateLimit(within(t), smallRequest()); err != nil {
				t.Error("a call on another connection:", err)
			}
			if n := r.calls.InFlight(); n > 64 {
				t.Errorf("%d calls in flight", n)
			}
		})
	}
}

func TestTooManyCallsAreRejectedAtOnce(t *testing.T) {
	registry := prometheus.NewRegistry()
	began, end := make(chan struct{}), make(chan struct{})
	r := startWith(t, endpoint.Options{Metrics: registry}, Options{Calls: Calls{Max: 1}, Decider: decider(func(context.Context, time.Time, *limiter.Request, *limiter.Decision) error {
		began <- struct{}{}
		<-end
		return nil
	})})
	first := make(chan error, 1)
	go func() {
		_, err := r.rateLimit().ShouldRateLimit(within(t), smallRequest())
		first <- err
	}()
	<-began
	if _, err := r.rateLimit().ShouldRateLimit(within(t), smallRequest()); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("one too many: %v", err)
	}
	if code, _, _ := request(t, http.MethodPost, r.HTTPAddr, "/json", strings.NewReader(`{"domain": "d"}`)); code != 503 {
		t.Errorf("one too many over HTTP: %d", code)
	}
	checkMetrics(t, registry, map[string]float64{
		`ratelimitd_calls_in_flight`:                                       1,
		`ratelimitd_calls_rejected_total{bound=all}`:                       2,
		`ratelimitd_requests_total{code=ResourceExhausted transport=grpc}`: 1,
		`ratelimitd_requests_total{code=ResourceExhausted transport=json}`: 1,
	})
	close(end)
	if err := <-first; err != nil {
		t.Error(err)
	}
}

// A call whose deadline passes before its turn is not decided: its client has given up, so its hits must not count.
func TestOverdueCallsAreNotDecided(t *testing.T) {
	var decided atomic.Int64
	r := start(t, Options{Decider: decider(func(context.Context, time.Time, *limiter.Request, *limiter.Decision) error {
		decided.Add(1)
		return nil
	})})
	c, message := rawDial(t, r.GRPCAddr), smallMessage(t)
	if err := errors.Join(c.open(shouldRateLimitPath, "grpc-timeout", "1n"), c.send(len(message), message, true)); err != nil {
		t.Fatal(err)
	}
	for answered := false; !answered; {
		f, err := c.ReadFrame()
		if err != nil {
			t.Fatal(err)
		}
		if h, ok := f.(*http2.HeadersFrame); ok {
			answered = h.StreamEnded()
		}
	}
	r.stop()
	if err := <-r.done; err != nil {
		t.Error(err)
	}
	if n := decided.Load(); n > 0 {
		t.Error("it was decided")
	}
}

// Without a bound, answers that a client does not read accumulate: 1.2 GB in five seconds. The other bounds are out of
// reach here.
func TestClientThatNeverReads(t *testing.T) {
	registry := prometheus.NewRegistry()
	long := strings.Repeat("x", 50_000) // a few answers fill the kernel's buffers
	r := startWith(t, endpoint.Options{Metrics: registry}, Options{
		Calls:       Calls{Max: math.MaxInt32},
		Connections: Connections{WriteTimeout: 100 * time.Millisecond, MaxStreams: math.MaxUint32, MaxBytes: 1 << 40},
		Decider: decider(func(_ context.Context, _ time.Time, _ *limiter.Request, d *limiter.Decision) error {
			d.Headers = append(d.Headers, limiter.Header{Key: "x", Value: long})
			return nil
		}),
	})
	c := rawDial(t, r.GRPCAddr)
	if err := c.WriteWindowUpdate(0, 1<<30); err != nil { // otherwise HTTP/2 itself delays the answers
		t.Fatal(err)
	}
	var batch bytes.Buffer
	c.Framer = http2.NewFramer(&batch, c.Conn)
	message := smallMessage(t)
	for {
		for range 500 {
			if err := errors.Join(c.open(shouldRateLimitPath), c.send(len(message), message, true)); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := batch.WriteTo(c.Conn); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatal("it may send for ever")
		} else if err != nil {
			break
		}
	}
	checkMetrics(t, registry, map[string]float64{`ratelimitd_connections_closed_total{listener=grpc reason=not_reading}`: 1})
	if _, err := r.rateLimit().ShouldRateLimit(within(t), smallRequest()); err != nil {
		t.Error("a call on another connection:", err)
	}
}

func TestMessageThatNeverArrives(t *testing.T) {
	registry := prometheus.NewRegistry()
	r := startWith(t, endpoint.Options{Metrics: registry}, Options{Connections: Connections{MessageTimeout: 50 * time.Millisecond}})
	c := rawDial(t, r.GRPCAddr)
	if err := c.open(shouldRateLimitPath); err != nil {
		t.Fatal(err)
	}
	c.ended(t)
	checkMetrics(t, registry, map[string]float64{`ratelimitd_connections_closed_total{listener=grpc reason=no_message}`: 1})
}

func TestConnectionThatMakesNoCall(t *testing.T) {
	registry := prometheus.NewRegistry()
	r := startWith(t, endpoint.Options{Metrics: registry}, Options{Connections: Connections{FirstCallTimeout: 50 * time.Millisecond}})
	c := rawDial(t, r.GRPCAddr)
	go func() {
		pace := time.NewTicker(2 * leastPingInterval)
		defer pace.Stop()
		for c.WritePing(false, [8]byte{}) == nil { // a ping does not count as a call
			<-pace.C
		}
	}()
	c.ended(t)
	checkMetrics(t, registry, map[string]float64{`ratelimitd_connections_closed_total{listener=grpc reason=no_call}`: 1})
}

// Neither x/net's framer nor grpc-go counts empty CONTINUATION frames.
func TestEndlessContinuation(t *testing.T) {
	registry := prometheus.NewRegistry()
	r := startWith(t, endpoint.Options{Metrics: registry}, Options{})
	c := rawDial(t, r.GRPCAddr)
	if err := c.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: c.Encode(http2test.Fields(shouldRateLimitPath)...)}); err != nil {
		t.Fatal(err)
	}
	for {
		if err := c.WriteContinuation(1, false, nil); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatal("it may send for ever")
		} else if err != nil {
			break
		}
	}
	checkMetrics(t, registry, map[string]float64{`ratelimitd_connections_closed_total{listener=grpc reason=headers}`: 1})
}

func TestUnfinishedMessagesAreBounded(t *testing.T) {
	for name, bounds := range map[string]struct{ connection, all int64 }{"of a connection": {1 << 20, 1 << 30}, "of all": {1 << 30, 1 << 20}} {
		t.Run(name, func(t *testing.T) {
			registry := prometheus.NewRegistry()
			r := startWith(t, endpoint.Options{Metrics: registry, Budget: intake.NewBudget(bounds.all)},
				Options{Connections: Connections{MaxBytes: bounds.connection}})
			c := rawDial(t, r.GRPCAddr)
			go func() {
				for c.open(shouldRateLimitPath) == nil && c.send(4<<20-1, make([]byte, 10_000), false) == nil {
					for range 5 {
						if c.WriteData(c.Stream, false, make([]byte, 10_000)) != nil {
							return
						}
					}
				}
			}()
			c.ended(t)
			checkMetrics(t, registry, map[string]float64{`ratelimitd_connections_closed_total{listener=grpc reason=bytes}`: 1})
		})
	}
}

// The memory of finished, rejected and cancelled calls does not accumulate.
func TestFinishedMessagesAreNotHeld(t *testing.T) {
	r := start(t, Options{Connections: Connections{MaxBytes: 1 << 20}, Requests: Requests{MaxDescriptors: 1, MaxBytes: 200_000}})
	large := smallRequest()
	large.Domain = string(bytes.Repeat([]byte("d"), 60_000))
	for range 100 {
		if _, err := r.rateLimit().ShouldRateLimit(within(t), large); err != nil {
			t.Fatal(err)
		}
	}
}

// A call that does not end, not even with its context, must not keep the server from stopping.
func TestStopTimeoutIsHard(t *testing.T) {
	began, end := make(chan struct{}), make(chan struct{})
	r := startWith(t, endpoint.Options{StopTimeout: 50 * time.Millisecond}, Options{Decider: decider(func(context.Context, time.Time, *limiter.Request, *limiter.Decision) error {
		close(began)
		<-end
		return nil
	})})
	go func() { _, _ = r.rateLimit().ShouldRateLimit(within(t), smallRequest()) }()
	<-began
	r.stop()
	select {
	case err := <-r.done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(patience):
		t.Error("it does not stop")
	}
	close(end)
}
