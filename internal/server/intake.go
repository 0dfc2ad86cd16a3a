package server

import (
	"context"
	"net"
	"net/http"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/ratelimitd/ratelimitd/internal/platform/intake"
)

// errTooManyCalls rejects a call beyond the bound. Envoy treats it like any failure: failure_mode_deny decides. Unlike
// UNAVAILABLE it is no 5xx to Envoy's outlier detection, which would move the traffic of a busy server to the others.
var errTooManyCalls = status.Error(codes.ResourceExhausted, "too many calls in flight")

var errTooManyLongStreams = status.Error(codes.ResourceExhausted, "too many health watches and reflection streams")

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

// countedServices registers services whose calls count as in flight from their first frame on. A stream counts only until it is admitted
// to the long streams: a client may keep it open for days, and it must not take the place of calls.
type countedServices struct {
	reflectable
	calls *intake.Calls // nil on the built-in HTTP/2 server, which counts them itself
	long  *longStreams

	// fewer bounds the streams of these services further; nil: it does not.
	fewer *intake.Streams
}

// longStreams bounds the streams of health watches and of reflection.
type longStreams struct {
	*intake.Streams
	reflections *intake.Streams // how many of them are reflection
	refused     map[intake.Refusal]prometheus.Counter
}

const (
	// maxLongStreams is how many of them may be open. A client of grpc-go with health checks keeps one for each of its connections.
	maxLongStreams = 4096

	// maxReflections is how many of them may be reflection. People use it by hand, and each stream may keep an answer of 50 KB in memory
	// that its client does not read.
	maxReflections = 16

	// overReflections is why a reflection stream beyond that is rejected.
	overReflections intake.Refusal = "reflection"
)

func newLongStreams(registry prometheus.Registerer) (*longStreams, error) {
	s := &longStreams{intake.NewStreams(maxLongStreams), intake.NewStreams(maxReflections), make(map[intake.Refusal]prometheus.Counter)}
	return s, registerStreams(registry, s.Streams, s.refused, "ratelimitd_long_streams", "Open health watches, reflection streams, and HTTP/2 requests that are not gRPC calls.",
		"Health watches and reflection streams rejected, because too many were open; reason: all (of the replica), peer (of one address), connection or reflection.",
		overReflections)
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
			conn := connOf(stream.Context())
			x := exchangeOf(stream.Context())
			if x != nil {
				conn = x.conn
			}
			call, ok := r.calls.Begin(conn)
			if !ok {
				return errTooManyCalls
			}
			defer func() { r.calls.End(call, 0) }()
			if why := r.begin(conn); why != "" {
				r.long.refused[why].Inc()
				return errTooManyLongStreams
			}
			defer r.end(conn)
			r.calls.Detach(&call)
			if x != nil {
				x.Detach()
				stream = &exchangedStream{ServerStream: stream, x: x}
			}
			return next(srv, stream)
		}
	}
	r.reflectable.RegisterService(&d, service)
}

// begin admits a stream to the long streams.
func (r countedServices) begin(conn *intake.Conn) intake.Refusal {
	if r.fewer != nil && r.fewer.Begin(nil) != "" {
		return overReflections
	}
	why := r.long.Begin(conn)
	if why != "" && r.fewer != nil {
		r.fewer.End(nil)
	}
	return why
}

// end ends a stream that begin has admitted.
func (r countedServices) end(conn *intake.Conn) {
	r.long.End(conn)
	if r.fewer != nil {
		r.fewer.End(nil)
	}
}
