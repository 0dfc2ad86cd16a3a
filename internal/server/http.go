package server

import (
	"net"
	"net/http"
	"runtime"

	"github.com/ratelimitd/ratelimitd/internal/platform/endpoint"
	"github.com/ratelimitd/ratelimitd/internal/platform/intake"
)

// newHTTP returns the server for HTTP clients, probes and metrics.
func (s *Server) newHTTP(opts *Options, room *intake.Class) *http.Server {
	mux := http.NewServeMux()
	mux.Handle("/json", sameOrigin(&jsonHandler{
		decider: opts.Decider,
		bounds:  opts.Requests,
		answers: &s.metrics.json,
		calls:   s.calls,
		room:    room,

		medium:        make(chan struct{}, maxMedium),
		large:         make(chan struct{}, maxLarge),
		decodingSmall: make(chan struct{}, runtime.GOMAXPROCS(0)),
		decodingLarge: make(chan struct{}, max(1, runtime.GOMAXPROCS(0)/2)),
	}))
	mux.Handle("/healthcheck", s.readiness.handler("OK", http.StatusInternalServerError))
	mux.Handle("/readyz", s.readiness.handler("ok", http.StatusServiceUnavailable))
	mux.HandleFunc("/livez", func(w http.ResponseWriter, _ *http.Request) { endpoint.WriteText(w, http.StatusOK, "ok") })
	if opts.Metrics.Handler != nil {
		mux.Handle("/metrics", opts.Metrics.Handler)
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		endpoint.WriteText(w, http.StatusNotFound,
			"not found: send requests to /json; /healthcheck, /readyz and /livez are for probes, and the admin port has the "+
				"pages for operators\n")
	})
	h := s.shared.HTTP(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if conn := connOfRequest(r); conn != nil {
			conn.BeginBody()
		}
		mux.ServeHTTP(w, r)
	}))
	h.WriteTimeout = endpoint.WriteTimeout
	h.ConnContext = withConn
	h.ConnState = func(c net.Conn, state http.ConnState) {
		if conn, ok := c.(*intake.Conn); ok && (state == http.StateIdle || state == http.StateClosed) {
			conn.EndRequest()
		}
	}
	return h
}

// sameOrigin rejects requests that a browser sends for a web page of another origin: a visitor of that page would use
// up their limits unknowingly. Other programs do not send the headers that it checks.
func sameOrigin(next http.Handler) http.Handler {
	origins := http.NewCrossOriginProtection()
	origins.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		endpoint.WriteText(w, http.StatusForbidden, endpoint.OtherOrigin+"\n")
	}))
	return origins.Handler(next)
}
