package operator

import (
	"context"
	"net"
	"net/http"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/reflection"

	"github.com/ratelimitd/ratelimitd/internal/endpoint"
	"github.com/ratelimitd/ratelimitd/internal/intake"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

// maxConnections bounds the connections of a port for people and scrapers.
const maxConnections = 100

// maxMessageBytes is the largest request to a gRPC service, unless four of the longest texts need more. Its entries are counted only
// when it has been decoded, and then empty ones take about fifty times the bytes that they had.
const maxMessageBytes = 256 << 10

// Server answers operators and scrapers.
type Server struct {
	// Where it listens, with the ports that the system chose for port 0; nil where nothing listens.
	DebugAddr, MetricsAddr net.Addr

	shared   *endpoint.Shared
	services *grpc.Server // gets its calls from the debug port; nil: there is none
	ports    []port

	peerShare float64
}

// port is a listener and what answers on it.
type port struct {
	name     string
	listener net.Listener
	http     *http.Server
}

// New opens the ports. Nothing is answered before Run. A Server that is never run must be closed.
func New(opts Options) (*Server, error) {
	opts.setDefaults()
	if opts.Shared == nil {
		var err error
		if opts.Shared, err = endpoint.New(endpoint.Options{}); err != nil {
			return nil, err
		}
	}
	s := &Server{shared: opts.Shared, peerShare: opts.Bounds.PeerShare}
	if opts.Scrapes.Addr != "" && opts.Scrapes.Handler != nil {
		s.MetricsAddr = s.open("metrics", opts.Scrapes.Addr, func() *http.Server { return s.newScrapes(&opts.Scrapes) })
	}
	if !opts.NoPages || !opts.NoServices {
		s.DebugAddr = s.open("debug", opts.Addr, func() *http.Server {
			if !opts.NoServices {
				s.services = s.newServices(&opts)
			}
			return s.newDebug(&opts)
		})
	}
	return s, nil
}

// open adds a port. If it cannot be opened the process runs without it, because decisions are more important: the log says
// so, and the result is nil.
func (s *Server) open(name, address string, h func() *http.Server) net.Addr {
	l, err := s.shared.Listen(name, address, 0)
	if err != nil {
		s.shared.Log.Error("the listener for operators or scrapers cannot be opened: the service runs without it", "error", err)
		return nil
	}
	l = intake.Listen(l, intake.Options{Name: name, MaxConnections: maxConnections, PeerShare: s.peerShare, ReadsAreCalls: true, Metrics: s.shared.Connections, Log: s.shared.Log})
	s.ports = append(s.ports, port{name, l, h()})
	return l.Addr()
}

// newServices makes the server of the gRPC services. It has no listener: the debug port hands it its calls.
func (s *Server) newServices(opts *Options) *grpc.Server {
	g := grpc.NewServer(grpc.MaxRecvMsgSize(max(maxMessageBytes, 4*opts.Bounds.MaxTextBytes)), grpc.ChainUnaryInterceptor(s.shared.Unary), grpc.ChainStreamInterceptor(s.shared.Stream))
	adminv1.RegisterAdminServiceServer(g, &admin{rules: opts.Rules, bounds: opts.Bounds, hotKeys: opts.HotKeys})
	adminv1.RegisterCounterServiceServer(g, &counters{counters: opts.Counters, bounds: opts.Bounds, log: s.shared.Log})
	reflection.Register(g)
	return g
}

// newScrapes makes the server of the port for metrics.
func (s *Server) newScrapes(opts *Scrapes) *http.Server {
	mux := http.NewServeMux()
	mux.Handle(opts.Path, opts.Handler)
	h := s.shared.HTTP(mux)
	h.WriteTimeout = endpoint.WriteTimeout
	return h
}

// Run answers until ctx is done or a listener fails. Then it lets requests in flight finish, and cuts those off that have
// not finished after the stop timeout.
func (s *Server) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	stopped := make(chan struct{})
	for _, p := range s.ports {
		g.Go(func() error { return endpoint.Serve(p.name, p.serve, p.listener, stopped) })
	}
	g.Go(func() error {
		<-ctx.Done()
		s.stop()
		close(stopped)
		return nil
	})
	return g.Wait()
}

func (p *port) serve(l net.Listener) error {
	if p.http.TLSConfig != nil {
		return p.http.ServeTLS(l, "", "")
	}
	return p.http.Serve(l)
}

func (s *Server) stop() {
	ctx, cancel := s.shared.StopTimeout()
	defer cancel()
	var g errgroup.Group
	for _, p := range s.ports {
		g.Go(func() error { s.shared.StopHTTP(ctx, p.name, p.http); return nil })
	}
	_ = g.Wait()
	if s.services != nil {
		s.shared.CutGRPC(ctx, s.services) // its calls were the debug port's
	}
}

// Close frees the ports of a server that is not run.
func (s *Server) Close() {
	for _, p := range s.ports {
		_ = p.listener.Close()
	}
	if s.services != nil {
		s.services.Stop()
	}
}
