package server

import (
	"context"
	"net"
	"net/http"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/ratelimitd/ratelimitd/internal/intake"
)

// errTooManyCalls refuses a call beyond the bound. Envoy treats it like any failure: failure_mode_deny decides. Unlike
// UNAVAILABLE it is no 5xx to Envoy's outlier detection, which would move the traffic of a busy server to the others.
var errTooManyCalls = status.Error(codes.ResourceExhausted, "too many calls in flight")

// framedCredentials wraps connections, after decryption, so that they count the bytes of their frames.
type framedCredentials struct {
	credentials.TransportCredentials
}

// ServerHandshake implements credentials.TransportCredentials.
func (f framedCredentials) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := f.TransportCredentials.ServerHandshake(raw)
	if c, ok := raw.(*intake.Conn); ok && err == nil {
		conn = c.Frames(conn)
	}
	return conn, info, err
}

// Clone implements credentials.TransportCredentials.
func (f framedCredentials) Clone() credentials.TransportCredentials {
	return framedCredentials{f.TransportCredentials.Clone()}
}

// connOf is the connection of a call, nil if it came over a listener without bounds.
func connOf(ctx context.Context) *intake.Conn {
	if p, ok := peer.FromContext(ctx); ok {
		return intake.Of(p.Addr)
	}
	return nil
}

// connKey is the key of a connection in the context of a request over HTTP.
type connKey struct{}

func withConn(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, c)
}

// connOfRequest is the connection of a request over HTTP, nil if it came over a listener without bounds.
func connOfRequest(r *http.Request) *intake.Conn {
	c, _ := r.Context().Value(connKey{}).(*intake.Conn)
	return c
}

// countedServices registers services whose calls count as in flight from their first frame on.
type countedServices struct {
	reflectable
	calls *intake.Calls
}

// reflectable is what reflection needs from a gRPC server.
type reflectable interface {
	grpc.ServiceRegistrar
	GetServiceInfo() map[string]grpc.ServiceInfo
}

// RegisterService implements grpc.ServiceRegistrar.
func (r countedServices) RegisterService(desc *grpc.ServiceDesc, service any) {
	d := *desc
	d.Methods, d.Streams = slices.Clone(d.Methods), slices.Clone(d.Streams)
	for i := range d.Methods {
		next := d.Methods[i].Handler
		d.Methods[i].Handler = func(srv any, ctx context.Context, read func(any) error, i grpc.UnaryServerInterceptor) (any, error) {
			call, ok := r.calls.Begin(connOf(ctx))
			if !ok {
				return nil, errTooManyCalls
			}
			defer func() { r.calls.End(call, 0) }()
			return next(srv, ctx, func(m any) error {
				err := read(m)
				if err == nil {
					r.calls.Arrived(&call, time.Now())
				}
				return err
			}, i)
		}
	}
	for i := range d.Streams {
		next := d.Streams[i].Handler
		d.Streams[i].Handler = func(srv any, stream grpc.ServerStream) error {
			call, ok := r.calls.Begin(connOf(stream.Context()))
			if !ok {
				return errTooManyCalls
			}
			defer func() { r.calls.End(call, 0) }()
			return next(srv, &arriving{ServerStream: stream, calls: r.calls, call: &call})
		}
	}
	r.reflectable.RegisterService(&d, service)
}

// arriving is a stream that reports when its first message has arrived.
type arriving struct {
	grpc.ServerStream
	calls *intake.Calls
	call  *intake.InFlight
}

// RecvMsg implements grpc.ServerStream.
func (a *arriving) RecvMsg(m any) error {
	err := a.ServerStream.RecvMsg(m)
	if err == nil {
		a.calls.Arrived(a.call, time.Now())
	}
	return err
}
