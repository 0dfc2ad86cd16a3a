package server

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"os"
	"strings"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

// page is an endpoint of the debug listener.
type page struct {
	path, help string
	handler    http.HandlerFunc
}

// newDebug is the listener for operators: pages over HTTP, and the admin services over gRPC on the same port, in plain
// text unless there is TLS. One gate stands before all of them. It has no write timeout: a profile takes as long as it is
// asked to.
func (s *Server) newDebug(opts *Options) *http.Server {
	mux := http.NewServeMux()
	if !opts.NoDebug {
		addPages(mux, opts)
	}
	h := s.bounded(mux)
	if s.admin != nil {
		h.Handler = split(s.admin, h.Handler)
		h.Protocols = new(http.Protocols)
		h.Protocols.SetHTTP1(true)
		h.Protocols.SetUnencryptedHTTP2(opts.DebugTLS == nil)
		h.Protocols.SetHTTP2(opts.DebugTLS != nil)
	}
	h.Handler = newGate(opts).before(h.Handler)
	if opts.DebugTLS != nil {
		h.TLSConfig = offeringHTTP2(opts.DebugTLS)
		// Who has no certificate fails in the handshake, which is told here. Anybody may try as often as they like.
		h.ErrorLog = log.New(&someLines{log: opts.Log, some: sampler{perSecond: 1}}, "", 0)
	}
	return h
}

// someLines writes some of the lines that it is given to a log.
type someLines struct {
	log  *slog.Logger
	some sampler
}

func (s *someLines) Write(line []byte) (int, error) {
	if s.some.pick(time.Now()) {
		s.log.Warn("debug port", "error", strings.TrimSpace(string(line)), "not_logged", s.some.missed())
	}
	return len(line), nil
}

// offeringHTTP2 is a configuration in whose every handshake HTTP/2 may be chosen: net/http adds that to the configuration
// itself, and not to those that it hands out by connection.
func offeringHTTP2(c *tls.Config) *tls.Config {
	offer := func(c *tls.Config) *tls.Config {
		c = c.Clone()
		c.NextProtos = []string{"h2", "http/1.1"}
		return c
	}
	c = offer(c)
	if each := c.GetConfigForClient; each != nil {
		c.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
			own, err := each(hello)
			if err != nil || own == nil {
				return own, err
			}
			return offer(own), nil
		}
	}
	return c
}

func (s *Server) serveDebug(l net.Listener) error {
	if s.debug.TLSConfig != nil {
		return s.debug.ServeTLS(l, "", "")
	}
	return s.debug.Serve(l)
}

// split hands gRPC calls to one handler and all else to another.
func split(calls, pages http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !isCall(r) {
			pages.ServeHTTP(w, r)
			return
		}
		// The time in which a request must have been read is for requests that end: a stream need not.
		_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
		calls.ServeHTTP(w, r)
	})
}

// isCall says whether a request is a gRPC call.
func isCall(r *http.Request) bool {
	return r.ProtoMajor >= 2 && strings.HasPrefix(r.Header.Get("Content-Type"), "application/grpc")
}

func addPages(mux *http.ServeMux, opts *Options) {
	pages := []page{
		{"/rlconfig", "the rules in force and the state of every rule file", func(w http.ResponseWriter, _ *http.Request) { writeConfig(w, opts) }},
		{"/stats", "counters", func(w http.ResponseWriter, _ *http.Request) { writeStats(w, opts) }},
		{"/debug/pprof/", "profiles", pprof.Index},
	}
	pages = append(pages, page{"/debug/hotkeys", hotKeysHelp, func(w http.ResponseWriter, r *http.Request) { writeHotKeys(w, r, opts) }})
	if opts.LogLevel != nil {
		pages = append(pages, page{"/loglevel", logLevelHelp, (&logLevel{opts.LogLevel, opts.Log}).ServeHTTP})
	}
	var index strings.Builder
	for _, p := range pages {
		mux.HandleFunc(p.path, p.handler)
		fmt.Fprintf(&index, "%-14s %s\n", p.path, p.help)
	}
	if !opts.NoAdmin {
		fmt.Fprintf(&index, "gRPC           %s and %s, with reflection, on this port\n",
			adminv1.AdminService_ServiceDesc.ServiceName, adminv1.CounterService_ServiceDesc.ServiceName)
	}
	mux.HandleFunc("/{$}", func(w http.ResponseWriter, _ *http.Request) { writeText(w, http.StatusOK, index.String()) })
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	// The command line may have passwords in it.
	mux.HandleFunc("/debug/pprof/cmdline", func(w http.ResponseWriter, _ *http.Request) { writeText(w, http.StatusOK, os.Args[0]) })
}

func writeConfig(w http.ResponseWriter, opts *Options) {
	writeText(w, http.StatusOK, "")
	b := bufio.NewWriter(w)
	if opts.Tree != nil {
		writeRules(b, opts.Tree())
	}
	if opts.RuleFiles != nil {
		writeRuleFiles(b, opts.RuleFiles())
	}
	_ = b.Flush()
}

func writeStats(w http.ResponseWriter, opts *Options) {
	writeText(w, http.StatusOK, "")
	if opts.Stats == nil {
		return
	}
	b := bufio.NewWriter(w)
	opts.Stats(b)
	_ = b.Flush()
}

// writeRuleFiles writes the state of every rule file as comments, a line per file and a line per error.
func writeRuleFiles(w io.Writer, files []descriptor.FileStatus) {
	for _, f := range sortedFiles(files) {
		fmt.Fprintf(w, "# %s: %s since %s, %d rules, domains: %s\n",
			f.Name, f.State, f.Since.UTC().Format(time.RFC3339), f.Rules, strings.Join(f.Domains, ", "))
		for _, e := range f.Errors {
			fmt.Fprintf(w, "#   %s\n", strings.ReplaceAll(e, "\n", " "))
		}
		for _, e := range f.Warnings {
			fmt.Fprintf(w, "#   warning: %s\n", strings.ReplaceAll(e, "\n", " "))
		}
	}
}
