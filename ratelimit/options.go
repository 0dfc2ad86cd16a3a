package ratelimit

import (
	"log/slog"
	"time"

	"github.com/ratelimitd/ratelimitd/limits"
)

// Options are the settings of a Limiter. Only Rules is required.
type Options struct {
	// Rules is the folder of rule files. It is read with all folders below it, and again when a file changes.
	Rules string

	// Strict refuses probable mistakes in rule files. Without it, what envoyproxy/ratelimit accepts is accepted and logged.
	Strict bool

	// Redis is where counters live; nil: in the memory of this process.
	Redis *Redis

	// KeyPrefix begins every counter's key in Redis. Processes that share counters need the same one; it is CACHE_KEY_PREFIX of the
	// service.
	KeyPrefix string

	// LyftKeys gives counters the keys of envoyproxy/ratelimit, as REDIS_KEY_FORMAT=lyft of the service does.
	LyftKeys bool

	// Overrides is where operators' overrides are: "redis", or the path of a YAML file. Empty: there are none.
	Overrides string

	// OnFailure decides if the counters cannot be read and neither the rule nor its domain has on_error. Default limits.OnFailureError.
	OnFailure limits.OnFailure

	// AllOrNothing is for domains without admission: a refused request then consumes nothing under any of its descriptors.
	AllOrNothing bool

	// Headers are the headers for clients of domains without headers: "ratelimit", "x-ratelimit", "ietf" or "retry-after".
	Headers []string

	// MaxCounters is the most counters in memory. Default 2,000,000; a counter takes about 100 bytes.
	MaxCounters int

	// Observer is called after each decision of Decide, Allow, Wait and Reserve. Default none.
	Observer Observer

	// Logger gets messages about files and connections. Default slog.Default().
	Logger *slog.Logger
}

// Redis says how to reach the Redis that holds counters. Only URL is required. Errors name the variables of the service: REDIS_URL is
// the field URL.
type Redis struct {
	// URL is host:port, redis://host:port/db, rediss://host:port (TLS), or the path of a unix socket. For SENTINEL it is
	// master,sentinel,sentinel and so on; for CLUSTER node,node and so on.
	URL  string
	Type string // "SINGLE" (default), "SENTINEL" or "CLUSTER"

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

// Observer is limits.Observer: it sees decisions.
type Observer = limits.Observer

// Request is limits.Request: what is asked for.
type Request = limits.Request

// Descriptor is limits.Descriptor: one thing that is limited.
type Descriptor = limits.Descriptor

// Entry is limits.Entry: one pair of key and value.
type Entry = limits.Entry

// Amount is limits.Amount: what a request uses of a limit.
type Amount = limits.Amount

// Decision is limits.Decision: the answer.
type Decision = limits.Decision

// Status is limits.Status: the answer for one descriptor.
type Status = limits.Status

// Reservation is limits.Reservation: hits that are set aside.
type Reservation = limits.Reservation

// ReserveOptions is limits.ReserveOptions: the settings of a reservation.
type ReserveOptions = limits.ReserveOptions

// Never is the RetryAfter of a request that no wait helps.
const Never = limits.Never
