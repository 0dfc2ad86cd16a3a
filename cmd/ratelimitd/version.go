package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"runtime"
	"runtime/debug"

	"github.com/prometheus/client_golang/prometheus"
)

// versionCommand is the subcommand that prints the version.
type versionCommand struct {
	Output outputOptions `embed:""`
}

func (*versionCommand) about() about {
	return about{
		examples: []example{{"print the version as JSON", "ratelimitd version -o json"}},
		exits:    []exitCode{{0, "The version was printed."}, {2, "The command line is invalid."}},
	}
}

// Run prints the version and the build information.
func (o *versionCommand) Run(_ context.Context, s streams) error {
	b := thisBuild()
	return o.Output.write(s.out, b.writeText, b.writeJSON)
}

// The linker sets these in a release: -ldflags "-X main.release=v1.2.3 -X main.commit=HASH -X main.date=RFC3339".
var release, commit, date string

// build describes how the program was built. A text is empty if the build did not record it.
type build struct {
	Version  string `json:"version"`  // v1.2.3; without a release Go's pseudo-version of the commit, or (devel)
	Commit   string `json:"commit"`   // ends with -dirty if files were changed after the commit
	Date     string `json:"date"`     // date of the release, else of the commit, as RFC 3339
	Go       string `json:"go"`       // go1.26.0
	Platform string `json:"platform"` // linux/amd64
}

// thisBuild describes the build of this program. Values that the linker set take precedence over those that Go
// recorded.
func thisBuild() build {
	b := build{Version: release, Commit: commit, Date: date, Go: runtime.Version(),
		Platform: runtime.GOOS + "/" + runtime.GOARCH}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		b.Version = cmp.Or(b.Version, "(unknown)")
		return b
	}
	b.Version = cmp.Or(b.Version, info.Main.Version, "(devel)")
	recorded := make(map[string]string)
	for _, s := range info.Settings {
		recorded[s.Key] = s.Value
	}
	if b.Commit == "" {
		b.Commit = recorded["vcs.revision"]
		if recorded["vcs.modified"] == "true" {
			b.Commit += "-dirty"
		}
	}
	b.Date = cmp.Or(b.Date, recorded["vcs.time"])
	return b
}

func (b build) writeText(w io.Writer) error {
	_, err := fmt.Fprintf(w, "ratelimitd %s\ncommit     %s\ndate       %s\ngo         %s %s\n",
		b.Version, cmp.Or(b.Commit, "unknown"), cmp.Or(b.Date, "unknown"), b.Go, b.Platform)
	return err
}

func (b build) writeJSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(b)
}

// metric returns ratelimitd_build_info.
func (b build) metric() prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name:        "ratelimitd_build_info",
		Help:        "1; the labels describe this build.",
		ConstLabels: prometheus.Labels{"version": b.Version, "revision": b.Commit, "goversion": b.Go},
	}, func() float64 { return 1 })
}
