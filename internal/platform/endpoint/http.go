package endpoint

import (
	"log/slog"
	"net/http"
	"time"
)

// MaxHeaderSize is the largest total size of a gRPC call's headers, in bytes.
const MaxHeaderSize = 256 << 10

// maxHeader is the largest size of an HTTP request's header, in bytes; net/http adds 4 KiB. The shortest lines use 23
// times as much memory.
const maxHeader = 16 << 10

// WriteTimeout is the longest time to write an HTTP answer.
const WriteTimeout = 30 * time.Second

// Approximate memory of an HTTP/2 connection for buffers and stacks, and the additional memory of an encrypted one.
const (
	GRPCSize = 12 << 10
	TLSSize  = 12 << 10
)

// Approximate memory of an HTTP/1 connection for buffers and stacks, and the additional memory while a request is
// answered.
const (
	HTTPSize    = 20 << 10
	RequestSize = 12 << 10
)

const (
	readHeaderTimeout = 5 * time.Second
	readTimeout       = 15 * time.Second // time for a whole request
	idleTimeout       = 2 * time.Minute
)

// HTTP returns an HTTP server on which clients cannot hold connections or memory for free, and that survives panics.
// The caller sets its WriteTimeout, unless an answer may take any time.
func (s *Shared) HTTP(h http.Handler) *http.Server {
	return &http.Server{
		Handler:           s.Recovering(h),
		ReadHeaderTimeout: readHeaderTimeout,
		ReadTimeout:       readTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeader,
		ErrorLog:          slog.NewLogLogger(s.Log.Handler(), slog.LevelWarn),
	}
}

// WriteText answers with plain text that must not be cached.
func WriteText(w http.ResponseWriter, code int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(code)
	_, _ = w.Write([]byte(text))
}

// OtherOrigin is the answer to a request that a browser makes for a web page of another origin.
const OtherOrigin = "web pages of another origin are rejected"
