package server

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	"github.com/ratelimitd/ratelimitd/internal/limiter"
	"github.com/ratelimitd/ratelimitd/internal/limiter/grpcstatus"
	"github.com/ratelimitd/ratelimitd/internal/platform/async"
	"github.com/ratelimitd/ratelimitd/internal/platform/endpoint"
	"github.com/ratelimitd/ratelimitd/internal/server/transport"
)

// method is a gRPC method for clients: it turns messages into a request for a decision, and a decision into an answer.
type method struct {
	*deciding

	path string // "/package.Service/Method"

	// decode decodes a message, also given as text, into c.request. encode appends the answer to b. Nil means the
	// functions of ShouldRateLimit.
	decode func(c *rateLimitCall, data []byte, text string) error
	encode func(c *rateLimitCall, b []byte) ([]byte, error)

	// batches is set if decode fills c.batch instead of c.request.
	batches bool

	pool *sync.Pool // holds *rateLimitCall
	most int        // largest message and answer whose memory is reused, in bytes
}

// deciding is the common part of all methods.
type deciding struct {
	decider Decider
	answers *answers
	shared  *endpoint.Shared
	bounds  Requests
}

// newMethod returns a method of a service.
func newMethod(d *deciding, path string) *method {
	return &method{deciding: d, path: path, pool: &callPool, most: maxKept}
}

// describeMethods describes a service whose methods decide. file is the name of its file descriptor.
func describeMethods(to *transport.Services, service string, file any, methods ...*method) {
	desc := &grpc.ServiceDesc{ServiceName: service, Metadata: file}
	for _, m := range methods {
		desc.Methods = append(desc.Methods, grpc.MethodDesc{MethodName: m.path[len(service)+2:]}) // "/" service "/" name
	}
	to.Describe(desc)
}

// decide starts deciding a decoded call, like limiter.Decider.
func (m *method) decide(ctx context.Context, b *limiter.Batch, c *rateLimitCall,
	done func(error)) (decided bool, err error) {
	if err := overdue(ctx, c.start); err != nil {
		return true, err // the client no longer waits
	}
	if m.batches {
		return c.startBatch(ctx, b, done), nil
	}
	return m.decider.Start(ctx, c.start, b, &c.request, &c.decision, done)
}

// read decodes a message, also given as text.
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

// delayMillis formats the delay for headers. Clients get it in the metadata of the answer, independent of the answer to
// Envoy.
func delayMillis(d *limiter.Decision) string {
	return strconv.FormatInt(limiter.Millis(d.Delay), 10)
}

// overdue returns the error of a call whose client no longer waits, otherwise nil. Under load a call may be scheduled
// after its deadline but before the timer that ends its context.
func overdue(ctx context.Context, now time.Time) error {
	if deadline, ok := ctx.Deadline(); ok && !now.Before(deadline) {
		return context.DeadlineExceeded
	}
	return ctx.Err()
}

// statusOf returns the gRPC status for an error, and logs a panic.
func (m *method) statusOf(err error) *status.Status {
	if p, ok := errors.AsType[*async.PanicError](err); ok {
		err = m.shared.PanickedAt(p.Value, m.path, p.Stack)
	} else if err != errTooManyCalls { //nolint:errorlint // it is returned as it is
		err = grpcstatus.Of(err)
	}
	st, _ := status.FromError(err)
	return st
}
