package server

import (
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/ratelimitd/ratelimitd/internal/limiter"
	"github.com/ratelimitd/ratelimitd/internal/server/transport"
)

// Decider decides requests. Its errors wrap a limiter.InvalidError, or a context error if the client no longer waits;
// after any other error there is no decision. The request is reused after the decision. Its strings keep the whole
// message in memory, so clone a string that is kept.
type Decider = limiter.Decider

// describeRateLimit adds envoy.service.ratelimit.v3.RateLimitService, whose method uses plain structs. Name and file
// descriptor are the original ones, so reflection shows the same service.
func describeRateLimit(to *transport.Services, d *deciding) *method {
	m := newMethod(d, ratelimitv3.RateLimitService_ShouldRateLimit_FullMethodName)
	describeMethods(to, ratelimitv3.RateLimitService_ServiceDesc.ServiceName,
		ratelimitv3.RateLimitService_ServiceDesc.Metadata, m)
	return m
}
