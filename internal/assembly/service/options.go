package service

import (
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ratelimitd/ratelimitd/internal/assembly"
	"github.com/ratelimitd/ratelimitd/internal/config"
	"github.com/ratelimitd/ratelimitd/internal/config/override"
	"github.com/ratelimitd/ratelimitd/internal/config/xds"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
	"github.com/ratelimitd/ratelimitd/internal/operator"
	"github.com/ratelimitd/ratelimitd/internal/platform/endpoint"
	"github.com/ratelimitd/ratelimitd/internal/platform/intake"
	"github.com/ratelimitd/ratelimitd/internal/platform/logging"
	"github.com/ratelimitd/ratelimitd/internal/platform/statsd"
	"github.com/ratelimitd/ratelimitd/internal/platform/tlsfiles"
	"github.com/ratelimitd/ratelimitd/internal/server"
	"github.com/ratelimitd/ratelimitd/internal/server/regionrpc"
)

// Options are the parts of a Service. New completes the options of other packages with the parts that they share: the
// limiter, the counters, the registry, the log.
type Options struct {
	Tasks    *assembly.Tasks // the work of the parts below; Run does it, and New closes it if it fails
	Log      *slog.Logger
	Level    *logging.Level
	Registry *prometheus.Registry
	Budget   *intake.Budget // the memory that clients may occupy
	Version  string

	Counters  assembly.Options
	Redis     RedisHealth
	Regions   *Regions // nil with a single region
	Rules     Rules
	Overrides Overrides

	Limiter  limiter.Options
	Settings limiter.Settings

	ReservationKey string // signs reservation IDs; empty for a random key, shared in Redis

	// Statistics shows and sends envoyproxy/ratelimit's statistics. It returns the observer of response times.
	Statistics func(statsd.Source) (prometheus.Observer, error)

	Ports     endpoint.Options
	Server    server.Options
	Operators operator.Options
}

// Rules is the source of the rules: a directory, or a server over xDS.
type Rules struct {
	Directory *config.Directory // nil if Server sends the rules
	Dir       string            // directory of Directory
	Hint      string            // advice in the error if the rules cannot be loaded

	Server     *xds.Client
	ServerName string

	Force      bool // start with green health without rules
	AtLeastOne bool // health is red without a domain
}

// Overrides is the source of operators' overrides. At most one of File and Redis is set.
type Overrides struct {
	Name  string         // name of the source, for operators
	File  *override.File // nil unless overrides are in a file
	Redis *assembly.Redis
	Copy  string // file with a copy of the overrides in Redis; empty for no copy
}

// Regions has the addresses of the other regions, and the address at which these reach this one.
type Regions struct {
	Name    string
	Names   []string      // all regions
	Addr    string        // the address of the region port
	Timeout time.Duration // longest wait for a home, if the call has no deadline
	Peers   *regionrpc.Peers
	TLS     *tlsfiles.Files
}
