package transport

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"maps"
	"net"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ratelimitd/ratelimitd/internal/platform/intake"
)

// Handler answers the calls of a few methods.
type Handler interface {
	// Handle receives the calls that arrived together on one connection, and their arrival time. It answers each call
	// once: before it returns, or later on another goroutine. It must not block, because the connection waits for it. It
	// may keep the calls, but not the slice.
	Handle(now time.Time, calls []*Call)
}

// Options are the settings of a Server. Path and Handler, or Streams, and Calls are required.
type Options struct {
	Path string   // path of the most frequent method of Handler, "/package.Service/Method"; may be empty
	More []string // paths of the other methods of Handler
	// names of the header fields that Handler may read, in lower case; values of others are dropped
	Wanted  []string
	Handler Handler       // answers the calls of these methods
	Calls   *intake.Calls // bounds the calls in flight

	// Streams holds the other methods, by path.
	Streams map[string]*StreamMethod

	// Panicked returns the error for the client of a stream whose method has panicked. By default, the panic is logged.
	Panicked func(p any, path string) error

	// Failed is called for each call of Handler's methods that is answered without Handler: because there are too many
	// calls, or because its message cannot be decoded. It may be nil.
	Failed func(codes.Code)

	// Handshake encrypts a connection; nil means plain text. The listener has accepted conn, and raw writes to it.
	Handshake        func(raw, conn net.Conn) (net.Conn, *tls.ConnectionState, error)
	HandshakeTimeout time.Duration // time for the client to send the preface of HTTP/2; default 10 s

	MaxMessageBytes int    // size of a message to Handler; default 4 MiB
	MaxHeaderBytes  uint32 // size of the header fields of a request; default 256 KiB
	MaxStreams      uint32 // open requests on one connection; default 1,000

	WriteTimeout     time.Duration // time after which a client that does not read is disconnected; 0 means never
	PingAfter        time.Duration // time after which a silent client is pinged; 0 means never
	PingTimeout      time.Duration // time to answer that ping; then the connection is closed
	MinPingInterval  time.Duration // a client that pings more often is disconnected; 0 disables the bound
	MaxConnectionAge time.Duration // age at which a client is asked to reconnect, give or take a tenth; 0 means never
	MaxAgeGrace      time.Duration // time for requests on the old connection after that; 0 means unlimited

	Log *slog.Logger // default slog.Default()
}

func (o *Options) setDefaults() {
	if o.HandshakeTimeout == 0 {
		o.HandshakeTimeout = 10 * time.Second
	}
	if o.MaxMessageBytes == 0 {
		o.MaxMessageBytes = 4 << 20
	}
	if o.MaxHeaderBytes == 0 {
		o.MaxHeaderBytes = 256 << 10
	}
	if o.MaxStreams == 0 {
		o.MaxStreams = 1_000
	}
	if o.Failed == nil {
		o.Failed = func(codes.Code) {}
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	if o.Panicked == nil {
		o.Panicked = func(p any, path string) error {
			o.Log.Error("panic while answering", "method", path, "panic", p)
			return status.Error(codes.Internal, "internal error")
		}
	}
}

// ErrServerClosed is the result of Serve after Shutdown or Close.
var ErrServerClosed = errors.New("transport: the server is closed")

// Server answers requests over HTTP/2.
type Server struct {
	opts       Options
	vocabulary *vocabulary
	flushers   []chan *conn  // connections with answers from outside of Handle
	calls      sync.Pool     // *Call
	large      chan struct{} // semaphore for connections that decode large messages
	numbers    atomic.Int64  // number of the last connection
	began      time.Time     // base of connection times, independent of changes of the wall clock

	done chan struct{} // closed by Close

	mu        sync.Mutex
	listeners map[net.Listener]struct{}
	conns     map[*conn]*lifetime
	draining  bool
	closed    bool
	empty     chan struct{} // closed when draining and no connection remains
}

// New returns a server without a listener. It must be closed.
func New(opts Options) *Server {
	opts.setDefaults()
	s := &Server{
		opts:       opts,
		vocabulary: newVocabulary(&opts),
		began:      time.Now(),
		done:       make(chan struct{}),
		empty:      make(chan struct{}),
		listeners:  make(map[net.Listener]struct{}),
		conns:      make(map[*conn]*lifetime),
		large:      make(chan struct{}, max(1, runtime.GOMAXPROCS(0)/2)),
	}
	s.calls.New = func() any { return new(Call) }
	s.flushers = make([]chan *conn, runtime.GOMAXPROCS(0))
	for i := range s.flushers {
		s.flushers[i] = make(chan *conn, 1024)
		go s.flush(s.flushers[i])
	}
	go s.checkConnections()
	return s
}

// Serve accepts connections until the listener fails or the server is closed.
func (s *Server) Serve(l net.Listener) error {
	s.mu.Lock()
	if s.draining || s.closed {
		s.mu.Unlock()
		_ = l.Close()
		return ErrServerClosed
	}
	s.listeners[l] = struct{}{}
	s.mu.Unlock()
	defer func() {
		_ = l.Close()
		s.mu.Lock()
		delete(s.listeners, l)
		s.mu.Unlock()
	}()
	for pause := time.Duration(0); ; {
		raw, err := l.Accept()
		if err == nil {
			pause = 0
			go s.serve(raw)
			continue
		}
		if s.stopping() {
			return ErrServerClosed
		}
		var temporary interface{ Temporary() bool }
		if !errors.As(err, &temporary) || !temporary.Temporary() {
			return err
		}
		pause = min(max(2*pause, 5*time.Millisecond), time.Second) // the process may be out of file descriptors
		s.opts.Log.Warn("a connection cannot be accepted", "error", err, "pause", pause)
		select {
		case <-time.After(pause):
		case <-s.done:
		}
	}
}

// Shutdown closes the listeners and asks all clients to leave. It returns when every request is answered, every
// connection is closed, and no reading goroutine calls the handler any more, or when ctx ends.
func (s *Server) Shutdown(ctx context.Context) error {
	s.mu.Lock()
	first := !s.draining
	s.draining = true
	for l := range s.listeners {
		_ = l.Close()
	}
	conns := s.open()
	if first && len(conns) == 0 {
		close(s.empty)
	}
	s.mu.Unlock()
	for _, c := range conns {
		c.drain()
	}
	select {
	case <-s.empty:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Close closes the listeners and all connections. Requests in flight get no answer.
func (s *Server) Close() {
	s.mu.Lock()
	first := !s.closed
	s.closed = true
	for l := range s.listeners {
		_ = l.Close()
	}
	conns := s.open()
	s.mu.Unlock()
	for _, c := range conns {
		c.close()
	}
	if first {
		close(s.done)
	}
}

// open returns the open connections. The lock must be held.
func (s *Server) open() []*lifetime {
	return slices.AppendSeq(make([]*lifetime, 0, len(s.conns)), maps.Values(s.conns))
}

func (s *Server) stopping() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.draining || s.closed
}

// add adds a connection, unless the server is stopping.
func (s *Server) add(c *conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.draining || s.closed {
		return false
	}
	s.conns[c] = &lifetime{conn: c}
	return true
}

func (s *Server) remove(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.conns[c]; !ok {
		return
	}
	delete(s.conns, c)
	if s.draining && len(s.conns) == 0 {
		close(s.empty)
	}
}

// checkConnections checks idle and old connections once a second until the server is closed. If connections may only
// reach an age of seconds, it checks them 40 times in that age: otherwise connections that started together would all
// end at the same check.
func (s *Server) checkConnections() {
	every := time.Second
	if age := s.opts.MaxConnectionAge; age > 0 {
		every = max(min(every, age/40), 10*time.Millisecond)
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-s.done:
			return
		case now := <-tick.C:
			s.mu.Lock()
			conns := s.open()
			s.mu.Unlock()
			for _, l := range conns {
				l.check(now)
			}
		}
	}
}

// flush writes the output of the connections that it receives. Writing never blocks.
func (s *Server) flush(conns <-chan *conn) {
	for {
		select {
		case <-s.done:
			return
		case c := <-conns:
			runtime.Gosched() // answers that are about to follow go into the same write
			c.queued.Store(false)
			c.flush()
		}
	}
}

// goAwayFor returns the reason that the client sees for the end of its connection.
func goAwayFor(err error) (code http2.ErrCode, debug []byte) {
	if _, ok := errors.AsType[tooManyPings](err); ok {
		return http2.ErrCodeEnhanceYourCalm, []byte(err.Error())
	}
	if e, ok := errors.AsType[http2.ConnectionError](err); ok {
		return http2.ErrCode(e), nil
	}
	if errors.Is(err, http2.ErrFrameTooLarge) {
		return http2.ErrCodeFrameSize, nil
	}
	return http2.ErrCodeInternal, nil
}
