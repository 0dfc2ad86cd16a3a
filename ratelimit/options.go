package ratelimit

import (
	"io/fs"
	"log/slog"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/limits"
)

// Options are the settings of a Limiter. Rules must come from at least one of Domains, Files and Dir. Each domain has one source:
// a file of Dir cannot replace a domain of Domains or Files.
type Options struct {
	Domains []Domain // rules in code
	Files   fs.FS    // rule files (*.yaml) that are read once, such as an embed.FS

	// Dir is a directory of rule files. It is read with all directories below it, and again when a file changes.
	Dir string

	// Strict rejects probable mistakes in rule files. Without it, what envoyproxy/ratelimit accepts is accepted and logged. Rules in code
	// are always strict.
	Strict bool

	// AllowUnmatched lets a request pass if it has a descriptor that no rule can match: a domain or keys that no rule has. The first such
	// request is logged. Without it, this is limits.ErrInvalid, because a misspelt key would otherwise mean no limit. With Dir such requests
	// always pass, because an operator may remove a rule.
	AllowUnmatched bool

	// Redis is where counters live; nil: in the memory of this process.
	Redis *Redis

	// KeyPrefix begins every counter's key in Redis. Processes that share counters need the same one; it is CACHE_KEY_PREFIX of the
	// service.
	KeyPrefix string

	// LyftKeys gives counters the keys of envoyproxy/ratelimit, as REDIS_KEY_FORMAT=lyft of the service does.
	LyftKeys bool

	// OverridesInRedis follows the overrides that operators set in Redis; OverridesFile those in a YAML file. Default: there are none.
	OverridesInRedis bool
	OverridesFile    string

	// OnFailure decides if the counters cannot be read and neither the rule nor its domain has on_error. Default limits.OnFailureError.
	OnFailure limits.OnFailure

	// AllOrNothing is for domains without admission: a denied request consumes nothing under any of its descriptors.
	AllOrNothing bool

	// Headers are the headers for clients of domains without headers of their own. Default none.
	Headers Headers

	// MaxCounters is the most counters in memory. Default 2,000,000; a counter takes about 100 bytes.
	MaxCounters int

	// Observer is called after each decision of Decide, Allow, Wait and Reserve. Default none.
	Observer Observer

	// Logger gets messages about files and connections. Default slog.Default().
	Logger *slog.Logger
}

// Headers is a set of header families. A family is a convention to send clients their limits.
type Headers uint8

// The families: HeadersIETF|HeadersRetryAfter are two.
const (
	HeadersRateLimit  = Headers(descriptor.HeadersReference)  // RateLimit-Limit, -Remaining and -Reset, as envoyproxy/ratelimit sends them
	HeadersXRateLimit = Headers(descriptor.HeadersDraft03)    // X-RateLimit-Limit with all policies, -Remaining and -Reset, as Envoy sends them
	HeadersIETF       = Headers(descriptor.HeadersIETF)       // RateLimit-Policy and RateLimit, of the IETF draft
	HeadersRetryAfter = Headers(descriptor.HeadersRetryAfter) // Retry-After on denials
)

// Topology says whether a Redis is a single server, has Sentinels, or is a cluster.
type Topology string

// The topologies.
const (
	Single   Topology = "SINGLE"
	Sentinel Topology = "SENTINEL"
	Cluster  Topology = "CLUSTER"
)

// Redis says how to reach the Redis that holds counters. One of URL and Client is required. Errors name the variables of the service:
// REDIS_URL is the field URL.
type Redis struct {
	// Client is a client of the program's own, which Close leaves open. Its ContextTimeoutEnabled must be true. Of the other fields only
	// Timeout applies, and there are no circuit breakers: while Redis hangs, each decision waits for its timeout. What Redis sends is not bounded either: the
	// client library allocates whatever length a server announces.
	Client goredis.UniversalClient

	// URL is host:port, redis://host:port/db, rediss://host:port (TLS), or the path of a unix socket. For Sentinel it is
	// master,sentinel,sentinel and so on; for Cluster node,node and so on.
	URL  string
	Type Topology // default Single

	Auth         string // password, or user:password
	AuthFile     string // file with the same; it is read for every new connection
	SentinelAuth string // of the sentinels

	TLS        bool   // encrypt connections
	CACert     string // file of the authorities to trust; empty: the system's
	ClientCert string // file of the client certificate
	ClientKey  string // file of its key

	PoolSize int           // most connections; on a cluster, to each node. Default 10
	Timeout  time.Duration // longest wait for an answer, if the deadline of the call is not nearer. Default 1 s
}
