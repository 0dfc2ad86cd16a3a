package httplimit

import (
	"io"
	"log/slog"
	"net/http"

	"github.com/ratelimitd/ratelimitd/limits"
	"github.com/ratelimitd/ratelimitd/middleware/internal/gate"
)

// Options are the settings of New. Domain and Descriptors are required.
type Options struct {
	// Domain is the domain of the rules.
	Domain string

	// Descriptors define the descriptors of each request. A request passes if all of them have room.
	Descriptors []Descriptor

	// Mux finds the patterns of requests: see Pattern. Default: the next handler, if it is a *http.ServeMux.
	Mux *http.ServeMux

	// Cost returns the cost of a request. Nil charges one hit.
	Cost func(*http.Request) limits.Amount

	// Actual returns the real cost of a request after the handler has returned: status is 200 if the handler set none, and
	// bytes is the size of the body that it wrote. A handler can pass the cost on in a value that the request's context
	// points to. With Actual, Cost is reserved before the handler runs; the Decider must be a limits.Reserver.
	Actual func(r *http.Request, status int, bytes int64) limits.Amount

	// Headers adds RateLimit-Limit, RateLimit-Remaining and RateLimit-Reset to all responses; without it, only denials
	// have them. If the rules define the headers for clients, these are always added instead.
	Headers bool

	// Denied answers a request that is denied. The headers are set; it writes status and body. d.Source is
	// limits.FailClosed if the Decider failed. Default: 429, or 503 if the Decider failed, and a short text.
	Denied func(w http.ResponseWriter, r *http.Request, d limits.Decision)

	// OnFailure is what happens to a request if the Decider returns an error. Default limits.OnFailureAllow; every other
	// value denies it.
	OnFailure limits.OnFailure

	// Logger logs the errors of the Decider, at most one line a second. Default slog.Default().
	Logger *slog.Logger
}

// New returns middleware that calls the next handler only for requests that d allows. If the rules delay a request, it
// waits before it calls the next handler, unless the context of the request ends first.
//
// New panics if the options cannot be used.
func New(d limits.Decider, o Options) func(http.Handler) http.Handler {
	check(d, o.Domain, o.Descriptors)
	g := &gate.Gate{Decider: d, OnFailure: o.OnFailure, Logger: o.Logger}
	if o.Actual != nil {
		var ok bool
		if g.Reserver, ok = d.(limits.Reserver); !ok {
			panic("httplimit: Options.Actual needs a Decider that is a limits.Reserver")
		}
	}
	if o.Denied == nil {
		o.Denied = denied
	}
	return func(next http.Handler) http.Handler {
		h := &handler{options: o, gate: g, next: next}
		if o.Mux != nil {
			h.mux = o.Mux
		} else if m, ok := next.(*http.ServeMux); ok {
			h.mux = m
		}
		return h
	}
}

// ByKey returns middleware for a limit per key, such as a ratelimit.Keyed: each value of the key has a separate
// counter, responses have RateLimit headers, and a denial is 429 with Retry-After. It uses New with the domain and the
// descriptor of a Keyed.
//
//	perKey, err := ratelimit.NewKeyed(ratelimit.PerMinute(100))
//	...
//	limit := httplimit.ByKey(perKey, httplimit.Header("X-Api-Key", "id").Hashed().Or("none"))
//	err = http.ListenAndServe(":8080", limit(mux))
func ByKey(d limits.Decider, key Key) func(http.Handler) http.Handler {
	key.entry.Key = "id"
	return New(d, Options{Domain: "keyed", Descriptors: []Descriptor{{key}}, Headers: true})
}

type handler struct {
	options Options
	gate    *gate.Gate
	next    http.Handler
	mux     mux // nil for other routers
}

// ServeHTTP implements http.Handler.
func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	q := request(h.options.Domain, h.options.Descriptors, r, h.mux)
	if q == nil {
		h.next.ServeHTTP(w, r)
		return
	}
	if h.options.Cost != nil {
		q.Amount = h.options.Cost(r)
	}
	held, err := h.gate.Ask(r.Context(), q)
	if err != nil {
		// The client has gone, or a deadline that an earlier handler set has passed.
		http.Error(w, "the request ended before the rate limit was checked", http.StatusServiceUnavailable)
		return
	}
	d := &held.Decision
	for _, x := range gate.Headers(d, h.options.Headers || !d.Allowed) {
		w.Header().Add(x.Name, x.Value)
	}
	switch {
	case !d.Allowed:
		h.options.Denied(w, r, *d)
	case h.options.Actual == nil:
		defer h.gate.Release(r.Context(), held)
		h.next.ServeHTTP(w, r)
	default:
		h.charge(w, r, held)
	}
}

// charge calls the next handler and charges the real cost of the request.
func (h *handler) charge(w http.ResponseWriter, r *http.Request, held *limits.Reservation) {
	m := &measured{ResponseWriter: w}
	returned := false
	defer func() {
		// A response that ends in a panic, such as a proxy's when its client goes away, is charged like any other. Otherwise
		// clients would not pay for the bytes that they have read.
		if !returned && m.status == 0 {
			h.gate.Cancel(r.Context(), held)
			return
		}
		status := m.status
		if status == 0 {
			status = http.StatusOK
		}
		h.gate.Commit(r.Context(), held, h.options.Actual(r, status, m.bytes))
	}()
	h.next.ServeHTTP(m.asUsed(), r)
	returned = true
}

func denied(w http.ResponseWriter, _ *http.Request, d limits.Decision) {
	if d.Source == limits.FailClosed {
		http.Error(w, "the rate limit cannot be checked", http.StatusServiceUnavailable)
		return
	}
	http.Error(w, "too many requests", http.StatusTooManyRequests)
}

// measured is a response whose status and size are known afterwards.
type measured struct {
	http.ResponseWriter
	status int
	bytes  int64
}

// asUsed returns the response with the optional methods that handlers look for. Only HTTP/1 has Hijack.
func (m *measured) asUsed() http.ResponseWriter {
	if h, ok := m.ResponseWriter.(http.Hijacker); ok {
		return struct {
			*measured
			http.Hijacker
		}{m, h}
	}
	return m
}

// Unwrap is for http.ResponseController.
func (m *measured) Unwrap() http.ResponseWriter { return m.ResponseWriter }

// WriteHeader implements http.ResponseWriter.
func (m *measured) WriteHeader(status int) {
	if m.status == 0 && (status >= 200 || status == http.StatusSwitchingProtocols) {
		m.status = status
	}
	m.ResponseWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (m *measured) Write(b []byte) (int, error) {
	m.begun()
	n, err := m.ResponseWriter.Write(b)
	m.bytes += int64(n)
	return n, err
}

// ReadFrom implements io.ReaderFrom, so that files are sent without copies.
func (m *measured) ReadFrom(from io.Reader) (int64, error) {
	m.begun()
	n, err := io.Copy(m.ResponseWriter, from)
	m.bytes += n
	return n, err
}

// FlushError is for http.ResponseController.
func (m *measured) FlushError() error {
	m.begun()
	return http.NewResponseController(m.ResponseWriter).Flush()
}

// Flush implements http.Flusher.
func (m *measured) Flush() { _ = m.FlushError() }

func (m *measured) begun() {
	if m.status == 0 {
		m.status = http.StatusOK
	}
}
