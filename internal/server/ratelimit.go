package server

import (
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"

	"github.com/ratelimitd/ratelimitd/internal/limiter"
)

// Decider decides requests. Its errors wrap a limiter.InvalidError, or a context error when the caller's time is over; any other error means
// that no decision could be made. The request is reused after the decision. A string of it keeps the whole message in memory: clone a
// string that is kept.
type Decider = limiter.Decider

// registerRateLimit registers envoy.service.ratelimit.v3.RateLimitService, with a handler that works on plain structs. The
// description keeps name and file descriptor, so that reflection shows the same service.
func registerRateLimit(to grpc.ServiceRegistrar, d *deciding) *method {
	m := newMethod(d, ratelimitv3.RateLimitService_ShouldRateLimit_FullMethodName)
	register(to, ratelimitv3.RateLimitService_ServiceDesc.ServiceName, ratelimitv3.RateLimitService_ServiceDesc.Metadata, m)
	return m
}

// register registers a service with its methods. file is the name of its file descriptor.
func register(to grpc.ServiceRegistrar, service string, file any, methods ...*method) {
	desc := &grpc.ServiceDesc{ServiceName: service, HandlerType: (*any)(nil), Metadata: file}
	for _, m := range methods {
		name := m.info.FullMethod[len(service)+2:] // "/" service "/" name
		desc.Methods = append(desc.Methods, grpc.MethodDesc{MethodName: name, Handler: m.handler})
	}
	to.RegisterService(desc, methods[0].deciding)
}
