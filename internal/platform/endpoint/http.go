package endpoint

import (
	"log/slog"
	"net/http"
	"time"
)

// MaxHeaderSize is how many bytes the headers of a call over gRPC may have.
const MaxHeaderSize = 256 << 10

// maxHeader is how many bytes the header of a request over HTTP may have; net/http adds 4 KiB. Its shortest lines take
// 23 times as much memory.
const maxHeader = 16 << 10

// WriteTimeout is how long an HTTP answer may take to be written.
const WriteTimeout = 30 * time.Second

// A connection over HTTP/2 takes about GRPCSize bytes for buffers and stacks, and TLSSize more if it is encrypted.
const (
	GRPCSize = 12 << 10
	TLSSize  = 12 << 10
)

// A connection over HTTP/1 takes about HTTPSize bytes for buffers and stacks, and RequestSize more while a request is
// answered.
const (
	HTTPSize    = 20 << 10
	RequestSize = 12 << 10
)

const (
	readHeaderTimeout = 5 * time.Second
	readTimeout       = 15 * time.Second // of a whole request
	idleTimeout       = 2 * time.Minute
)

// HTTP is an HTTP server that no client can make hold a connection or memory for nothing, and that survives panics. The
// caller sets its WriteTimeout, unless an answer may take any time.
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

// WriteText answers with plain text that no cache keeps.
func WriteText(w http.ResponseWriter, code int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(code)
	_, _ = w.Write([]byte(text))
}

// OtherOrigin is the answer to a request that a browser makes for a web page of another origin.
const OtherOrigin = "web pages of another origin are rejected"
