package server

import (
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/ratelimitd/ratelimitd/internal/limiter"
	"github.com/ratelimitd/ratelimitd/internal/server/transport"
)

// Decider decides requests. Its errors wrap a limiter.InvalidError, or a context error when the caller's time is over;
// any other error means that no decision could be made. The request is reused after the decision. A string of it keeps
// the whole message in memory: clone a string that is kept.
type Decider = limiter.Decider

// describeRateLimit adds envoy.service.ratelimit.v3.RateLimitService, whose method works on plain structs. The
// description keeps name and file descriptor, so that reflection shows the same service.
func describeRateLimit(to *transport.Services, d *deciding) *method {
	m := newMethod(d, ratelimitv3.RateLimitService_ShouldRateLimit_FullMethodName)
	describeMethods(to, ratelimitv3.RateLimitService_ServiceDesc.ServiceName,
		ratelimitv3.RateLimitService_ServiceDesc.Metadata, m)
	return m
}
