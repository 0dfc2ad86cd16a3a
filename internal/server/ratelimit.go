package server

import (
	"context"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ratelimitd/ratelimitd/internal/endpoint"
	"github.com/ratelimitd/ratelimitd/internal/intake"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
)

// Decider decides a request at now and fills d, whose slices it reuses. Its errors wrap a limiter.InvalidError, or a
// context error when the caller's time is over; any other error means that no decision could be made. The request is
// reused after Decide returns. A string of it keeps the whole message in memory: clone a string that is kept.
type Decider interface {
	Decide(ctx context.Context, now time.Time, req *limiter.Request, d *limiter.Decision) error
}

// rateLimit is the envoy.service.ratelimit.v3.RateLimitService.
type rateLimit struct {
	decider Decider
	answers *answers
	shared  *endpoint.Shared
	calls   *intake.Calls

	// The same for every call's interceptor, so they are made once.
	info *grpc.UnaryServerInfo
	next grpc.UnaryHandler
}

// rateLimitDesc is the generated description with a handler that works on plain structs. It keeps name and file
// descriptor, so that reflection shows the same service.
var rateLimitDesc = grpc.ServiceDesc{
	ServiceName: ratelimitv3.RateLimitService_ServiceDesc.ServiceName,
	HandlerType: (*any)(nil),
	Methods:     []grpc.MethodDesc{{MethodName: "ShouldRateLimit", Handler: shouldRateLimit}},
	Metadata:    ratelimitv3.RateLimitService_ServiceDesc.Metadata,
}

func registerRateLimit(to grpc.ServiceRegistrar, s *rateLimit) {
	s.info = &grpc.UnaryServerInfo{Server: s, FullMethod: ratelimitv3.RateLimitService_ShouldRateLimit_FullMethodName}
	s.next = s.decide
	to.RegisterService(&rateLimitDesc, s)
}

// shouldRateLimit is the hot path. It has its own recover, because the message is read before any interceptor runs.
//
//nolint:revive // the order of parameters is that of grpc.MethodHandler
func shouldRateLimit(srv any, ctx context.Context, read func(any) error, interceptor grpc.UnaryServerInterceptor) (answer any, err error) {
	s := srv.(*rateLimit)
	inFlight, ok := s.calls.Begin(connOf(ctx))
	if !ok {
		s.answers.observe(time.Time{}, codes.ResourceExhausted)
		return nil, errTooManyCalls
	}
	c := callPool.Get().(*rateLimitCall)
	c.start, c.size = time.Time{}, 0
	defer func() {
		p := recover()
		s.calls.End(inFlight, c.size)
		if p != nil {
			answer, err = nil, s.shared.Panicked(p, s.info.FullMethod)
		}
		s.answers.observe(c.start, status.Code(err))
		if p == nil {
			c.release() // after a panic something may still refer to it
		}
	}()
	if err := read(c); err != nil {
		return nil, err
	}
	c.start = time.Now()
	s.calls.Arrived(&inFlight, c.start)
	if interceptor != nil {
		return interceptor(ctx, c, s.info, s.next)
	}
	return s.decide(ctx, c)
}

func (s *rateLimit) decide(ctx context.Context, req any) (any, error) {
	c, ok := req.(*rateLimitCall)
	if !ok {
		return nil, status.Errorf(codes.Internal, "an interceptor replaced the request by %T", req)
	}
	if c.err != nil {
		return nil, endpoint.StatusOf(c.err)
	}
	if err := overdue(ctx, c.start); err != nil {
		return nil, endpoint.StatusOf(err) // the caller no longer waits
	}
	if err := s.decider.Decide(ctx, c.start, &c.request, &c.decision); err != nil {
		return nil, endpoint.StatusOf(err)
	}
	return newReply(&c.decision), nil
}

// overdue is the error of a call whose caller no longer waits, else nil. Under load a call may be scheduled after its
// deadline but before the timer that ends its context.
func overdue(ctx context.Context, now time.Time) error {
	if deadline, ok := ctx.Deadline(); ok && !now.Before(deadline) {
		return context.DeadlineExceeded
	}
	return ctx.Err()
}
