package operator

import (
	"context"
	"crypto/tls"
	"io"
	"net/http"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/lending/regions"
	"github.com/ratelimitd/ratelimitd/internal/limiter/hotkeys"
	"github.com/ratelimitd/ratelimitd/internal/platform/endpoint"
)

// Options configure a Server. All but Counters are optional.
type Options struct {
	Shared *endpoint.Shared // settings shared with the other ports of the process; nil means defaults

	Addr string // host:port of the admin port; default "127.0.0.1:6070"

	Access  Access
	Rules   Rules
	Bounds  Bounds
	Scrapes Scrapes

	Overrides Overrides

	Counters Counters                           // operators may look at them and clear them; required
	Usage    Usage                              // lists descriptors with live counters; nil disables usage
	HotKeys  func(hotkeys.Query) hotkeys.Report // nil disables hot keys
	Shares   Shares                             // shares of the clients that decide with quotas; nil without such clients
	Host     string                             // the name of this machine, shown with the shares

	// Shown on the console; nil is shown as unknown.
	Decisions Decisions
	Replica   func(context.Context) *Replica

	Fleet Fleet // the replicas that share a Redis; nil if unknown

	Regions Regions // state of the other regions

	Stats    func(io.Writer) // writes the lines of /stats, "name: value"; nil without statistics
	LogLevel LogLevel        // shown and changed by /loglevel; nil disables the page
}

// Access restricts who may use the admin port. With Tokens every request needs one, with ClientCerts every client needs
// a certificate, with both, both. With neither the pages are open to everybody, and calls of Counters are rejected.
type Access struct {
	Tokens      Tokens
	TLS         *tls.Config // nil means plain text
	ClientCerts bool        // TLS verifies a certificate of every client

	// Names are the names that give client certificates their role. A certificate with several has the highest of their
	// roles; one with none is rejected. Empty: every certificate has the role operate.
	Names []CertificateName

	// HostNames are host names that requests may use for this port, in addition to localhost, the host of Addr and IP
	// addresses. *.example.org is every name below that, and * every name.
	HostNames []string
}

// Rules show the active rules. A nil function hides its part.
type Rules struct {
	Files   func() []descriptor.FileStatus
	Tree    func() *descriptor.Tree
	Explain func(domain string, entries []descriptor.Entry) descriptor.Explanation
}

// Regions show the other regions, and identify counters that only another region can change. Without a region, both are
// nil.
type Regions struct {
	Status func() regions.Status

	// HomeElsewhere returns the region that counts the counter with a key, and whether it is another one than this.
	HomeElsewhere func(key []byte, l *descriptor.Limit) (home string, elsewhere bool)
}

// Bounds limit the resources that operators may use.
type Bounds struct {
	PeerShare float64 // part of a port's 100 connections that one peer keeps when all are in use; default 0.5

	// Of a descriptor that operators ask about.
	MaxEntries   int // per descriptor; default 256
	MaxTextBytes int // bytes of a domain, a key or a value; default 64 KiB
}

// Scrapes is a port for nothing but metrics.
type Scrapes struct {
	Addr    string       // host:port; empty disables the port
	Path    string       // default "/metrics"
	Handler http.Handler // nil disables the port
}

// tree returns the active rules, or nil without rules.
func (r *Rules) tree() *descriptor.Tree {
	if r.Tree == nil {
		return nil
	}
	return r.Tree()
}

func (o *Options) setDefaults() {
	if o.Addr == "" {
		o.Addr = "127.0.0.1:6070"
	}
	if o.HotKeys == nil {
		o.HotKeys = func(hotkeys.Query) hotkeys.Report { return hotkeys.Report{} }
	}
	if o.Bounds.PeerShare == 0 {
		o.Bounds.PeerShare = 0.5
	}
	if o.Bounds.MaxEntries == 0 {
		o.Bounds.MaxEntries = 256
	}
	if o.Bounds.MaxTextBytes == 0 {
		o.Bounds.MaxTextBytes = 64 << 10
	}
	if o.Scrapes.Path == "" {
		o.Scrapes.Path = "/metrics"
	}
}
