package endpoint

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
)

// Serve runs a server on a listener until the server ends or stopped is closed: a server may return only after its last
// call. The error names the server by the argument. It is nil after a stop.
func Serve(what string, serve func(net.Listener) error, l net.Listener, stopped <-chan struct{}) error {
	ended := make(chan error, 1)
	go func() { ended <- serve(l) }()
	var err error
	select {
	case err = <-ended:
	case <-stopped:
	}
	if err == nil || errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return fmt.Errorf("serve %s: %w", what, err)
}

// StopTimeout returns a context that ends when requests in flight must be cut off.
func (s *Shared) StopTimeout() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), s.stopTimeout)
}

// LogCutOff logs that calls are cut off because the stop timeout has passed.
func (s *Shared) LogCutOff() {
	s.Log.Warn("gRPC calls did not finish in time and are cut off", "timeout", s.stopTimeout)
}

// StopHTTP rejects new requests and waits for those in flight. When ctx ends it cuts them off.
func (s *Shared) StopHTTP(ctx context.Context, what string, h *http.Server) {
	if err := h.Shutdown(ctx); err != nil {
		s.Log.Warn(what+" requests did not finish in time and are cut off", "timeout", s.stopTimeout)
		_ = h.Close()
	}
}
