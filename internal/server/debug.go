package server

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"net/http/pprof"
	"strings"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

const debugIndex = `/rlconfig      the rules in force and the state of every rule file
/stats         counters
/debug/pprof/  profiles
`

// newDebug is the listener for operators. It has no write timeout: a profile takes as long as it is asked to.
func (s *Server) newDebug(opts *Options) *http.Server {
	mux := http.NewServeMux()
	mux.HandleFunc("/{$}", func(w http.ResponseWriter, _ *http.Request) { writeText(w, http.StatusOK, debugIndex) })
	mux.HandleFunc("/rlconfig", func(w http.ResponseWriter, _ *http.Request) {
		writeText(w, http.StatusOK, "")
		b := bufio.NewWriter(w)
		if opts.Tree != nil {
			writeRules(b, opts.Tree())
		}
		if opts.RuleFiles != nil {
			writeRuleFiles(b, opts.RuleFiles())
		}
		_ = b.Flush()
	})
	mux.HandleFunc("/stats", func(w http.ResponseWriter, _ *http.Request) {
		writeText(w, http.StatusOK, "")
		if opts.Stats == nil {
			return
		}
		b := bufio.NewWriter(w)
		opts.Stats(b)
		_ = b.Flush()
	})
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	return s.bounded(mux)
}

// writeRules writes a line per limit, in the reference's form, which scripts read. What the reference does not have
// follows it.
func writeRules(w io.Writer, tree *descriptor.Tree) {
	if tree == nil {
		return
	}
	for _, r := range tree.Rules {
		if r.Unlimited {
			fmt.Fprintf(w, "%s: unlimited%s\n", r.Path, flagsOf(r))
		}
		for i := range r.Limits {
			l := &r.Limits[i]
			fmt.Fprintf(w, "%s: unit=%s requests_per_unit=%d%s%s\n",
				r.Path, strings.ToUpper(l.Window.Unit.String()), l.Requests, flagsOf(r), extensionsOf(l))
		}
	}
}

func flagsOf(r *descriptor.Rule) string {
	s := fmt.Sprintf(", shadow_mode: %t", r.Shadow)
	if r.Quota {
		s += ", quota_mode: true"
	}
	return s
}

func extensionsOf(l *descriptor.Limit) string {
	var s string
	if l.Window.Multiplier > 1 {
		s += fmt.Sprintf(", unit_multiplier: %d", l.Window.Multiplier)
	}
	if l.Algorithm != descriptor.FixedWindow {
		s += ", algorithm: " + l.Algorithm.String()
	}
	return s
}

// writeRuleFiles writes the state of every rule file as comments, a line per file and a line per error.
func writeRuleFiles(w io.Writer, files []descriptor.FileStatus) {
	for _, f := range sortedFiles(files) {
		fmt.Fprintf(w, "# %s: %s since %s, %d rules, domains: %s\n",
			f.Name, f.State, f.Since.UTC().Format(time.RFC3339), f.Rules, strings.Join(f.Domains, ", "))
		for _, e := range f.Errors {
			fmt.Fprintf(w, "#   %s\n", strings.ReplaceAll(e, "\n", " "))
		}
	}
}
