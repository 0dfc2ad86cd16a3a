package transport

import (
	"context"
	"net"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/ratelimitd/ratelimitd/internal/platform/intake"
)

// echoPath is the method of the tests: it answers each message with itself.
const echoPath = "/test.Echo/Echo"

type echo struct{}

type echoed []byte

func (e echoed) AppendTo(b []byte) []byte { return append(b, e...) }

// Handle implements Handler.
func (echo) Handle(_ time.Time, calls []*Call) {
	for _, c := range calls {
		c.Reply(echoed(c.Message))
	}
}

func newCalls(t testing.TB, most int) *intake.Calls {
	t.Helper()
	m, err := intake.NewMetrics(nil)
	if err != nil {
		t.Fatal(err)
	}
	return intake.NewCalls(most, m)
}

// start serves on a free port of the loopback interface, with the health service.
func start(t testing.TB, h Handler, change func(*Options)) (addr string, s *Server) {
	t.Helper()
	all := new(Services)
	healthv1.RegisterHealthServer(all, health.NewServer())
	o := Options{Path: echoPath, Handler: h, Calls: newCalls(t, 4096), Streams: all.Streams()}
	if change != nil {
		change(&o)
	}
	s = New(o)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = s.Serve(l) }()
	t.Cleanup(s.Close)
	return l.Addr().String(), s
}

// bytesCodec sends bytes as they are.
type bytesCodec struct{}

func (bytesCodec) Marshal(v any) ([]byte, error) { return *v.(*[]byte), nil }
func (bytesCodec) Unmarshal(p []byte, v any) error {
	*v.(*[]byte) = append([]byte(nil), p...)
	return nil
}
func (bytesCodec) Name() string { return "proto" }

func dial(t testing.TB, addr string) *grpc.ClientConn {
	t.Helper()
	c, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func call(ctx context.Context, c *grpc.ClientConn, in []byte) ([]byte, error) {
	var out []byte
	err := c.Invoke(ctx, echoPath, &in, &out, grpc.ForceCodec(bytesCodec{}), grpc.MaxCallRecvMsgSize(64<<20))
	return out, err
}

func TestEcho(t *testing.T) {
	addr, _ := start(t, echo{}, nil)
	c := dial(t, addr)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for _, size := range []int{0, 1, 100, 5000, 100_000, 1 << 20} {
		in := make([]byte, size)
		out, err := call(ctx, c, in)
		if err != nil || len(out) != size {
			t.Fatalf("%d bytes: %d, %v", size, len(out), err)
		}
	}
	if r, err := healthv1.NewHealthClient(c).Check(ctx, &healthv1.HealthCheckRequest{}); err != nil || r.GetStatus() != healthv1.HealthCheckResponse_SERVING {
		t.Errorf("health: %v %v", r, err)
	}
	w, err := healthv1.NewHealthClient(c).Watch(ctx, &healthv1.HealthCheckRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if r, err := w.Recv(); err != nil || r.GetStatus() != healthv1.HealthCheckResponse_SERVING {
		t.Errorf("watch: %v %v", r, err)
	}
}
