package operator

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net/http"
	"net/http/pprof"
	"os"
	"strings"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/operator/console"
	"github.com/ratelimitd/ratelimitd/internal/platform/endpoint"
	"github.com/ratelimitd/ratelimitd/internal/platform/logging"
)

// page is a path of the admin port.
type page struct {
	path, help string
	handler    http.HandlerFunc
}

// newDebug makes the server of the admin port: pages and services, in plain text unless there is TLS, all behind one
// gate. It has no write timeout, because a profile takes as long as the operator asks for.
func (s *Server) newDebug(opts *Options) *http.Server {
	mux := http.NewServeMux()
	addPages(mux, opts)
	s.addConsole(mux, opts)
	s.addServices(mux, opts)
	h := s.shared.HTTP(mux)
	h.Protocols = new(http.Protocols)
	h.Protocols.SetHTTP1(true)
	h.Protocols.SetUnencryptedHTTP2(opts.Access.TLS == nil)
	h.Protocols.SetHTTP2(opts.Access.TLS != nil)
	h.Handler = newGate(opts).before(calls(h.Handler))
	if opts.Access.TLS != nil {
		h.TLSConfig = offeringHTTP2(opts.Access.TLS)
		// A client without a certificate fails in the handshake, which net/http logs. Anybody can make it fail at any rate.
		h.ErrorLog = log.New(&someLines{log: opts.Shared.Log, some: logging.Sampler{PerSecond: 1}}, "", 0)
	}
	return h
}

// someLines is a writer that logs some of its lines.
type someLines struct {
	log  *slog.Logger
	some logging.Sampler
}

func (s *someLines) Write(line []byte) (int, error) {
	if s.some.Pick(time.Now()) {
		s.log.Warn("the HTTP server of the admin port reports an error", "error", strings.TrimSpace(string(line)),
			"not_logged", s.some.Missed())
	}
	return len(line), nil
}

// offeringHTTP2 is a configuration that offers HTTP/2 in every handshake. net/http adds the offer to the configuration
// itself, but not to those that GetConfigForClient returns.
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

func addPages(mux *http.ServeMux, opts *Options) {
	pages := []page{
		{console.Path, "the console, for a browser", console.Files},
		{"/rlconfig", "the active rules and the state of every rule file",
			func(w http.ResponseWriter, _ *http.Request) { writeConfig(w, opts) }},
		{"/stats", "counters", func(w http.ResponseWriter, _ *http.Request) { writeStats(w, opts) }},
		{"/debug/pprof/", "profiles", pprof.Index},
		{"/regions", "what this replica knows about other regions",
			func(w http.ResponseWriter, _ *http.Request) { writeRegions(w, opts) }},
	}
	pages = append(pages, page{"/debug/hotkeys", hotKeysHelp,
		func(w http.ResponseWriter, r *http.Request) { writeHotKeys(w, r, opts) }})
	if opts.LogLevel != nil {
		pages = append(pages, page{"/loglevel", logLevelHelp, (&logLevel{opts.LogLevel, opts.Shared.Log}).ServeHTTP})
	}
	var index strings.Builder
	for _, p := range pages {
		mux.HandleFunc(p.path, p.handler)
		fmt.Fprintf(&index, "%-14s %s\n", p.path, p.help)
	}
	fmt.Fprintf(&index, "services       %s, over gRPC with reflection, gRPC-Web, and JSON: POST /SERVICE/METHOD\n",
		strings.Join(serviceNames[2:], ", "))
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		code := http.StatusOK
		if r.URL.Path != "/" {
			code = http.StatusNotFound
		}
		endpoint.WriteText(w, code, index.String())
	})
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	// Not the whole command line: it may contain passwords.
	mux.HandleFunc("/debug/pprof/cmdline", func(w http.ResponseWriter, _ *http.Request) {
		endpoint.WriteText(w, http.StatusOK, os.Args[0])
	})
}

func writeConfig(w http.ResponseWriter, opts *Options) {
	endpoint.WriteText(w, http.StatusOK, "")
	b := bufio.NewWriter(w)
	if opts.Rules.Tree != nil {
		tree := opts.Rules.Tree()
		writeRules(b, tree)
		if tree != nil {
			fmt.Fprintf(b, "# checksum: %d, the same in every replica with these rules\n", tree.Checksum)
		}
	}
	if opts.Rules.Files != nil {
		writeRuleFiles(b, opts.Rules.Files())
	}
	_ = b.Flush()
}

func writeStats(w http.ResponseWriter, opts *Options) {
	endpoint.WriteText(w, http.StatusOK, "")
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
