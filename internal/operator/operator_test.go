package operator

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"

	"github.com/ratelimitd/ratelimitd/internal/platform/endpoint"
	"github.com/ratelimitd/ratelimitd/internal/testkit/servicetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is the timeout for events that a test expects.
const patience = 20 * time.Second

var within = servicetest.Within

// running is a server under test.
type running struct {
	*Server
	admin *grpc.ClientConn // connection to the admin port; nil if it is closed
	stop  context.CancelFunc
	done  <-chan error // result of Run
	log   *servicetest.Log
}

func start(t testing.TB, opts Options) *running {
	t.Helper()
	return startWith(t, endpoint.Options{}, opts)
}

func startWith(t testing.TB, shared endpoint.Options, opts Options) *running {
	t.Helper()
	log := new(servicetest.Log)
	shared.Log = slog.New(slog.NewTextHandler(log, nil))
	var err error
	if opts.Shared, err = endpoint.New(shared); err != nil {
		t.Fatal(err)
	}
	if opts.Addr == "" {
		opts.Addr = "127.0.0.1:0"
	}
	s, err := New(opts)
	if err != nil {
		t.Fatal(err)
	}
	r := &running{Server: s, log: log}
	r.stop, r.done = servicetest.Serve(t, s.Run)
	if s.DebugAddr != nil {
		r.admin = dial(t, s.DebugAddr) // closed before the server stops
	}
	return r
}

func dial(t testing.TB, to net.Addr, opts ...grpc.DialOption) *grpc.ClientConn {
	t.Helper()
	return servicetest.Dial(t, to.String(), opts...)
}

func get(t testing.TB, at net.Addr, path string) (int, string) {
	t.Helper()
	return servicetest.Get(t, "http://"+at.String()+path)
}

func request(t testing.TB, method string, at net.Addr, path string, body io.Reader) (int, http.Header, string) {
	t.Helper()
	return servicetest.Send(t, method, "http://"+at.String()+path, body)
}

// reflected lists the services of a server, over a stream that stays open.
func reflected(t *testing.T, conn *grpc.ClientConn) (stream reflectionv1.ServerReflection_ServerReflectionInfoClient, services []string) {
	t.Helper()
	stream, err := reflectionv1.NewServerReflectionClient(conn).ServerReflectionInfo(within(t))
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&reflectionv1.ServerReflectionRequest{MessageRequest: &reflectionv1.ServerReflectionRequest_ListServices{}}); err != nil {
		t.Fatal(err)
	}
	resp, err := stream.Recv()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range resp.GetListServicesResponse().GetService() {
		services = append(services, s.GetName())
	}
	slices.Sort(services)
	return stream, services
}

func TestCloseFreesPorts(t *testing.T) {
	s, err := New(Options{Addr: "127.0.0.1:0", Scrapes: Scrapes{Addr: "127.0.0.1:0", Handler: http.NotFoundHandler()}})
	if err != nil {
		t.Fatal(err)
	}
	s.Close()
	for _, addr := range []net.Addr{s.DebugAddr, s.MetricsAddr} {
		l, err := net.Listen("tcp", addr.String())
		if err != nil {
			t.Errorf("%v is still taken: %v", addr, err)
			continue
		}
		_ = l.Close()
	}
}

// Clients do not need the listeners of operators and scrapers: the service runs without one that cannot be opened.
func TestPortsThatCannotBeOpened(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	r := start(t, Options{Addr: taken.Addr().String(), Scrapes: Scrapes{Addr: "nowhere", Handler: http.NotFoundHandler()}})
	if r.DebugAddr != nil || r.MetricsAddr != nil {
		t.Errorf("it listens on %v and %v", r.DebugAddr, r.MetricsAddr)
	}
	if lines := r.log.With("the service runs without it"); len(lines) != 2 || !strings.Contains(lines[0], "level=ERROR") {
		t.Errorf("the log says %q", lines)
	}
}
