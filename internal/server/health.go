package server

import (
	"context"
	"net/http"
	"slices"
	"sync"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
)

// healthNames are the services that gRPC health is asked for. They are always alike: "" is what Envoy and Kubernetes
// ask by default, "ratelimit" what callers of the reference ask.
var healthNames = []string{
	"",
	"ratelimit",
	ratelimitv3.RateLimitService_ServiceDesc.ServiceName,
}

// readiness is whether this server wants requests: one answer for gRPC health, /healthcheck and /readyz.
type readiness struct {
	grpc *health.Server

	mu       sync.Mutex
	serving  bool
	draining bool     // red for good
	lacks    []string // what has to be there first
}

func newReadiness() *readiness {
	r := &readiness{grpc: health.NewServer()}
	r.set(false)
	return r
}

func (r *readiness) set(serving bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.draining {
		return
	}
	r.serving = serving
	r.publish()
}

// drain turns red and stays so.
func (r *readiness) drain() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.serving, r.draining = false, true
	r.publish()
}

// lack says whether something is missing without which requests are not wanted.
func (r *readiness) lack(what string, missing bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if missing == slices.Contains(r.lacks, what) {
		return
	}
	if missing {
		r.lacks = append(r.lacks, what)
	} else {
		r.lacks = slices.DeleteFunc(r.lacks, func(s string) bool { return s == what })
	}
	r.publish()
}

func (r *readiness) green() bool { return r.serving && len(r.lacks) == 0 }

func (r *readiness) publish() {
	status := healthv1.HealthCheckResponse_NOT_SERVING
	if r.green() {
		status = healthv1.HealthCheckResponse_SERVING
	}
	for _, name := range healthNames {
		r.grpc.SetServingStatus(name, status)
	}
}

func (r *readiness) ready() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.green()
}

// handler answers 200 with a body while the server is ready, else the given code.
func (r *readiness) handler(green string, code int, red string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		if r.ready() {
			writeText(w, http.StatusOK, green)
			return
		}
		writeText(w, code, red)
	}
}

// healthService is gRPC health. Its Watch ends when the server stops: grpc-go's own would hold a graceful stop up for as
// long as anybody watches.
type healthService struct {
	*health.Server
	stopping context.Context // done when the server stops
}

func (h healthService) Watch(req *healthv1.HealthCheckRequest, stream grpc.ServerStreamingServer[healthv1.HealthCheckResponse]) error {
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	stop := context.AfterFunc(h.stopping, cancel)
	defer stop()
	return h.Server.Watch(req, watching{stream, ctx})
}

// watching is a stream with a context that also ends when the server stops.
type watching struct {
	grpc.ServerStreamingServer[healthv1.HealthCheckResponse]
	ctx context.Context
}

func (w watching) Context() context.Context { return w.ctx }
