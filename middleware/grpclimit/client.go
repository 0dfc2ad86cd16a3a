package grpclimit

import (
	"cmp"
	"context"
	"errors"
	"io"
	"log/slog"
	"strconv"
	"sync"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/ratelimitd/ratelimitd/limits"
	"github.com/ratelimitd/ratelimitd/middleware/internal/gate"
)

const (
	defaultAttempts = 4
	defaultMaxWait  = 30 * time.Second
)

// ClientOptions are the settings of the interceptors for clients. The zero value is ready to use.
type ClientOptions struct {
	// Attempts is the most times that a call is made. Default 4.
	Attempts int

	// MaxWait bounds the time that a call waits for all its repetitions together. Default 30 s.
	MaxWait time.Duration

	// Decider limits the calls that are made. Nil does not limit them. A call waits until it is allowed, before each
	// repetition too. If the wait cannot succeed, the error is RESOURCE_EXHAUSTED.
	Decider limits.Decider

	// Domain is the domain of the rules, if there is a Decider.
	Domain string

	// Descriptors define the descriptors of each request to the Decider. A client has no PeerAddress.
	Descriptors []Descriptor

	// OnFailure is what happens to a call if the Decider returns an error. Default limits.OnFailureAllow; every other
	// value denies it with UNAVAILABLE.
	OnFailure limits.OnFailure

	// Logger logs the errors of the Decider, at most one line a second. Default slog.Default().
	Logger *slog.Logger
}

// UnaryClientInterceptor repeats calls that a server denied with RESOURCE_EXHAUSTED, if the denial has a time: in a
// google.rpc.RetryInfo or in the metadata retry-after. It waits that long, plus a random time. It returns the denial
// immediately after the last attempt, and if the deadline of the call or MaxWait would pass first. It panics if the
// options cannot be used.
//
// RESOURCE_EXHAUSTED without a time has other causes too, such as a message that is too large, so it is not repeated.
func UnaryClientInterceptor(o ClientOptions) grpc.UnaryClientInterceptor {
	c := newClient(o)
	return func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoker grpc.UnaryInvoker,
		opts ...grpc.CallOption) error {
		waits := c.waits()
		for {
			if err := c.wait(ctx, &Call{Method: method, Request: req}); err != nil {
				return err
			}
			var header, trailer metadata.MD
			err := invoker(ctx, method, req, reply, cc, append(opts[:len(opts):len(opts)], grpc.Header(&header),
				grpc.Trailer(&trailer))...)
			if err == nil {
				return nil
			}
			if err := pause(ctx, &waits, err, header, trailer); err != nil {
				return err
			}
		}
	}
}

// StreamClientInterceptor is UnaryClientInterceptor for streams. It repeats a call with one request and a stream of
// answers, until the first answer. Streams of requests are not repeated.
func StreamClientInterceptor(o ClientOptions) grpc.StreamClientInterceptor {
	c := newClient(o)
	return func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer,
		opts ...grpc.CallOption) (grpc.ClientStream, error) {
		open := func() (grpc.ClientStream, error) {
			if err := c.wait(ctx, &Call{Method: method}); err != nil {
				return nil, err
			}
			return streamer(ctx, desc, cc, method, opts...)
		}
		first, err := open()
		if err != nil || desc.ClientStreams {
			return first, err
		}
		return &repeated{ctx: ctx, open: open, waits: c.waits(), now: first}, nil
	}
}

// client is shared by the two interceptors.
type client struct {
	ClientOptions
	gate *gate.Gate // nil if calls are not limited
}

func newClient(o ClientOptions) *client {
	c := &client{ClientOptions: o}
	if o.Decider != nil {
		check(o.Decider, o.Domain, o.Descriptors)
		c.gate = &gate.Gate{Decider: o.Decider, OnFailure: o.OnFailure, Logger: o.Logger}
	}
	return c
}

func (c *client) waits() gate.Waits {
	return gate.Waits{Attempts: cmp.Or(c.Attempts, defaultAttempts) - 1, Left: cmp.Or(c.MaxWait, defaultMaxWait)}
}

// wait waits until a call is allowed.
func (c *client) wait(ctx context.Context, made *Call) error {
	if c.gate == nil {
		return nil
	}
	md, _ := metadata.FromOutgoingContext(ctx)
	q := request(ctx, c.Domain, c.Descriptors, &call{made, md})
	if q == nil {
		return nil
	}
	err := c.gate.Wait(ctx, q)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, limits.ErrTooLong) || errors.Is(err, limits.ErrNever):
		return status.Error(codes.ResourceExhausted, err.Error())
	case ctx.Err() != nil:
		return status.FromContextError(ctx.Err()).Err()
	default:
		return status.Error(codes.Unavailable, "the rate limit cannot be checked: "+err.Error())
	}
}

// pause waits before a call that was denied is made again. If it is not made again, pause returns the denial or the
// error of ctx.
func pause(ctx context.Context, waits *gate.Waits, denial error, header, trailer metadata.MD) error {
	after, ok := retryAfter(denial, header, trailer)
	if !ok {
		return denial
	}
	wait, ok := waits.Next(ctx, after)
	if !ok {
		return denial
	}
	err := limits.Sleep(ctx, wait)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, limits.ErrTooLong):
		return denial
	default:
		return status.FromContextError(err).Err()
	}
}

// retryAfter returns when the server wants a call to be repeated. It returns false if the server did not deny the call,
// or set no time.
func retryAfter(err error, from ...metadata.MD) (time.Duration, bool) {
	s, ok := status.FromError(err)
	if !ok || s.Code() != codes.ResourceExhausted {
		return 0, false
	}
	for _, d := range s.Details() {
		if info, ok := d.(*errdetails.RetryInfo); ok && info.GetRetryDelay() != nil {
			return max(info.GetRetryDelay().AsDuration(), 0), true
		}
	}
	for _, md := range from {
		for _, text := range md.Get("retry-after") {
			if n, err := strconv.ParseUint(text, 10, 63); err == nil {
				return time.Duration(min(n, 1<<32)) * time.Second, true
			}
		}
	}
	return 0, false
}

// repeated is a stream with one request, which is opened again until the first answer.
type repeated struct {
	ctx   context.Context
	open  func() (grpc.ClientStream, error)
	waits gate.Waits // used by the goroutine that receives
	begun bool       // an answer has come

	mu      sync.Mutex
	now     grpc.ClientStream
	request any // nil until it is sent
}

func (r *repeated) current() grpc.ClientStream {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.now
}

// Header implements grpc.ClientStream.
func (r *repeated) Header() (metadata.MD, error) { return r.current().Header() }

// Trailer implements grpc.ClientStream.
func (r *repeated) Trailer() metadata.MD { return r.current().Trailer() }

// CloseSend implements grpc.ClientStream.
func (r *repeated) CloseSend() error { return r.current().CloseSend() }

// Context implements grpc.ClientStream.
func (r *repeated) Context() context.Context { return r.current().Context() }

// SendMsg implements grpc.ClientStream.
func (r *repeated) SendMsg(message any) error {
	r.mu.Lock()
	r.request = message
	r.mu.Unlock()
	return r.current().SendMsg(message)
}

// RecvMsg implements grpc.ClientStream.
func (r *repeated) RecvMsg(message any) error {
	for {
		stream := r.current()
		err := stream.RecvMsg(message)
		if err == nil {
			r.begun = true
		}
		if err == nil || r.begun {
			return err
		}
		header, _ := stream.Header() // the stream is over, so this does not wait
		if err := pause(r.ctx, &r.waits, err, header, stream.Trailer()); err != nil {
			return err
		}
		if err := r.again(); err != nil {
			return err
		}
	}
}

// again opens the stream once more and sends its request.
func (r *repeated) again() error {
	stream, err := r.open()
	if err != nil {
		return err
	}
	r.mu.Lock()
	r.now = stream
	request := r.request
	r.mu.Unlock()
	if err := stream.SendMsg(request); err != nil && !errors.Is(err, io.EOF) { // EOF: the server has denied it already
		return err
	}
	return stream.CloseSend()
}
