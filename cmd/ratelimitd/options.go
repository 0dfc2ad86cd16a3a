package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/alecthomas/kong"

	"github.com/ratelimitd/ratelimitd/internal/backend/redis"
	"github.com/ratelimitd/ratelimitd/internal/backend/redisconn"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
	"github.com/ratelimitd/ratelimitd/internal/operator"
	"github.com/ratelimitd/ratelimitd/internal/platform/logging"
	"github.com/ratelimitd/ratelimitd/internal/server"
)

// ruleOptions are the settings of rules.
type ruleOptions struct {
	Rules  string `always:"" help:"Directory of rule files, instead of the RUNTIME_ variables." placeholder:"DIR"`
	Strict bool   `name:"strict-rules" env:"RATELIMITD_STRICT_RULES" help:"Reject rule files with duplicate or misplaced keys, instead of warning."`
	Merge  bool   `name:"merge-domain-config" env:"MERGE_DOMAIN_CONFIG" help:"Merge files of one domain instead of rejecting the second."`
	Force  bool   `name:"force-start-without-initial-config" env:"FORCE_START_WITHOUT_INITIAL_CONFIG" help:"Start with green health even without rules."`

	AtLeastOne bool `name:"healthy-with-at-least-one-config-loaded" env:"HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED" help:"Health is red while the active rules have no domain."`

	ConfigType    string `env:"CONFIG_TYPE" oneof:"FILE,GRPC_XDS_SOTW" default:"FILE" placeholder:"FILE|GRPC_XDS_SOTW" help:"Source of rules: files, or a server over xDS."`
	RuntimeRoot   string `env:"RUNTIME_ROOT" nonempty:"" default:"/srv/runtime_data/current" help:"First part of the rule directory, unless --rules names it."`
	RuntimeSubdir string `name:"runtime-subdirectory" env:"RUNTIME_SUBDIRECTORY" help:"Second part of the rule directory."`
	RuntimeAppdir string `name:"runtime-appdirectory" env:"RUNTIME_APPDIRECTORY" default:"config" help:"Third part of the rule directory."`
}

// dir returns the directory of rule files, and the settings that it comes from.
func (o *ruleOptions) dir() (directory, because string) {
	if o.Rules != "" {
		return o.Rules, "--rules"
	}
	return filepath.Join(o.RuntimeRoot, o.RuntimeSubdir, o.RuntimeAppdir),
		"RUNTIME_ROOT, RUNTIME_SUBDIRECTORY, RUNTIME_APPDIRECTORY"
}

// overXDS reports whether the rules come from an xDS server instead of a directory.
func (o *ruleOptions) overXDS() bool { return o.ConfigType == "GRPC_XDS_SOTW" }

// listenOptions are the settings of listeners and the limits on clients' use of them.
type listenOptions struct {
	GRPCHost  string `name:"grpc-host" env:"GRPC_HOST" default:"0.0.0.0" help:"Address of the gRPC port."`
	GRPCPort  int    `name:"grpc-port" env:"GRPC_PORT" range:"0..65535" default:"8081" help:"gRPC port (0: a free one)."`
	Host      string `env:"HOST" default:"0.0.0.0" help:"Address of the HTTP port."`
	Port      int    `env:"PORT" range:"0..65535" default:"8080" help:"HTTP port for /json, health and /metrics (0: a free one)."`
	DebugHost string `env:"DEBUG_HOST" default:"127.0.0.1" help:"Address of the admin port. Beyond loopback, set a token or client CA."`
	DebugPort int    `env:"DEBUG_PORT" range:".." default:"6070" help:"Admin port (0: a free one)."`

	MaxConnectionAge      time.Duration `name:"grpc-max-connection-age" env:"GRPC_MAX_CONNECTION_AGE" nonpositive:"0s" clamp:"1ms.." default:"24h" help:"Age at which gRPC clients must reconnect (0: never)."`
	MaxConnectionAgeGrace time.Duration `name:"grpc-max-connection-age-grace" env:"GRPC_MAX_CONNECTION_AGE_GRACE" range:".." default:"1h" help:"How long their calls may continue (0: forever, negative: not at all)."`
	Socket                string        `name:"grpc-uds" env:"GRPC_UDS" help:"Unix socket instead of host and port (@NAME: abstract)."`
	MaxConnections        int           `env:"RATELIMITD_MAX_CONNECTIONS" range:"1.." default:"10000" help:"Maximum connections, gRPC and HTTP each."`
	Reflection            bool          `name:"grpc-reflection" env:"RATELIMITD_GRPC_REFLECTION" help:"gRPC reflection, for grpcurl and Kuadrant."`
	MaxCalls              int           `env:"RATELIMITD_MAX_CALLS" range:"1.." default:"4096" help:"Maximum calls in flight."`
	MaxClientBytes        int64         `env:"RATELIMITD_MAX_CLIENT_BYTES" range:"1.." default:"134217728" help:"Maximum bytes that clients make the replica keep."`
	DrainDelay            time.Duration `env:"RATELIMITD_DRAIN_DELAY" range:"0s.." default:"0s" help:"How long to serve with red health before stopping."`
	StopTimeout           time.Duration `env:"RATELIMITD_STOP_TIMEOUT" range:"1ms.." default:"10s" help:"How long calls may take to finish when stopping."`
}

// callers returns the server options for clients that depend only on these settings.
func (o *listenOptions) callers() server.Options {
	return server.Options{
		Listen:     server.Listen{GRPC: address(o.GRPCHost, o.GRPCPort), HTTP: address(o.Host, o.Port), Socket: o.Socket},
		Calls:      server.Calls{Max: o.MaxCalls},
		Reflection: o.Reflection,
		Connections: server.Connections{
			Max:         o.MaxConnections,
			MaxAge:      endless(o.MaxConnectionAge),
			MaxAgeGrace: endless(o.MaxConnectionAgeGrace),
		},
		DrainDelay: o.DrainDelay,
	}
}

// operators returns the server options for operators that depend only on these settings.
func (o *listenOptions) operators() operator.Options {
	return operator.Options{
		Addr: address(o.DebugHost, o.DebugPort),
	}
}

// leaving is the longest time for the rest of a stop after the stop timeout.
const leaving = time.Second

// overdue returns a channel that is closed when a stop takes too long. The stop starts with the end of ctx.
func (o *listenOptions) overdue(ctx context.Context) <-chan struct{} {
	passed := make(chan struct{})
	context.AfterFunc(ctx, func() { time.AfterFunc(o.DrainDelay+o.StopTimeout+leaving, func() { close(passed) }) })
	return passed
}

// endless turns a time of envoyproxy/ratelimit, whose 0 means forever, into one of gRPC.
func endless(d time.Duration) time.Duration {
	if d == 0 {
		return math.MaxInt64
	}
	return d
}

func address(host string, port int) string { return net.JoinHostPort(host, strconv.Itoa(port)) }

// answerOptions are the settings of decisions and answers.
type answerOptions struct {
	Shadow bool `name:"shadow-mode" env:"SHADOW_MODE" help:"Measure every rule, enforce none."`
	Quota  bool `name:"quota-mode" env:"QUOTA_MODE" help:"Deny a request only if all of its descriptors are over their limits."`
	Stop   bool `name:"stop-cache-key-increment-when-overlimit" env:"STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT" help:"Count a denied request only in the limits that deny it."`

	Admission string `env:"RATELIMITD_ADMISSION" oneof:"independent,all_or_nothing" placeholder:"independent|all_or_nothing" default:"independent" help:"Whether a denied request still counts in its other descriptors (independent). A domain's admission wins."`
	OnError   string `env:"RATELIMITD_ON_ERROR" oneof:"error,allow,deny,local" placeholder:"error|allow|deny|local" default:"error" help:"Answer while Redis is down. A rule's or domain's on_error wins."`

	Families []string `name:"response-headers" env:"RATELIMITD_RESPONSE_HEADERS" oneof:"ratelimit,x-ratelimit,ietf,retry-after" placeholder:"FAMILY" help:"Header families: ratelimit, x-ratelimit, ietf, retry-after. A domain's headers win."`

	Headers         bool   `name:"limit-response-headers-enabled" env:"LIMIT_RESPONSE_HEADERS_ENABLED" help:"Send the headers below."`
	LimitHeader     string `env:"LIMIT_LIMIT_HEADER" form:"header" otherwise:"RateLimit-Limit" default:"RateLimit-Limit" help:"Header for requests per unit."`
	RemainingHeader string `env:"LIMIT_REMAINING_HEADER" form:"header" otherwise:"RateLimit-Remaining" default:"RateLimit-Remaining" help:"Header for remaining requests."`
	ResetHeader     string `env:"LIMIT_RESET_HEADER" form:"header" otherwise:"RateLimit-Reset" default:"RateLimit-Reset" help:"Header for seconds until the reset."`

	Metadata  bool    `name:"response-dynamic-metadata" env:"RESPONSE_DYNAMIC_METADATA" help:"Send dynamic metadata with answers."`
	Explain   bool    `name:"decision-metadata" env:"RATELIMITD_DECISION_METADATA" help:"Dynamic metadata with the rule that decided, remaining hits and wait."`
	NearRatio float32 `name:"near-limit-ratio" env:"NEAR_LIMIT_RATIO" clamp:"0..1" default:"0.8" help:"Fraction of a limit above which hits are near the limit."`

	CalendarMonths bool `name:"use-calendar-month-rate-limit" env:"USE_CALENDAR_MONTH_RATE_LIMIT" help:"Calendar months in UTC instead of 30 days, for fixed windows and limits in requests."`
}

func (o *answerOptions) settings() limiter.Settings {
	s := limiter.Settings{
		Shadow:         o.Shadow,
		Quota:          o.Quota,
		Admission:      descriptor.ParseAdmission(o.Admission),
		StopWhenOver:   o.Stop,
		OnError:        descriptor.ParseOnError(o.OnError),
		HeaderNames:    limiter.HeaderNames{Limit: o.LimitHeader, Remaining: o.RemainingHeader, Reset: o.ResetHeader},
		Metadata:       o.Metadata,
		Explain:        o.Explain,
		CalendarMonths: o.CalendarMonths,
		NearLimitRatio: o.NearRatio,
	}
	if s.NearLimitRatio == 0 {
		// 0 would mean the default; in envoyproxy/ratelimit every hit is near then
		s.NearLimitRatio = math.SmallestNonzeroFloat32
	}
	for _, name := range o.Families {
		s.Headers |= descriptor.ParseHeaderFamily(name)
	}
	if o.Headers {
		s.Headers |= descriptor.HeadersReference
	}
	return s
}

// tree returns the options for compiling rules.
func (o *answerOptions) tree() descriptor.Options {
	return descriptor.Options{CalendarMonths: o.CalendarMonths}
}

// backendOptions are the settings of counters.
type backendOptions struct {
	Backend     string `name:"backend-type" env:"BACKEND_TYPE" placeholder:"memory|redis" help:"Where counters are. Unset: redis if REDIS_URL is set, else memory."`
	KeyPrefix   string `name:"cache-key-prefix" env:"CACHE_KEY_PREFIX" help:"Prefix of keys in Redis, equal in replicas that share counters."`
	CacheBytes  int    `name:"local-cache-size-in-bytes" env:"LOCAL_CACHE_SIZE_IN_BYTES" range:".." default:"0" help:"Size of the denial cache, at least 512 KiB (0: off)."`
	MaxCounters int    `name:"memory-max-counters" env:"RATELIMITD_MEMORY_MAX_COUNTERS" range:"1.." default:"2000000" help:"Maximum counters in memory. Beyond it, new customers share counters."`

	KeyFormat     string `name:"redis-key-format" env:"REDIS_KEY_FORMAT" oneof:"ratelimitd,lyft" placeholder:"ratelimitd|lyft" default:"ratelimitd" help:"lyft: envoyproxy/ratelimit's keys, so that both count together."`
	JitterSeconds *int64 `name:"expiration-jitter-max-seconds" env:"EXPIRATION_JITTER_MAX_SECONDS" clamp:"0..31536000" placeholder:"SECONDS" help:"Maximum random extra lifetime of a key, for lyft keys. Unset: 300."`

	Startup startupOptions `embed:""`
	Active  bool           `name:"redis-health-check-active-connection" env:"REDIS_HEALTH_CHECK_ACTIVE_CONNECTION" help:"Health is red while Redis does not answer within a second."`

	Redis redisOptions     `embed:"" prefix:"redis-" envprefix:"REDIS_"`
	Both  bothRedisOptions `embed:"" prefix:"redis-" envprefix:"REDIS_"`

	UsePerSecond bool         `name:"redis-persecond" env:"REDIS_PERSECOND" help:"Count limits per second in a second Redis."`
	PerSecond    redisOptions `embed:"" prefix:"redis-persecond-" envprefix:"REDIS_PERSECOND_"`
}

// overrideOptions are the settings of operators' overrides.
type overrideOptions struct {
	From string `name:"overrides" env:"RATELIMITD_OVERRIDES" placeholder:"redis|FILE" help:"Where overrides are: in Redis, or a YAML file."`
	Copy string `name:"overrides-copy" env:"RATELIMITD_OVERRIDES_COPY" placeholder:"FILE" help:"This replica's copy of those in Redis, for a start without it."`
}

// packageDefaults are the defaults of flags that a package states.
var packageDefaults = kong.Vars{
	"redis_pool_size": strconv.Itoa(redisconn.DefaultPoolSize),
	"redis_timeout":   redisconn.DefaultTimeout.String(),
}

// redisOptions are the settings of one Redis. Each flag has a variable REDIS_... and one REDIS_PERSECOND_....
type redisOptions struct {
	URL          string        `env:"URL" help:"host:port, a unix socket's path, redis://user:password@host:port/db, rediss:// (TLS), master,sentinel,... (SENTINEL) or node,node,... (CLUSTER)."`
	Type         string        `env:"TYPE" oneof:"SINGLE,SENTINEL,CLUSTER" default:"SINGLE" placeholder:"SINGLE|SENTINEL|CLUSTER" help:"Kind of Redis."`
	SocketType   string        `env:"SOCKET_TYPE" oneof:"tcp,tcp4,tcp6,unix" placeholder:"tcp|tcp4|tcp6|unix" help:"Unset: unix if the URL is a path, else tcp. Sentinels and clusters need TCP."`
	Auth         string        `env:"AUTH" help:"Password, or user:password."`
	AuthFile     string        `env:"AUTH_FILE" placeholder:"FILE" help:"Password, or user:password."`
	SentinelAuth string        `env:"SENTINEL_AUTH" help:"Password, or user:password, of the sentinels."`
	Sharded      bool          `env:"SHARDED" help:"Several servers are behind the address. Otherwise found out."`
	Pool         int           `name:"pool-size" env:"POOL_SIZE" nonpositive:"4" clamp:"1..100000" default:"${redis_pool_size}" help:"Maximum connections to each node."`
	OnEmpty      string        `name:"pool-on-empty-behavior" env:"POOL_ON_EMPTY_BEHAVIOR" oneof:"WAIT,CREATE,ERROR" otherwise:"WAIT" default:"WAIT" placeholder:"WAIT|CREATE|ERROR" help:"When all are in use, wait, open another, or fail."`
	Timeout      time.Duration `env:"TIMEOUT" nonpositive:"10s" clamp:"1ms.." default:"${redis_timeout}" help:"Longest time to connect, with TLS and login."`
	TLS          bool          `env:"TLS" help:"Encrypt connections to Redis."`
}

// bothRedisOptions are the settings that both Redis share: envoyproxy/ratelimit has one set of TLS files.
type bothRedisOptions struct {
	Op           time.Duration `name:"op-timeout" env:"OP_TIMEOUT" range:"0s.." placeholder:"DURATION" help:"Longest time for a call. Unset: the time to connect."`
	CACert       string        `name:"tls-cacert" env:"TLS_CACERT" placeholder:"FILE" help:"Trusted authorities. Unset: the system's."`
	ClientCert   string        `name:"tls-client-cert" env:"TLS_CLIENT_CERT" placeholder:"FILE" help:"Client certificate."`
	ClientKey    string        `name:"tls-client-key" env:"TLS_CLIENT_KEY" placeholder:"FILE" help:"Private key."`
	SkipHostname bool          `name:"tls-skip-hostname-verification" env:"TLS_SKIP_HOSTNAME_VERIFICATION" help:"Do not check the name in the certificate."`
}

// given reports whether any setting of a Redis other than its URL is set.
func (o *redisOptions) given() bool {
	return o.Type != "SINGLE" || o.SocketType != "" || o.Auth != "" || o.AuthFile != "" || o.SentinelAuth != "" || o.TLS
}

// answerWithin returns the longest time for an answer of one Redis.
func (o *backendOptions) answerWithin(one *redisOptions) time.Duration {
	if o.Both.Op > 0 {
		return o.Both.Op
	}
	return one.Timeout
}

// longestAnswer returns the longest time that a request waits for counters in Redis.
func (o *backendOptions) longestAnswer() time.Duration {
	if o.UsePerSecond {
		return max(o.answerWithin(&o.Redis), o.answerWithin(&o.PerSecond))
	}
	return o.answerWithin(&o.Redis)
}

// connection returns the options of the connection to one Redis. settings is the prefix of its variables, for errors.
func (o *backendOptions) connection(one *redisOptions, settings string, log *slog.Logger) redisconn.Options {
	return redisconn.Options{
		Settings:     settings,
		Type:         one.Type,
		URL:          one.URL,
		Network:      one.SocketType,
		Auth:         one.Auth,
		AuthFile:     one.AuthFile,
		SentinelAuth: one.SentinelAuth,
		TLS: redisconn.TLSOptions{
			Enabled: one.TLS, CACert: o.Both.CACert, ClientCert: o.Both.ClientCert, ClientKey: o.Both.ClientKey,
			SkipHostnameVerification: o.Both.SkipHostname,
		},
		PoolSize:    one.Pool,
		OnEmpty:     one.OnEmpty,
		DialTimeout: one.Timeout,
		Logger:      log,
	}
}

// jitter returns the extra lifetime of keys of envoyproxy/ratelimit's format.
func (o *backendOptions) jitter() time.Duration {
	if o.JitterSeconds == nil {
		return redis.DefaultLyftJitter
	}
	return time.Duration(*o.JitterSeconds) * time.Second
}

// keysLyft is the KeyFormat of envoyproxy/ratelimit's keys.
const keysLyft = "lyft"

var errMemcache = errors.New("BACKEND_TYPE=memcache: counting in memcached is not supported, because it cannot " +
	"decide atomically; use redis (set REDIS_URL) or memory")

// redis reports whether counts live in Redis.
func (o *backendOptions) redis() (bool, error) {
	switch strings.ToLower(o.Backend) {
	case "":
		return o.Redis.URL != "", nil
	case "memory":
		return false, nil
	case "redis":
		if o.Redis.URL == "" {
			return false,
				errors.New("BACKEND_TYPE=redis needs REDIS_URL: set it to host:port, or unset BACKEND_TYPE to count in memory")
		}
		return true, nil
	case "memcache":
		return false, errMemcache
	default:
		return false, fmt.Errorf("BACKEND_TYPE=%s: use memory or redis", o.Backend)
	}
}

// tlsOptions are the settings of TLS for gRPC.
type tlsOptions struct {
	Use       bool   `name:"grpc-server-use-tls" env:"GRPC_SERVER_USE_TLS" help:"Encrypt gRPC."`
	Cert      string `name:"grpc-server-tls-cert" env:"GRPC_SERVER_TLS_CERT" placeholder:"FILE" help:"Certificate."`
	Key       string `name:"grpc-server-tls-key" env:"GRPC_SERVER_TLS_KEY" placeholder:"FILE" help:"Private key."`
	ClientCA  string `name:"grpc-client-tls-cacert" env:"GRPC_CLIENT_TLS_CACERT" placeholder:"FILE" help:"Authorities for client certificates. Needs GRPC_SERVER_USE_TLS=true."`
	ClientSAN string `name:"grpc-client-tls-san" env:"GRPC_CLIENT_TLS_SAN" help:"DNS name, IP or URI that client certificates must contain."`
}

// tracingOptions are the settings of tracing.
type tracingOptions struct {
	Enabled    bool    `name:"tracing-enabled" env:"TRACING_ENABLED" help:"Trace calls with OpenTelemetry, to the destination in OTEL_EXPORTER_OTLP_ variables."`
	Protocol   string  `name:"tracing-exporter-protocol" env:"TRACING_EXPORTER_PROTOCOL" oneof:"http,grpc" placeholder:"http|grpc" default:"http" help:"Protocol of OTLP."`
	Service    string  `name:"tracing-service-name" env:"TRACING_SERVICE_NAME" help:"Service name. Unset: OTEL_SERVICE_NAME, else RateLimit."`
	Namespace  string  `name:"tracing-service-namespace" env:"TRACING_SERVICE_NAMESPACE" help:"Service namespace."`
	InstanceID string  `name:"tracing-service-instance-id" env:"TRACING_SERVICE_INSTANCE_ID" help:"Service instance. Unset: a random one."`
	Rate       float64 `name:"tracing-sampling-rate" env:"TRACING_SAMPLING_RATE" clamp:"0..1" default:"1" help:"Fraction of calls traced, unless the client sends a trace."`
}

// statisticsOptions are the settings of envoyproxy/ratelimit's statistics.
type statisticsOptions struct {
	Disabled bool `name:"disable-stats" env:"DISABLE_STATS" help:"Turn off StatsD, the second Prometheus port, and envoyproxy/ratelimit's names."`

	Prometheus       bool   `name:"use-prometheus" env:"USE_PROMETHEUS" help:"Serve metrics on PROMETHEUS_ADDR too."`
	PrometheusAddr   string `env:"PROMETHEUS_ADDR" default:":9090" placeholder:"HOST:PORT" help:"Second address for metrics."`
	PrometheusPath   string `env:"PROMETHEUS_PATH" form:"path" otherwise:"/metrics" default:"/metrics" help:"Path on that address."`
	PrometheusMapper string `name:"prometheus-mapper-yaml" env:"PROMETHEUS_MAPPER_YAML" placeholder:"FILE" help:"Mapping to Prometheus names, for statsd_exporter. Unset: envoyproxy/ratelimit's."`
	Milliseconds     bool   `name:"prometheus-response-time-as-milliseconds" env:"PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS" help:"ratelimit_service_response_time_seconds in milliseconds."`

	NoDots bool `name:"sanitize-descriptor-metric-dots" env:"SANITIZE_DESCRIPTOR_METRIC_DOTS" help:"Replace dots in domains, keys and values by underscores."`

	StatsD     bool          `name:"use-statsd" env:"USE_STATSD" help:"Send statistics to StatsD."`
	Host       string        `name:"statsd-host" env:"STATSD_HOST" default:"localhost" help:"Host of StatsD or DogStatsD."`
	Port       int           `name:"statsd-port" env:"STATSD_PORT" clamp:"0..65535" default:"8125" help:"Port of StatsD or DogStatsD."`
	Protocol   string        `name:"statsd-protocol" env:"STATSD_PROTOCOL" oneof:"tcp,udp" placeholder:"tcp|udp" default:"tcp" help:"Protocol of StatsD. DogStatsD always uses udp."`
	Interval   time.Duration `name:"stats-flush-interval" env:"STATS_FLUSH_INTERVAL" range:"1ns.." clamp:"1ms.." default:"10s" help:"How often to send."`
	Tags       string        `name:"extra-tags" env:"EXTRA_TAGS" placeholder:"KEY:VALUE,..." help:"Tags or Prometheus labels for every statistic."`
	DogStatsD  bool          `name:"use-dog-statsd" env:"USE_DOG_STATSD" help:"Send them to DogStatsD instead."`
	Mogrifiers []string      `name:"use-dog-statsd-mogrifiers" env:"USE_DOG_STATSD_MOGRIFIERS" placeholder:"NAME" help:"Rewrites, each set with DOG_STATSD_MOGRIFIER_<name>_PATTERN, _NAME and _TAGS."`
}

// logOptions are the settings of the log.
type logOptions struct {
	Level  string `name:"log-level" env:"LOG_LEVEL" default:"info" help:"debug, info, warn or error."`
	Format string `name:"log-format" env:"LOG_FORMAT" oneof:"text,json" otherwise:"text" default:"text" placeholder:"text|json" help:"Format of log lines."`
}

// logger returns the logger that writes to w, and its level, which can be changed.
func (o *logOptions) logger(w io.Writer) (*slog.Logger, *logging.Level, error) {
	level := new(logging.Level)
	if err := level.Set(o.Level); err != nil {
		return nil, nil, fmt.Errorf("LOG_LEVEL=%s: use debug, info, warn or error", o.Level)
	}
	log, err := logging.New(w, logging.Options{Format: o.Format, Level: level})
	if err != nil {
		return nil, nil, fmt.Errorf("LOG_FORMAT=%s: use text or json", o.Format)
	}
	return log, level, nil
}
