package operator

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"

	"golang.org/x/sync/errgroup"

	"github.com/ratelimitd/ratelimitd/internal/operator/console"
	"github.com/ratelimitd/ratelimitd/internal/platform/endpoint"
	"github.com/ratelimitd/ratelimitd/internal/platform/intake"
)

// maxConnections bounds the connections of a port for people and scrapers.
const maxConnections = 100

// Server answers operators and scrapers.
type Server struct {
	// Where it listens, with the ports that the system chose for port 0; nil where nothing listens.
	DebugAddr, MetricsAddr net.Addr

	shared *endpoint.Shared
	ports  []port
	events *console.Events // nil if the admin port could not be opened

	peerShare float64
}

// port is a listener and its HTTP server.
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
	s.DebugAddr = s.open("debug", opts.Addr, func() *http.Server { return s.newDebug(&opts) })
	return s, nil
}

// open adds a port. If it cannot be opened, the error is logged, the result is nil, and the replica runs without the
// port: decisions are more important.
func (s *Server) open(name, address string, h func() *http.Server) net.Addr {
	l, err := s.shared.Listen(name, address, 0)
	if err != nil {
		s.shared.Log.Error("the listener for operators or scrapers cannot be opened: the service runs without it", "error",
			err)
		return nil
	}
	server := h()
	if server.TLSConfig != nil {
		server.ConnState = secured
	}
	l = intake.Listen(l, intake.Options{
		Name: name, Encrypted: server.TLSConfig != nil, MaxConnections: maxConnections, PeerShare: s.peerShare,
		ReadsAreCalls: true,
		Places:        s.shared.Places, Size: endpoint.HTTPSize, Metrics: s.shared.Connections, Log: s.shared.Log,
	})
	s.ports = append(s.ports, port{name, l, server})
	return l.Addr()
}

// secured ends the handshake of a connection that has sent a request. net/http calls it with each change of a
// connection.
func secured(c net.Conn, state http.ConnState) {
	if state != http.StateActive {
		return
	}
	if encrypted, ok := c.(*tls.Conn); ok {
		encrypted.NetConn().(*intake.Conn).Secured()
	}
}

// newScrapes makes the server of the port for metrics.
func (s *Server) newScrapes(opts *Scrapes) *http.Server {
	mux := http.NewServeMux()
	mux.Handle(opts.Path, opts.Handler)
	h := s.shared.HTTP(mux)
	h.WriteTimeout = endpoint.WriteTimeout
	return h
}

// Run answers until ctx is done or a listener fails. Then it lets requests in flight finish, and cuts those off that
// have not finished after the stop timeout.
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
	if s.events != nil {
		s.events.Close()
	}
	ctx, cancel := s.shared.StopTimeout()
	defer cancel()
	var g errgroup.Group
	for _, p := range s.ports {
		g.Go(func() error { s.shared.StopHTTP(ctx, p.name, p.http); return nil })
	}
	_ = g.Wait()
}

// Close frees the ports of a server that is not run.
func (s *Server) Close() {
	for _, p := range s.ports {
		_ = p.listener.Close()
	}
}
