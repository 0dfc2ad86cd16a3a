package ratelimit

import (
	"io/fs"
	"log/slog"

	"github.com/ratelimitd/ratelimitd/internal/assembly/parts"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/limits"
)

// Options are the settings of a Limiter. Rules must come from at least one of Domains, Files and Dir. Domains of Files
// are defaults, which a file of Dir may replace; it cannot replace a domain of Domains.
type Options struct {
	Domains []Domain // rules in code
	Files   fs.FS    // rule files (*.yaml) that are read once, such as an embed.FS

	// Dir is a directory of rule files, which are read again when they change: rulefiles.Dir returns one. Default none.
	Dir *RuleFiles

	// Strict rejects probable mistakes in rule files. Without it, mistakes that envoyproxy/ratelimit accepts are accepted
	// and logged. Rules in code are always strict.
	Strict bool

	// AllowUnmatched lets a request pass if it has a descriptor that no rule can match: a domain or keys that no rule has.
	// The first such request is logged. Without it, this is limits.ErrInvalid, because a misspelt key would otherwise mean
	// no limit. With Dir such requests always pass, because an operator may remove a rule.
	AllowUnmatched bool

	// Store holds the counters: redisstore.New returns one in Redis. Nil counts in the memory of this process.
	Store *Store

	// Overrides are the numbers that operators set for one customer each: rulefiles.Overrides reads them from a file.
	// Those in Redis are a setting of package redisstore. Default none.
	Overrides *Overrides

	// OnFailure decides if the counters cannot be read and neither the rule nor its domain has on_error. Default
	// limits.OnFailureError.
	OnFailure limits.OnFailure

	// AllOrNothing is for domains without admission: a denied request consumes nothing under any of its descriptors.
	AllOrNothing bool

	// Headers are the headers for clients, for domains that do not define headers. Default none.
	Headers Headers

	// MaxCounters is the most counters in memory. Default 2,000,000; a counter takes about 100 bytes.
	MaxCounters int

	// Observer is called after each decision of Decide, Allow, Wait and Reserve. Default none.
	Observer Observer

	// Logger logs messages about files and connections. Default slog.Default().
	Logger *slog.Logger
}

// Headers is a set of header families. A family is a convention to send clients their limits.
type Headers uint8

// The families: HeadersIETF|HeadersRetryAfter are two.
const (
	// RateLimit-Limit, -Remaining and -Reset, as envoyproxy/ratelimit sends them
	HeadersRateLimit = Headers(descriptor.HeadersReference)
	// X-RateLimit-Limit with all policies, -Remaining and -Reset, as Envoy sends them
	HeadersXRateLimit = Headers(descriptor.HeadersDraft03)
	HeadersIETF       = Headers(descriptor.HeadersIETF)       // RateLimit-Policy and RateLimit, of the IETF draft
	HeadersRetryAfter = Headers(descriptor.HeadersRetryAfter) // Retry-After on denials
)

// Store holds the counters. Package redisstore creates one.
type Store = parts.Store

// RuleFiles are rule files that may change. Package rulefiles finds them.
type RuleFiles = parts.Rules

// Overrides are a source of numbers that each are for one customer. Package rulefiles creates one.
type Overrides = parts.Source
