package server

import (
	"log/slog"
	"net/http"
	"time"
)

const (
	maxHeaderSize     = 256 << 10        // bytes, of a gRPC or HTTP request
	handshakeTimeout  = 10 * time.Second // until a connection must speak the protocol
	readHeaderTimeout = 5 * time.Second
	readTimeout       = 15 * time.Second // of a whole request
	writeTimeout      = 30 * time.Second // of a whole answer
	idleTimeout       = 2 * time.Minute
)

// newHTTP is the listener of callers without gRPC, of probes and of metrics.
func (s *Server) newHTTP(opts *Options) *http.Server {
	mux := http.NewServeMux()
	mux.Handle("/json", sameOrigin(&jsonHandler{
		decider: opts.Decider,
		limits:  opts.bounds(),
		maxBody: int64(opts.MaxRecvMsgSize),
		failure: opts.failureStatus(),
		answers: &s.metrics.json,
		calls:   s.calls,
	}))
	mux.Handle("/healthcheck", s.readiness.handler("OK", http.StatusInternalServerError, ""))
	mux.Handle("/readyz", s.readiness.handler("ok", http.StatusServiceUnavailable, "not ready"))
	mux.HandleFunc("/livez", func(w http.ResponseWriter, _ *http.Request) { writeText(w, http.StatusOK, "ok") })
	if opts.MetricsHandler != nil {
		mux.Handle("/metrics", opts.MetricsHandler)
	}
	h := s.bounded(mux)
	h.WriteTimeout = writeTimeout
	h.ConnContext = withConn
	return h
}

// sameOrigin refuses what a browser sends for a web page of another origin: a visitor of that page would spend their limits
// without knowing. A caller that is no browser sends none of the headers that tell so.
func sameOrigin(next http.Handler) http.Handler {
	origins := http.NewCrossOriginProtection()
	origins.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		writeText(w, http.StatusForbidden, otherOrigin+"\n")
	}))
	return origins.Handler(next)
}

// newMetrics is the listener of scrapers.
func (s *Server) newMetrics(opts *Options) *http.Server {
	mux := http.NewServeMux()
	mux.Handle(opts.MetricsPath, opts.MetricsHandler)
	h := s.bounded(mux)
	h.WriteTimeout = writeTimeout
	return h
}

// bounded is an HTTP server on which no client can keep a connection or memory for nothing, and no panic ends the
// process.
func (s *Server) bounded(mux *http.ServeMux) *http.Server {
	return &http.Server{
		Handler:           s.rescue.http(mux),
		ReadHeaderTimeout: readHeaderTimeout,
		ReadTimeout:       readTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderSize,
		ErrorLog:          slog.NewLogLogger(s.rescue.log.Handler(), slog.LevelWarn),
	}
}

func (r *rescue) http(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		defer func() {
			switch p := recover(); p {
			case nil:
			case http.ErrAbortHandler: // means what it says; the server ends the connection
				panic(p)
			default:
				_ = r.caught(p, req.URL.Path)
				http.Error(w, "internal error: the server's log has the details", http.StatusInternalServerError)
			}
		}()
		next.ServeHTTP(w, req)
	})
}

func writeText(w http.ResponseWriter, code int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(code)
	_, _ = w.Write([]byte(text))
}
