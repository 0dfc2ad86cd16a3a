package endpoint

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"google.golang.org/grpc"
)

// closing is how long connections may take to close once the stop timeout has passed.
const closing = 100 * time.Millisecond

// Serve runs a server on a listener until the server ends or stopped is closed: grpc-go's Serve returns only after its last
// call. The error names what was served. It is nil after a stop.
func Serve(what string, serve func(net.Listener) error, l net.Listener, stopped <-chan struct{}) error {
	ended := make(chan error, 1)
	go func() { ended <- serve(l) }()
	var err error
	select {
	case err = <-ended:
	case <-stopped:
	}
	if err == nil || errors.Is(err, http.ErrServerClosed) || errors.Is(err, grpc.ErrServerStopped) {
		return nil
	}
	return fmt.Errorf("serve %s: %w", what, err)
}

// StopTimeout returns a context that ends when requests in flight are to be cut off.
func (s *Shared) StopTimeout() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), s.stopTimeout)
}

// StopGRPC rejects new calls and waits for those in flight. When ctx ends it cuts them off.
func (s *Shared) StopGRPC(ctx context.Context, g *grpc.Server) {
	stopped := make(chan struct{})
	go func() {
		g.GracefulStop()
		close(stopped)
	}()
	select {
	case <-stopped:
	case <-ctx.Done():
		s.LogCutOff()
		s.CutGRPC(ctx, g)
	}
}

// LogCutOff logs that calls are cut off because the stop timeout has passed.
func (s *Shared) LogCutOff() {
	s.Log.Warn("gRPC calls did not finish in time and are cut off", "timeout", s.stopTimeout)
}

// CutGRPC cuts the calls of a gRPC server off. Once ctx has ended it waits only until connections are closed: grpc-go
// waits for a call that does not return, even if the call's context has ended.
func (s *Shared) CutGRPC(ctx context.Context, g *grpc.Server) {
	stopped := make(chan struct{})
	go func() {
		g.Stop()
		close(stopped)
	}()
	select {
	case <-stopped:
		return
	case <-ctx.Done():
	}
	select {
	case <-stopped:
	case <-time.After(closing):
		s.Log.Warn("gRPC calls are still running: the service does not wait for them")
	}
}

// StopHTTP rejects new requests and waits for those in flight. When ctx ends it cuts them off.
func (s *Shared) StopHTTP(ctx context.Context, what string, h *http.Server) {
	if err := h.Shutdown(ctx); err != nil {
		s.Log.Warn(what+" requests did not finish in time and are cut off", "timeout", s.stopTimeout)
		_ = h.Close()
	}
}
