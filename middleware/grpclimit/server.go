package grpclimit

import (
	"context"
	"log/slog"
	"strings"
	"sync"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/ratelimitd/ratelimitd/limits"
	"github.com/ratelimitd/ratelimitd/middleware/internal/gate"
)

// Call is a call that is limited.
type Call struct {
	Method  string // full method, such as /shop.v1.Shop/Buy
	Request any    // message of a unary call; nil for streams

	// The following fields are set after the handler has returned, for Options.Actual.

	// reply of a unary call, or the last message that a stream sent; may be nil
	Reply    any
	Received int   // messages that a stream received
	Sent     int   // messages that a stream sent
	Err      error // error of the handler
}

// Options are the settings of the interceptors for servers. Domain and Descriptors are required.
type Options struct {
	// Domain is the domain of the rules.
	Domain string

	// Descriptors define the descriptors of each call. A call passes if all of them have room.
	Descriptors []Descriptor

	// Cost returns the cost of a call. Nil charges one hit.
	Cost func(context.Context, *Call) limits.Amount

	// Actual returns the real cost of a call after the handler has returned. A handler can pass it on in a value that the
	// context points to. With Actual, Cost is reserved before the handler runs; the Decider must be a limits.Reserver.
	Actual func(context.Context, *Call) limits.Amount

	// Headers adds ratelimit-limit, ratelimit-remaining and ratelimit-reset to the metadata of all answers; without it,
	// only denials have them. If the rules define the headers for clients, these are always added instead.
	Headers bool

	// OnFailure is what happens to a call if the Decider returns an error. Default limits.OnFailureAllow; every other
	// value denies it with UNAVAILABLE.
	OnFailure limits.OnFailure

	// Logger logs the errors of the Decider, at most one line a second. Default slog.Default().
	Logger *slog.Logger
}

// UnaryServerInterceptor calls the handler only for calls that d allows. If the rules delay a call, it waits before it
// calls the handler, unless the context of the call ends first. It panics if the options cannot be used.
func UnaryServerInterceptor(d limits.Decider, o Options) grpc.UnaryServerInterceptor {
	s := newServer(d, o)
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (reply any,
		err error) {
		c := &Call{Method: info.FullMethod, Request: req}
		held, err := s.ask(ctx, c)
		if err != nil {
			return nil, err
		}
		if held == nil {
			return handler(ctx, req)
		}
		if s.Actual == nil {
			defer s.gate.Release(ctx, held)
			return handler(ctx, req)
		}
		returned := false
		defer func() {
			if !returned { // it panics
				s.gate.Cancel(ctx, held)
				return
			}
			s.gate.Commit(ctx, held, s.Actual(ctx, c))
		}()
		reply, err = handler(ctx, req)
		returned = true
		c.Reply, c.Err = reply, err
		return reply, err
	}
}

// StreamServerInterceptor is UnaryServerInterceptor for streams: it decides when a stream starts.
func StreamServerInterceptor(d limits.Decider, o Options) grpc.StreamServerInterceptor {
	s := newServer(d, o)
	return func(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) (err error) {
		ctx := stream.Context()
		c := &Call{Method: info.FullMethod}
		held, err := s.ask(ctx, c)
		if err != nil {
			return err
		}
		if held == nil {
			return handler(srv, stream)
		}
		if s.Actual == nil {
			defer s.gate.Release(ctx, held)
			return handler(srv, stream)
		}
		m := &measured{ServerStream: stream}
		returned := false
		defer func() {
			m.mu.Lock()
			c.Reply, c.Sent, c.Received, c.Err = m.last, m.sent, m.received, err
			m.mu.Unlock()
			if !returned && c.Sent == 0 {
				s.gate.Cancel(ctx, held)
				return
			}
			s.gate.Commit(ctx, held, s.Actual(ctx, c))
		}()
		err = handler(srv, m)
		returned = true
		return err
	}
}

// server is shared by the two interceptors.
type server struct {
	Options
	gate *gate.Gate
}

func newServer(d limits.Decider, o Options) *server {
	check(d, o.Domain, o.Descriptors)
	s := &server{o, &gate.Gate{Decider: d, OnFailure: o.OnFailure, Logger: o.Logger}}
	if o.Actual != nil {
		var ok bool
		if s.gate.Reserver, ok = d.(limits.Reserver); !ok {
			panic("grpclimit: Options.Actual needs a Decider that is a limits.Reserver")
		}
	}
	return s
}

// ask decides a call. Nil without an error: the call is not limited.
func (s *server) ask(ctx context.Context, c *Call) (*limits.Reservation, error) {
	md, _ := metadata.FromIncomingContext(ctx)
	q := request(ctx, s.Domain, s.Descriptors, &call{c, md})
	if q == nil {
		return nil, nil
	}
	if s.Cost != nil {
		q.Amount = s.Cost(ctx, c)
	}
	held, err := s.gate.Ask(ctx, q)
	if err != nil {
		return nil, status.FromContextError(err).Err()
	}
	d := &held.Decision
	if headers := gate.Headers(d, s.Headers || !d.Allowed); len(headers) > 0 {
		md := make(metadata.MD, len(headers))
		for _, h := range headers {
			md.Append(strings.ToLower(h.Name), h.Value)
		}
		_ = grpc.SetHeader(ctx, md) // an earlier interceptor may have sent the headers
	}
	if !d.Allowed {
		return nil, denied(d)
	}
	return held, nil
}

// denied returns the error of a call that is denied.
func denied(d *limits.Decision) error {
	if d.Source == limits.FailClosed {
		return status.Error(codes.Unavailable, "the rate limit cannot be checked")
	}
	s := status.New(codes.ResourceExhausted, "too many requests")
	if d.RetryAfter > 0 && d.RetryAfter != limits.Never {
		if detailed, err := s.WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(d.RetryAfter)}); err == nil {
			s = detailed
		}
	}
	return s.Err()
}

// measured is a stream whose messages are counted.
type measured struct {
	grpc.ServerStream

	mu             sync.Mutex // one goroutine may send while another receives
	sent, received int
	last           any
}

// SendMsg implements grpc.ServerStream.
func (m *measured) SendMsg(message any) error {
	err := m.ServerStream.SendMsg(message)
	if err == nil {
		m.mu.Lock()
		m.sent++
		m.last = message
		m.mu.Unlock()
	}
	return err
}

// RecvMsg implements grpc.ServerStream.
func (m *measured) RecvMsg(message any) error {
	err := m.ServerStream.RecvMsg(message)
	if err == nil {
		m.mu.Lock()
		m.received++
		m.mu.Unlock()
	}
	return err
}
