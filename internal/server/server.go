package server

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/ratelimitd/ratelimitd/internal/platform/endpoint"
	"github.com/ratelimitd/ratelimitd/internal/platform/intake"
	"github.com/ratelimitd/ratelimitd/internal/server/transport"
)

// Server answers clients over gRPC and HTTP.
type Server struct {
	// Addresses of the listeners, with the ports that the system chose for port 0.
	GRPCAddr, HTTPAddr net.Addr

	listeners listeners
	services  *transport.Services
	transport *transport.Server
	http      *http.Server
	quota     *quotaService // nil if the quota service is disabled

	shared    *endpoint.Shared
	readiness *readiness
	metrics   *metrics
	calls     *intake.Calls
	long      *longStreams
	ending
}

// ending is the state of a server's stop.
type ending struct {
	drainDelay time.Duration
	stopping   context.Context // done when calls are rejected; ends streams that would not end otherwise
	stop       context.CancelFunc
}

// New opens the listeners. Requests are answered after Run has started, and health is red until SetServing. A Server
// that never runs must be closed.
func New(opts Options) (*Server, error) {
	opts.setDefaults()
	if opts.Decider == nil {
		return nil, errors.New("make server: no decider")
	}
	if opts.Shared == nil {
		var err error
		if opts.Shared, err = endpoint.New(endpoint.Options{}); err != nil {
			return nil, err
		}
	}
	registry := opts.Shared.Metrics
	m, err := newMetrics(registry)
	if err != nil {
		return nil, fmt.Errorf("register metrics: %w", err)
	}
	if opts.Listen.Credentials, err = newVerifying(opts.Listen.Credentials, opts.Shared.Log, registry); err != nil {
		return nil, fmt.Errorf("register metrics: %w", err)
	}
	m.grpc.extraObserver = opts.Metrics.ResponseTime
	calls := intake.NewCalls(opts.Calls.Max, opts.Shared.Connections)
	if err := intake.RegisterGauge(registry, calls); err != nil {
		return nil, fmt.Errorf("register metrics: %w", err)
	}
	streams := intake.NewStreams(opts.QuotaStreamsMax)
	long := &longStreams{Streams: intake.NewStreams(maxLongStreams), reflections: intake.NewStreams(maxReflections)}
	if long.rejected, err = newStreamMetrics(registry, streams, long.Streams); err != nil {
		return nil, fmt.Errorf("register metrics: %w", err)
	}
	bytes := newClientBytes(&opts, calls)
	l, err := listen(&opts, bytes)
	if err != nil {
		return nil, err
	}
	opts.Decider = observed(&opts)
	s := &Server{
		GRPCAddr:  l.grpc.Addr(),
		HTTPAddr:  l.http.Addr(),
		listeners: l,
		shared:    opts.Shared,
		readiness: newReadiness(),
		metrics:   m,
		calls:     calls,
		long:      long,
		ending:    ending{drainDelay: opts.DrainDelay},
	}
	s.stopping, s.stop = context.WithCancel(context.Background())
	if opts.Quota != nil {
		s.quota = s.newQuota(&opts, streams, long.rejected)
	}
	var methods []*method
	s.services, methods = s.newServices(&opts)
	s.transport = s.newTransport(&opts, s.services, methods)
	s.http = s.newHTTP(&opts, bytes.json)
	return s, nil
}

// observed returns the decider with its enabled observers.
func observed(opts *Options) Decider {
	if opts.Tracer == nil {
		return opts.Decider
	}
	return &traced{Decider: opts.Decider, tracer: opts.Tracer}
}

// Answered returns the number of answered calls over gRPC.
func (s *Server) Answered() uint64 { return s.metrics.grpc.total() }

// SetServing sets whether this server wants requests, for gRPC health, /healthcheck and /readyz. Once Run is stopping,
// health stays red.
func (s *Server) SetServing(serving bool) { s.readiness.set(serving) }

// SetMissing marks a condition, such as "no answer from Redis", as missing or restored. /healthcheck shows the text.
// While a condition is missing, health is red in spite of SetServing, but requests are still answered. SetMissing may
// be called at any time.
func (s *Server) SetMissing(what string, missing bool) {
	s.readiness.setMissing(what, missing)
}

// Stopping is closed when new calls are rejected, after the drain delay.
func (s *Server) Stopping() <-chan struct{} { return s.stopping.Done() }

// Run answers clients until ctx is done or a listener fails. Then it stops: health turns red, the drain delay passes,
// new calls are rejected while those in flight finish, and calls that have not finished after the stop timeout are cut
// off. Run returns even if a call does not end. If ctx caused the stop, the error is nil, even if calls were cut off;
// that is logged.
func (s *Server) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	drained := make(chan struct{})
	g.Go(func() error { return endpoint.Serve("gRPC", s.serveGRPC, s.listeners.grpc, drained) })
	g.Go(func() error { return endpoint.Serve("HTTP", s.http.Serve, s.listeners.http, drained) })
	g.Go(func() error {
		<-ctx.Done()
		s.drain()
		close(drained)
		return nil
	})
	return g.Wait()
}

func (s *Server) serveGRPC(l net.Listener) error {
	err := s.transport.Serve(l)
	if errors.Is(err, transport.ErrServerClosed) {
		return nil
	}
	return err
}

// stopGRPC rejects new calls and waits for the calls in flight. When ctx ends, it cuts these calls off.
func (s *Server) stopGRPC(ctx context.Context) {
	if err := s.transport.Shutdown(ctx); err != nil {
		s.shared.LogCutOff()
	}
	s.transport.Close()
}

func (s *Server) drain() {
	s.readiness.drain()
	if s.drainDelay > 0 {
		s.shared.Log.Info("draining: health is red, calls are still answered", "delay", s.drainDelay)
		<-time.After(s.drainDelay)
	}
	s.stop()

	ctx, cancel := s.shared.StopTimeout()
	defer cancel()
	var g errgroup.Group
	g.Go(func() error { s.stopGRPC(ctx); return nil })
	g.Go(func() error { s.shared.StopHTTP(ctx, "HTTP", s.http); return nil })
	_ = g.Wait()
}

// Services returns the names of the gRPC services for clients.
func (s *Server) Services() []string {
	return slices.Sorted(maps.Keys(s.services.GetServiceInfo()))
}

// Close frees the listeners of a server that never runs.
func (s *Server) Close() {
	s.stop()
	s.listeners.close()
	s.transport.Close()
}
