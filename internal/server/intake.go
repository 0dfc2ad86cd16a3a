package server

import (
	"context"
	"net"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ratelimitd/ratelimitd/internal/platform/intake"
)

// errTooManyCalls rejects a call beyond the bound. Envoy treats it like any failure: failure_mode_deny decides. Unlike
// UNAVAILABLE it is no 5xx to Envoy's outlier detection, which would move the traffic of a busy server to the others.
var errTooManyCalls = status.Error(codes.ResourceExhausted, "too many calls in flight")

const tooManyLongStreams = "too many health watches and reflection streams"

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

// longStreams bounds the streams of health watches and of reflection.
type longStreams struct {
	*intake.Streams
	reflections *intake.Streams // how many of them are reflection
	rejected    *prometheus.CounterVec
}

const (
	// maxLongStreams is how many of them may be open. A client of grpc-go with health checks keeps one for each of its
	// connections.
	maxLongStreams = 4096

	// maxReflections is how many of them may be reflection. People use it by hand, and each stream may keep an answer of
	// 50 KB in memory that its client does not read.
	maxReflections = 16
)

// admit admits a health watch.
func (s *longStreams) admit(conn *intake.Conn) (end func(), rejection string) {
	if why := s.Begin(conn); why != "" {
		s.rejected.WithLabelValues(watchKind, string(why)).Inc()
		return nil, tooManyLongStreams
	}
	return func() { s.End(conn) }, ""
}

// admitReflection admits a stream of reflection.
func (s *longStreams) admitReflection(conn *intake.Conn) (func(), string) {
	if s.reflections.Begin(nil) != "" {
		s.rejected.WithLabelValues(watchKind, string(overReflections)).Inc()
		return nil, tooManyLongStreams
	}
	endLong, rejection := s.admit(conn)
	if rejection != "" {
		s.reflections.End(nil)
		return nil, rejection
	}
	return func() {
		endLong()
		s.reflections.End(nil)
	}, ""
}
