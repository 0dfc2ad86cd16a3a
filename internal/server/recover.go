package server

import (
	"context"
	"log/slog"
	"runtime/debug"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// rescue turns panics into errors, so that one bad request never ends the process.
type rescue struct {
	log    *slog.Logger
	panics prometheus.Counter
}

var errPanicked = status.Error(codes.Internal, "internal error: the server's log has the details")

// caught reports what recover returned.
func (r *rescue) caught(p any, where string) error {
	r.panics.Inc()
	r.log.Error("panic while answering", "method", where, "panic", p, "stack", string(debug.Stack()))
	return errPanicked
}

func (r *rescue) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (_ any, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = r.caught(p, info.FullMethod)
		}
	}()
	return next(ctx, req)
}

func (r *rescue) stream(srv any, s grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = r.caught(p, info.FullMethod)
		}
	}()
	return next(srv, s)
}
