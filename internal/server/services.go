package server

import (
	quotav3 "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/reflection"

	"github.com/ratelimitd/ratelimitd/internal/server/transport"
)

// newServices returns the services for clients, and the methods that decide, starting with the one that is called most.
func (s *Server) newServices(opts *Options) (*transport.Services, []*method) {
	all := &transport.Services{}
	d := &deciding{decider: opts.Decider, answers: &s.metrics.grpc, shared: s.shared, bounds: opts.Requests}
	methods := []*method{describeRateLimit(all, d)}
	describeOwn()
	methods = append(methods, describeReservations(all, d, opts.Reservations)...)
	methods = append(methods, describeDecisions(all, d))
	methods = append(methods, describeKuadrant(all, d, opts.Reservations)...)
	if s.quota != nil {
		all.Describe(&quotav3.RateLimitQuotaService_ServiceDesc)
		all.Add(quotav3.RateLimitQuotaService_StreamRateLimitQuotas_FullMethodName,
			&transport.StreamMethod{Serve: s.quota.serve, Admit: s.quota.admit, MaxMessageBytes: s.quota.most})
	}
	healthv1.RegisterHealthServer(all.Admitting(s.long.admit), healthService{s.readiness.grpc, s.stopping})
	if opts.Reflection {
		reflection.Register(all.Admitting(s.long.admitReflection))
	}
	return all, methods
}
