package server

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
	"github.com/ratelimitd/ratelimitd/internal/limiter/grpcstatus"
	"github.com/ratelimitd/ratelimitd/internal/platform/async"
	"github.com/ratelimitd/ratelimitd/internal/platform/endpoint"
	"github.com/ratelimitd/ratelimitd/internal/platform/intake"
)

// method is one method of the services for callers: how its messages become a request for a decision, and a decision its answer.
type method struct {
	*deciding

	info *grpc.UnaryServerInfo // the same for every call's interceptor, like next
	next grpc.UnaryHandler

	// decode reads a message, which text has as a string, into c.request. encode appends the answer to b. Nil: the functions
	// of ShouldRateLimit.
	decode func(c *rateLimitCall, data []byte, text string) error
	encode func(c *rateLimitCall, b []byte) ([]byte, error)

	// batches is set if decode reads the requests of a batch into c.batch, not one request into c.request.
	batches bool

	pool *sync.Pool // of *rateLimitCall
	most int        // bytes of the messages and answers whose memory is reused
}

// deciding is what the methods have in common.
type deciding struct {
	decider Decider
	answers *answers
	shared  *endpoint.Shared
	calls   *intake.Calls // nil on the built-in HTTP/2 server, which counts them itself
	bounds  Requests
}

// newMethod returns a method of a service. srv is what interceptors see as the server.
func newMethod(d *deciding, path string) *method {
	m := &method{deciding: d, info: &grpc.UnaryServerInfo{Server: d, FullMethod: path}, pool: &callPool, most: maxKept}
	m.next = m.decideAndWait
	return m
}

// handler answers the method over grpc-go. It has its own recover, because the message is read before any interceptor runs.
//
//nolint:revive // grpc.MethodHandler fixes the order of the parameters
func (m *method) handler(_ any, ctx context.Context, read func(any) error, interceptor grpc.UnaryServerInterceptor) (answer any, err error) {
	inFlight, ok := m.calls.Begin(connOf(ctx))
	if !ok {
		m.answers.observe(time.Time{}, codes.ResourceExhausted)
		return nil, errTooManyCalls
	}
	c := m.pool.Get().(*rateLimitCall)
	c.method, c.inFlight, c.start, c.size = m, inFlight, time.Time{}, 0
	if m.calls == nil {
		c.exchange = exchangeOf(ctx)
	}
	defer func() {
		p := recover()
		m.calls.End(c.inFlight, c.size)
		if p != nil {
			answer, err = nil, m.shared.Panicked(p, m.info.FullMethod)
		}
		m.answers.observe(c.start, status.Code(err))
		if p == nil {
			c.release() // after a panic something may still refer to it
		}
	}()
	if err := read(c); err != nil {
		return nil, err
	}
	c.start = time.Now()
	m.calls.Arrived(&c.inFlight, c.start)
	if interceptor != nil {
		return interceptor(ctx, c, m.info, m.next)
	}
	return m.decideAndWait(ctx, c)
}

// decide begins to decide a call whose request is read, as limiter.Decider does.
func (m *method) decide(ctx context.Context, b *limiter.Batch, c *rateLimitCall, done func(error)) (decided bool, err error) {
	if err := overdue(ctx, c.start); err != nil {
		return true, err // the caller no longer waits
	}
	if m.batches {
		return c.startBatch(ctx, b, done), nil
	}
	return m.decider.Start(ctx, c.start, b, &c.request, &c.decision, done)
}

// wait decides a call, and waits for the decision.
func (m *method) wait(ctx context.Context, c *rateLimitCall) error {
	w := async.NewWaiter()
	decided, err := m.decide(ctx, &c.outgoing, c, w.Done)
	c.outgoing.Send()
	return limiter.Ended(w, decided, err)
}

// decideAndWait decides a call over grpc-go, and returns the answer.
func (m *method) decideAndWait(ctx context.Context, req any) (any, error) {
	c, ok := req.(*rateLimitCall)
	if !ok {
		return nil, status.Errorf(codes.Internal, "an interceptor replaced the request by %T", req)
	}
	if _, ok := status.FromError(c.err); c.err != nil && ok {
		return nil, c.err
	}
	if c.err != nil {
		return nil, grpcstatus.Of(c.err)
	}
	if err := m.wait(ctx, c); err != nil {
		return nil, grpcstatus.Of(err)
	}
	if c.decision.Delay > 0 {
		if err := grpc.SetHeader(ctx, metadata.Pairs(descriptor.DelayHeader, delayMillis(&c.decision))); err != nil {
			return nil, status.Errorf(codes.Internal, "set the header of the answer: %v", err)
		}
	}
	r, err := newReply(c)
	if err != nil {
		return nil, grpcstatus.Of(err)
	}
	return r, nil
}

// read reads a message, which text has as a string.
func (m *method) read(c *rateLimitCall, data []byte, text string) error {
	if m.decode == nil {
		return decodeText(data, text, &c.request, m.bounds)
	}
	return m.decode(c, data, text)
}

// append appends the answer to a call.
func (m *method) append(c *rateLimitCall, b []byte) ([]byte, error) {
	if m.encode == nil {
		return appendResponse(b, &c.decision), nil
	}
	return m.encode(c, b)
}

// delayMillis is the delay as headers have it. Callers get it in the metadata of the answer, whatever the answer says to Envoy.
func delayMillis(d *limiter.Decision) string {
	return strconv.FormatInt(limiter.Millis(d.Delay), 10)
}

// overdue is the error of a call whose caller no longer waits, else nil. Under load a call may be scheduled after its
// deadline but before the timer that ends its context.
func overdue(ctx context.Context, now time.Time) error {
	if deadline, ok := ctx.Deadline(); ok && !now.Before(deadline) {
		return context.DeadlineExceeded
	}
	return ctx.Err()
}

// statusOf is the gRPC status for an error. A panic is logged.
func (m *method) statusOf(err error) *status.Status {
	if p, ok := errors.AsType[*async.PanicError](err); ok {
		err = m.shared.PanickedAt(p.Value, m.info.FullMethod, p.Stack)
	} else if err != errTooManyCalls { //nolint:errorlint // it is returned as it is
		err = grpcstatus.Of(err)
	}
	st, _ := status.FromError(err)
	return st
}
