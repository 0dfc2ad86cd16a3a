package server

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"sync"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/ratelimitd/ratelimitd/internal/platform/endpoint"
)

// healthNames are the service names of gRPC health, all with the same status. Envoy and Kubernetes check "" by default,
// and clients of envoyproxy/ratelimit check "ratelimit".
var healthNames = []string{
	"",
	"ratelimit",
	ratelimitv3.RateLimitService_ServiceDesc.ServiceName,
}

// readiness tells whether this server wants requests: a single answer for gRPC health, /healthcheck and /readyz.
type readiness struct {
	grpc *health.Server

	mu       sync.Mutex
	serving  bool
	draining bool     // red until the end
	missing  []string // missing conditions, in words
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

// drain turns health red until the end.
func (r *readiness) drain() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.serving, r.draining = false, true
	r.publish()
}

// setMissing marks something as missing or restored.
func (r *readiness) setMissing(what string, missing bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if missing == slices.Contains(r.missing, what) {
		return
	}
	if missing {
		r.missing = append(r.missing, what)
	} else {
		r.missing = slices.DeleteFunc(r.missing, func(s string) bool { return s == what })
	}
	r.publish()
}

func (r *readiness) green() bool { return r.serving && len(r.missing) == 0 }

func (r *readiness) publish() {
	status := healthv1.HealthCheckResponse_NOT_SERVING
	if r.green() {
		status = healthv1.HealthCheckResponse_SERVING
	}
	for _, name := range healthNames {
		r.grpc.SetServingStatus(name, status)
	}
}

// red returns the reason why the server does not want requests, or "" if it does.
func (r *readiness) red() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.green():
		return ""
	case r.draining:
		return "stopping"
	case len(r.missing) > 0:
		return strings.Join(r.missing, "; ")
	default:
		return "starting"
	}
}

// handler answers 200 with the green text while the server is ready, otherwise the code and the reason.
func (r *readiness) handler(green string, code int) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		if why := r.red(); why != "" {
			endpoint.WriteText(w, code, "not ready: "+why)
			return
		}
		endpoint.WriteText(w, http.StatusOK, green)
	}
}

// healthService is gRPC health whose Watch ends when the server stops. grpc-go's Watch would delay a graceful stop
// until the client ends it.
type healthService struct {
	*health.Server
	stopping context.Context // done when the server stops
}

func (h healthService) Watch(req *healthv1.HealthCheckRequest,
	stream grpc.ServerStreamingServer[healthv1.HealthCheckResponse]) error {
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	stop := context.AfterFunc(h.stopping, cancel)
	defer stop()
	name := "unknown" // a name may be as long as a message, and a watch may last for days
	if i := slices.Index(healthNames, req.GetService()); i >= 0 {
		name = healthNames[i]
	}
	req = &healthv1.HealthCheckRequest{Service: name}
	return h.Server.Watch(req, watching{stream, ctx})
}

// watching is a stream with a context that also ends when the server stops.
type watching struct {
	grpc.ServerStreamingServer[healthv1.HealthCheckResponse]
	ctx context.Context
}

func (w watching) Context() context.Context { return w.ctx }
