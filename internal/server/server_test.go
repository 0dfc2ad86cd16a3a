package server

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/ratelimitd/ratelimitd/internal/limiter"
	"github.com/ratelimitd/ratelimitd/internal/platform/async"
	"github.com/ratelimitd/ratelimitd/internal/platform/endpoint"
	"github.com/ratelimitd/ratelimitd/internal/testkit/servicetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is the longest wait for an expected event.
const patience = 20 * time.Second

var within = servicetest.Within

// decider is a Decider made of a function.
type decider func(ctx context.Context, now time.Time, req *limiter.Request, d *limiter.Decision) error

func (f decider) Decide(ctx context.Context, now time.Time, req *limiter.Request, d *limiter.Decision) error {
	*d = limiter.Decision{Statuses: d.Statuses[:0], Headers: d.Headers[:0], Upstream: d.Upstream[:0]}
	return f(ctx, now, req, d)
}

func (f decider) Start(ctx context.Context, now time.Time, _ *limiter.Batch, req *limiter.Request, d *limiter.Decision, done func(error)) (decided bool, err error) {
	async.Go(func() error { return f.Decide(ctx, now, req, d) }, done)
	return false, nil
}

// passAll lets everything pass, without a limit.
func passAll(_ context.Context, _ time.Time, req *limiter.Request, d *limiter.Decision) error {
	d.Code = limiter.OK
	for range req.Descriptors {
		d.Statuses = append(d.Statuses, limiter.Status{Code: limiter.OK})
	}
	return nil
}

// anyPorts are free ports of this machine.
var anyPorts = Listen{GRPC: "127.0.0.1:0", HTTP: "127.0.0.1:0"}

func failWith(err error) decider {
	return func(context.Context, time.Time, *limiter.Request, *limiter.Decision) error { return err }
}

// running is a server under test.
type running struct {
	*Server
	conn *grpc.ClientConn // gRPC connection
	stop context.CancelFunc
	done <-chan error // result of Run
	log  *servicetest.Log
}

func (r *running) rateLimit() ratelimitv3.RateLimitServiceClient {
	return ratelimitv3.NewRateLimitServiceClient(r.conn)
}

func start(t testing.TB, opts Options) *running {
	t.Helper()
	return startWith(t, endpoint.Options{}, opts)
}

func startWith(t testing.TB, shared endpoint.Options, opts Options) *running {
	t.Helper()
	if opts.Decider == nil {
		opts.Decider = decider(passAll)
	}
	log := new(servicetest.Log)
	shared.Log = slog.New(slog.NewTextHandler(log, nil))
	var err error
	if opts.Shared, err = endpoint.New(shared); err != nil {
		t.Fatal(err)
	}
	defaultTo(&opts.Listen.GRPC, "127.0.0.1:0")
	defaultTo(&opts.Listen.HTTP, "127.0.0.1:0")
	s, err := New(opts)
	if err != nil {
		t.Fatal(err)
	}
	r := &running{Server: s, log: log}
	s.SetServing(true)
	r.stop, r.done = servicetest.Serve(t, s.Run)
	r.conn = dial(t, s.GRPCAddr) // closed before the server stops
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

func TestNewFailsWhereAPortIsTaken(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	free := func() string {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		return l.Addr().String()
	}
	for _, which := range []string{"gRPC", "HTTP"} {
		t.Run(which, func(t *testing.T) {
			addrs := map[string]string{"gRPC": free(), "HTTP": free()}
			addrs[which] = taken.Addr().String()
			_, err := New(Options{Decider: decider(passAll), Listen: Listen{GRPC: addrs["gRPC"], HTTP: addrs["HTTP"]}})
			if err == nil || !strings.Contains(err.Error(), which) || !strings.Contains(err.Error(), taken.Addr().String()) {
				t.Fatalf("error %v does not say what and where", err)
			}
			for other, addr := range addrs { // nothing stays open after the error
				if other == which {
					continue
				}
				l, err := net.Listen("tcp", addr)
				if err != nil {
					t.Errorf("%s listener was left open: %v", other, err)
					continue
				}
				_ = l.Close()
			}
		})
	}
}

func TestNewFailsWhereMetricsAreRegisteredTwice(t *testing.T) {
	shared, err := endpoint.New(endpoint.Options{Metrics: prometheus.NewRegistry()})
	if err != nil {
		t.Fatal(err)
	}
	opts := Options{Decider: decider(passAll), Shared: shared, Listen: anyPorts}
	s, err := New(opts)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if _, err := New(opts); err == nil {
		t.Error("no error")
	}
}

func TestCloseFreesPorts(t *testing.T) {
	s, err := New(Options{Decider: decider(passAll), Listen: anyPorts})
	if err != nil {
		t.Fatal(err)
	}
	s.Close()
	for _, addr := range []net.Addr{s.GRPCAddr, s.HTTPAddr} {
		l, err := net.Listen("tcp", addr.String())
		if err != nil {
			t.Errorf("%v is still taken: %v", addr, err)
			continue
		}
		_ = l.Close()
	}
}

func TestRunFailsWhenAListenerDoes(t *testing.T) {
	s, err := New(Options{Decider: decider(passAll), Listen: anyPorts})
	if err != nil {
		t.Fatal(err)
	}
	_ = s.listeners.http.Close()
	if err := s.Run(within(t)); !errors.Is(err, net.ErrClosed) || !strings.Contains(err.Error(), "HTTP") {
		t.Errorf("Run: %v", err)
	}
}

// held is a decider in which calls wait until they are let go.
type held struct {
	arrived chan struct{}
	release chan struct{}
}

func hold() *held { return &held{arrived: make(chan struct{}, 100), release: make(chan struct{})} }

func (h *held) Decide(ctx context.Context, now time.Time, req *limiter.Request, d *limiter.Decision) error {
	h.arrived <- struct{}{}
	select {
	case <-h.release:
	case <-ctx.Done():
		return ctx.Err()
	}
	return decider(passAll).Decide(ctx, now, req, d)
}

func (h *held) Start(ctx context.Context, now time.Time, _ *limiter.Batch, req *limiter.Request, d *limiter.Decision, done func(error)) (decided bool, err error) {
	async.Go(func() error { return h.Decide(ctx, now, req, d) }, done)
	return false, nil
}

func TestStopLetsCallsInFlightFinish(t *testing.T) {
	h := hold()
	r := start(t, Options{Decider: h})
	type answer struct {
		resp *ratelimitv3.RateLimitResponse
		err  error
	}
	call := make(chan answer, 1)
	go func() {
		resp, err := r.rateLimit().ShouldRateLimit(within(t), smallRequest())
		call <- answer{resp, err}
	}()
	posted := make(chan int, 1)
	go func() {
		code, _, _ := request(t, http.MethodPost, r.HTTPAddr, "/json", strings.NewReader(`{"domain":"d","descriptors":[{}]}`))
		posted <- code
	}()
	<-h.arrived
	<-h.arrived

	r.stop()
	<-r.stopping.Done()
	if err := rejected(within(t), r.GRPCAddr); err != nil {
		t.Errorf("new connections are still accepted: %v", err)
	}
	select {
	case err := <-r.done:
		t.Fatalf("Run returned %v with calls in flight", err)
	default:
	}
	close(h.release)
	if got := <-call; got.err != nil || got.resp.GetOverallCode() != ratelimitv3.RateLimitResponse_OK {
		t.Errorf("the gRPC call in flight got %v, %v", got.resp, got.err)
	}
	if code := <-posted; code != http.StatusOK {
		t.Errorf("the HTTP request in flight got %d", code)
	}
	if err := <-r.done; err != nil {
		t.Errorf("Run: %v", err)
	}
}

// rejected waits until an address does not accept connections any more.
func rejected(ctx context.Context, at net.Addr) error {
	for ctx.Err() == nil {
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", at.String())
		if errors.Is(err, syscall.ECONNREFUSED) {
			return nil
		}
		if err == nil {
			_ = conn.Close()
		}
	}
	return ctx.Err()
}

func TestStopCutsOffWhatDoesNotFinish(t *testing.T) {
	h := hold()
	r := startWith(t, endpoint.Options{StopTimeout: 50 * time.Millisecond}, Options{Decider: h})
	call := make(chan error, 1)
	go func() {
		_, err := r.rateLimit().ShouldRateLimit(within(t), smallRequest())
		call <- err
	}()
	posted := make(chan error, 1)
	go func() {
		resp, err := http.Post("http://"+r.HTTPAddr.String()+"/json", "", strings.NewReader(`{"domain":"d","descriptors":[{}]}`))
		if err == nil {
			_ = resp.Body.Close()
		}
		posted <- err
	}()
	<-h.arrived
	<-h.arrived
	before := time.Now()
	r.stop()
	if err := <-r.done; err != nil {
		t.Errorf("Run: %v", err)
	}
	if took := time.Since(before); took > patience {
		t.Errorf("stopping took %v", took)
	}
	if err := <-call; status.Code(err) != codes.Unavailable {
		t.Errorf("the gRPC call got %v", err)
	}
	if err := <-posted; err == nil {
		t.Error("the HTTP request got an answer")
	}
	for _, what := range []string{"gRPC calls", "HTTP requests"} {
		if !strings.Contains(r.log.String(), what+" did not finish in time") {
			t.Errorf("the log does not say that %s were cut off:\n%s", what, r.log)
		}
	}
}

func TestStopTurnsHealthRedAndStillAnswersDuringDrainDelay(t *testing.T) {
	const delay = time.Second
	r := start(t, Options{DrainDelay: delay})
	watch, err := healthv1.NewHealthClient(r.conn).Watch(within(t), &healthv1.HealthCheckRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if m, err := watch.Recv(); err != nil || m.GetStatus() != healthv1.HealthCheckResponse_SERVING {
		t.Fatalf("Watch: %v, %v", m, err)
	}
	before := time.Now()
	r.stop()
	if m, err := watch.Recv(); err != nil || m.GetStatus() != healthv1.HealthCheckResponse_NOT_SERVING {
		t.Fatalf("Watch after stop: %v, %v", m, err)
	}
	r.SetServing(true) // does not know of the stop yet
	if code, _ := get(t, r.HTTPAddr, "/healthcheck"); code != http.StatusInternalServerError {
		t.Errorf("/healthcheck: %d", code)
	}
	if code, _ := get(t, r.HTTPAddr, "/readyz"); code != http.StatusServiceUnavailable {
		t.Errorf("/readyz: %d", code)
	}
	if code, _ := get(t, r.HTTPAddr, "/livez"); code != http.StatusOK {
		t.Errorf("/livez: %d", code)
	}
	if _, err := ratelimitv3.NewRateLimitServiceClient(dial(t, r.GRPCAddr)).ShouldRateLimit(within(t), smallRequest()); err != nil {
		t.Errorf("a call during the drain delay: %v", err)
	}
	if err := <-r.done; err != nil {
		t.Errorf("Run: %v", err)
	}
	if took := time.Since(before); took < delay {
		t.Errorf("Run returned after %v, before the drain delay had passed", took)
	}
	if _, err := watch.Recv(); err == nil {
		t.Error("Watch goes on")
	}
}
