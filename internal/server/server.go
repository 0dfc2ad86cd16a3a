package server

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/hotkeys"
	"github.com/ratelimitd/ratelimitd/internal/intake"
)

// Options are what a Server is made of. Only Decider is required.
type Options struct {
	Decider Decider

	GRPCAddr  string // host:port of gRPC; default ":8081"
	HTTPAddr  string // host:port of /json, probes and metrics; default ":8080"
	DebugAddr string // host:port of /rlconfig, /stats, profiles and the admin service; default "127.0.0.1:6070"

	// GRPCSocket is the path of a unix socket that gRPC listens on instead of GRPCAddr; one that begins with @ is
	// abstract. GRPCSocketMode is what its file may be used by; 0 leaves what the umask gives.
	GRPCSocket     string
	GRPCSocketMode fs.FileMode

	ReusePort bool // other processes of this user may listen on the same ports, and share the connections
	NoDebug   bool // no HTTP on DebugAddr
	NoAdmin   bool // no admin service on DebugAddr; without both, nothing listens there

	// What the admin service and /rlconfig show. Where one is nil, so much is not shown.
	RuleFiles func() []descriptor.FileStatus
	Explain   func(domain string, entries []descriptor.Entry) descriptor.Explanation
	Tree      func() *descriptor.Tree
	HotKeys   func(hotkeys.Query) hotkeys.Report

	MetricsHandler http.Handler          // answers /metrics; nil: there is none
	MetricsAddr    string                // host:port of a listener for nothing but MetricsHandler; empty: there is none
	MetricsPath    string                // where it is found there; default "/metrics"
	Metrics        prometheus.Registerer // where the server's own metrics are registered; nil: nowhere
	NoMetrics      bool                  // answers are not counted: to measure what that costs
	ResponseTime   prometheus.Observer   // is told how long each answer over gRPC took, in seconds; nil: nobody is
	Stats          func(io.Writer)       // writes what /stats shows, lines of "name: value"
	Log            *slog.Logger          // default slog.Default()
	LogLevel       LogLevel              // what /loglevel shows and changes; nil: there is none
	Tracer         Tracer                // records decisions; nil: nobody does

	// RefusalLogs is how many refusals are written to the log per second at most, each with rule, entries and wait;
	// default 0: none. Entries are what callers send: they may be names of people.
	RefusalLogs int

	MaxRecvMsgSize int    // bytes of one request; default 4 MiB
	MaxDescriptors int    // per request; default 256
	MaxEntries     int    // per descriptor; default 256
	MaxTextSize    int    // bytes of a domain, a key or a value; default 64 KiB, more than Envoy lets all headers have
	MaxConnections int    // of gRPC, and of HTTP as many again; default 10,000
	MaxStreams     uint32 // calls at once on one gRPC connection; default 1,000
	MaxCalls       int    // in flight on all connections; default 4,096. More are refused with RESOURCE_EXHAUSTED

	// PeerShare is the part of MaxConnections that one peer (an address, or a /64 of IPv6) keeps when all are in use:
	// from 0 to 1, default 0.5.
	PeerShare float64

	FirstCallTimeout time.Duration // after which a gRPC connection without a call is closed; default 1 min
	MessageTimeout   time.Duration // after which a connection is closed on which a call's message does not arrive; default 10 s
	WriteTimeout     time.Duration // after which a gRPC connection is closed whose client reads nothing; default 10 s

	// MaxConnectionBytes is what one gRPC connection may hold of messages that have not arrived in full, MaxBytes what all
	// may. Beyond it the connection that holds most is closed. Default 16 and 128 MiB.
	MaxConnectionBytes, MaxBytes int64

	MaxConnectionAge      time.Duration // after which a gRPC client is asked to connect anew; default 24 h
	MaxConnectionAgeGrace time.Duration // how long its calls may then go on; default 1 h
	StreamWorkers         uint32        // goroutines that are kept for calls; default 128

	// JSONBadRequestOnFailure makes /json answer 400 instead of 503 where no decision could be made, as the reference
	// does.
	JSONBadRequestOnFailure bool

	DrainDelay  time.Duration // from red health to refusing new calls; default 0
	StopTimeout time.Duration // for calls in flight after that; then they are cut off. Default 10 s

	// Who may ask DebugAddr. With tokens or client certificates every page and every service there needs them; with both,
	// both. Without, everybody may look at the pages, and nobody at Counters.
	Tokens           Tokens      // whose bearer token it is; nil: none is asked for
	DebugTLS         *tls.Config // of DebugAddr, pages and all; nil: plain text
	DebugClientCerts bool        // DebugTLS verifies a certificate of every client
	// DebugHostNames are the host names that requests may call DebugAddr by, besides localhost, its own and addresses;
	// *.example.org is every name below that, and * every name.
	DebugHostNames []string

	Counters Counters // that operators may look at and clear; nil: there are none

	Credentials   credentials.TransportCredentials // of gRPC; nil: plain text
	ServerOptions []grpc.ServerOption              // applied last. Interceptors may not keep a request after they returned
}

func (o *Options) setDefaults() {
	defaultTo(&o.GRPCAddr, ":8081")
	defaultTo(&o.HTTPAddr, ":8080")
	defaultTo(&o.DebugAddr, "127.0.0.1:6070")
	defaultTo(&o.MetricsPath, "/metrics")
	defaultTo(&o.MaxRecvMsgSize, 4<<20)
	defaultTo(&o.MaxDescriptors, 256)
	defaultTo(&o.MaxEntries, 256)
	defaultTo(&o.MaxTextSize, 64<<10)
	defaultTo(&o.MaxConnections, 10_000)
	defaultTo(&o.MaxStreams, 1_000)
	defaultTo(&o.MaxCalls, 4_096)
	defaultTo(&o.PeerShare, 0.5)
	defaultTo(&o.FirstCallTimeout, time.Minute)
	defaultTo(&o.MessageTimeout, 10*time.Second)
	defaultTo(&o.WriteTimeout, 10*time.Second)
	defaultTo(&o.MaxConnectionBytes, 16<<20)
	defaultTo(&o.MaxBytes, 128<<20)
	defaultTo(&o.MaxConnectionAge, 24*time.Hour)
	defaultTo(&o.MaxConnectionAgeGrace, time.Hour)
	defaultTo(&o.StreamWorkers, 128)
	defaultTo(&o.StopTimeout, 10*time.Second)
	if o.Log == nil {
		o.Log = slog.Default()
	}
}

func defaultTo[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

func (o *Options) bounds() bounds {
	return bounds{descriptors: o.MaxDescriptors, entries: o.MaxEntries, text: o.MaxTextSize}
}

func (o *Options) failureStatus() int {
	if o.JSONBadRequestOnFailure {
		return http.StatusBadRequest
	}
	return http.StatusServiceUnavailable
}

// Server answers callers on three listeners, and scrapers on a fourth if there is one for them.
type Server struct {
	// Where it listens, with the ports that the system chose for port 0. DebugAddr and MetricsAddr are nil if nothing
	// listens there.
	GRPCAddr, HTTPAddr, DebugAddr, MetricsAddr net.Addr

	listeners listeners
	grpc      *grpc.Server
	http      *http.Server
	debug     *http.Server // nil if nothing listens there
	admin     *grpc.Server // answers on debug; nil: there is none
	scrapes   *http.Server // nil if there is no listener for them

	readiness *readiness
	metrics   *metrics
	calls     *intake.Calls
	rescue    *rescue
	log       *slog.Logger

	drainDelay  time.Duration
	stopTimeout time.Duration
	stopping    context.Context // done when calls are refused: what never ends by itself has to end
	stop        context.CancelFunc
}

// New opens the listeners and gets everything ready. Nothing is answered before Run, and health is red until SetServing
// says otherwise. A Server that is never run must be closed.
func New(opts Options) (*Server, error) {
	opts.setDefaults()
	if opts.Decider == nil {
		return nil, errors.New("make server: no decider")
	}
	m, err := newMetrics(opts.Metrics)
	if err != nil {
		return nil, fmt.Errorf("register metrics: %w", err)
	}
	m.grpc.off, m.json.off = opts.NoMetrics, opts.NoMetrics
	calls, bytes := intake.NewCalls(opts.MaxCalls, m.intake), intake.NewBytes(opts.MaxConnectionBytes, opts.MaxBytes)
	if err := m.intake.Show(opts.Metrics, calls, bytes); err != nil {
		return nil, fmt.Errorf("register metrics: %w", err)
	}
	l, err := listen(&opts, m.intake, bytes)
	if err != nil {
		return nil, err
	}
	opts.Decider = watched(&opts)
	s := &Server{
		GRPCAddr:    l.grpc.Addr(),
		HTTPAddr:    l.http.Addr(),
		listeners:   l,
		readiness:   newReadiness(),
		metrics:     m,
		calls:       calls,
		rescue:      &rescue{log: opts.Log, panics: m.panics},
		log:         opts.Log,
		drainDelay:  opts.DrainDelay,
		stopTimeout: opts.StopTimeout,
	}
	m.grpc.also = opts.ResponseTime
	s.stopping, s.stop = context.WithCancel(context.Background())
	s.grpc = s.newGRPC(&opts)
	s.http = s.newHTTP(&opts)
	if l.debug != nil {
		s.DebugAddr = l.debug.Addr()
		if !opts.NoAdmin {
			s.admin = s.newAdmin(&opts)
		}
		s.debug = s.newDebug(&opts)
	}
	if l.metrics != nil {
		s.MetricsAddr = l.metrics.Addr()
		s.scrapes = s.newMetrics(&opts)
	}
	return s, nil
}

// closing is how long it may take to close connections once the stop timeout has passed.
const closing = 100 * time.Millisecond

// Answered is how many calls of ShouldRateLimit have been answered over gRPC.
func (s *Server) Answered() uint64 { return s.metrics.grpc.total() }

// watched is the decider with all that looks on: nothing, unless it is asked for.
func watched(o *Options) Decider {
	d := o.Decider
	if o.RefusalLogs > 0 {
		d = &refusals{Decider: d, some: sampler{perSecond: int64(o.RefusalLogs)}, log: o.Log, explain: o.Explain}
	}
	if o.Tracer != nil {
		d = &traced{Decider: d, tracer: o.Tracer}
	}
	return d
}

// SetServing says whether this server wants requests. It drives gRPC health, /healthcheck and /readyz alike. Once Run is
// stopping, health stays red.
func (s *Server) SetServing(serving bool) { s.readiness.set(serving) }

// Lack says that something is missing, or no more: while anything is, this server does not want requests whatever SetServing said. It may be called at
// any time, and answers requests all the same.
func (s *Server) Lack(what string, missing bool) { s.readiness.lack(what, missing) }

// Run answers callers until ctx is done or a listener fails, then stops: health turns red, the drain delay passes, new
// calls are refused while those in flight finish, and what has not finished after the stop timeout is cut off. Then Run
// returns, even if a call goes on. The error is nil after a stop that ctx asked for, even one that had to cut calls off;
// that is logged.
func (s *Server) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	drained := make(chan struct{})
	serve := func(what string, serve func(net.Listener) error, l net.Listener) {
		g.Go(func() error { return s.serve(what, serve, l, drained) })
	}
	serve("gRPC", s.grpc.Serve, s.listeners.grpc)
	serve("HTTP", s.http.Serve, s.listeners.http)
	if s.debug != nil {
		serve("debug", s.serveDebug, s.listeners.debug)
	}
	if s.scrapes != nil {
		serve("metrics", s.scrapes.Serve, s.listeners.metrics)
	}
	g.Go(func() error {
		<-ctx.Done()
		s.drain()
		close(drained)
		return nil
	})
	return g.Wait()
}

// serve answers on a listener until it ends, or until the server has drained: grpc-go's Serve returns only after the last
// call has.
func (s *Server) serve(what string, serve func(net.Listener) error, l net.Listener, drained <-chan struct{}) error {
	ended := make(chan error, 1)
	go func() { ended <- serve(l) }()
	var err error
	select {
	case err = <-ended:
	case <-drained:
	}
	if err == nil || errors.Is(err, http.ErrServerClosed) || errors.Is(err, grpc.ErrServerStopped) {
		return nil
	}
	return fmt.Errorf("serve %s: %w", what, err)
}

func (s *Server) drain() {
	s.readiness.drain()
	if s.drainDelay > 0 {
		s.log.Info("draining: health is red, calls are still answered", "delay", s.drainDelay)
		<-time.After(s.drainDelay)
	}
	s.stop()

	ctx, cancel := context.WithTimeout(context.Background(), s.stopTimeout)
	defer cancel()
	var g errgroup.Group
	g.Go(func() error { s.stopGRPC(ctx); return nil })
	g.Go(func() error { s.stopHTTP(ctx, "HTTP", s.http); return nil })
	if s.debug != nil {
		g.Go(func() error { s.stopHTTP(ctx, "debug", s.debug); return nil })
	}
	if s.scrapes != nil {
		g.Go(func() error { s.stopHTTP(ctx, "metrics", s.scrapes); return nil })
	}
	_ = g.Wait()
	if s.admin != nil {
		s.stopWithin(ctx, s.admin) // its calls were the debug listener's
	}
}

func (s *Server) stopGRPC(ctx context.Context) {
	stopped := make(chan struct{})
	go func() {
		s.grpc.GracefulStop()
		close(stopped)
	}()
	select {
	case <-stopped:
	case <-ctx.Done():
		s.log.Warn("gRPC calls did not finish in time and are cut off", "timeout", s.stopTimeout)
		s.stopWithin(ctx, s.grpc)
	}
}

// stopWithin cuts the calls of a gRPC server off. When ctx is done it waits no longer than it takes to close connections:
// grpc-go waits for a call that does not return, whatever its context says.
func (s *Server) stopWithin(ctx context.Context, g *grpc.Server) {
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
		s.log.Warn("gRPC calls are still running and are left behind")
	}
}

func (s *Server) stopHTTP(ctx context.Context, what string, h *http.Server) {
	if err := h.Shutdown(ctx); err != nil {
		s.log.Warn(what+" requests did not finish in time and are cut off", "timeout", s.stopTimeout)
		_ = h.Close()
	}
}

// Services are the names of what is served over gRPC on the port for callers.
func (s *Server) Services() []string {
	return slices.Sorted(maps.Keys(s.grpc.GetServiceInfo()))
}

// Close frees the listeners of a server that is not run.
func (s *Server) Close() {
	s.stop()
	s.listeners.close()
	s.grpc.Stop()
	if s.admin != nil {
		s.admin.Stop()
	}
}
