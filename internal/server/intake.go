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
// UNAVAILABLE, Envoy's outlier detection does not treat it as a 5xx, which would move the traffic of a busy server to
// the others.
var errTooManyCalls = status.Error(codes.ResourceExhausted, "too many calls in flight")

const tooManyLongStreams = "too many health watches and reflection streams"

// connKey is the key of a connection in the context of a request over HTTP.
type connKey struct{}

func withConn(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, c)
}

// connOfRequest returns the connection of an HTTP request, or nil if its listener has no bounds.
func connOfRequest(r *http.Request) *intake.Conn {
	c, _ := r.Context().Value(connKey{}).(*intake.Conn)
	return c
}

// longStreams bounds the streams of health watches and of reflection.
type longStreams struct {
	*intake.Streams
	reflections *intake.Streams // the part of them that is reflection
	rejected    *prometheus.CounterVec
}

const (
	// maxLongStreams is the largest number of open long streams. A client of grpc-go with health checks has one for each
	// of its connections.
	maxLongStreams = 4096

	// maxReflections is the largest number of reflection streams. People use reflection by hand, and each stream may hold
	// an answer of 50 KB that its client does not read.
	maxReflections = 16
)

// admit registers a health watch. It returns the reason if it rejects the watch.
func (s *longStreams) admit(conn *intake.Conn) (end func(), rejection string) {
	if why := s.Begin(conn); why != "" {
		s.rejected.WithLabelValues(watchKind, string(why)).Inc()
		return nil, tooManyLongStreams
	}
	return func() { s.End(conn) }, ""
}

// admitReflection registers a reflection stream, like admit.
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
