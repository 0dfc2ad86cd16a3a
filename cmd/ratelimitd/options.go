package main

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
)

// ruleOptions say where rules come from.
type ruleOptions struct {
	Rules  string        `help:"Folder of rule files. Beats the RUNTIME_ variables." placeholder:"DIR"`
	Merge  bool          `name:"merge-domain-config" env:"MERGE_DOMAIN_CONFIG" help:"Files of one domain are merged instead of the second being refused."`
	Rescan time.Duration `name:"rules-rescan" env:"RATELIMITD_RULES_RESCAN" default:"10s" help:"How often the folder is read even if no change was reported."`
	Force  bool          `name:"force-start-without-initial-config" env:"FORCE_START_WITHOUT_INITIAL_CONFIG" help:"Start also when no rule file can be used."`

	RuntimeRoot   string `env:"RUNTIME_ROOT" help:"With the next two: the folder of rule files is ROOT/SUBDIRECTORY/APPDIRECTORY. Unset: config/domains."`
	RuntimeSubdir string `name:"runtime-subdirectory" env:"RUNTIME_SUBDIRECTORY" help:"See --runtime-root."`
	RuntimeAppdir string `name:"runtime-appdirectory" env:"RUNTIME_APPDIRECTORY" default:"config" help:"See --runtime-root."`
	IgnoreDot     bool   `name:"runtime-ignoredotfiles" env:"RUNTIME_IGNOREDOTFILES" help:"Accepted. Files whose name begins with a dot are never rule files."`
	WatchRoot     bool   `name:"runtime-watch-root" env:"RUNTIME_WATCH_ROOT" default:"true" negatable:"" help:"Accepted. Changes are found however they are made."`
}

// dir is the folder of rule files.
func (o *ruleOptions) dir() string {
	switch {
	case o.Rules != "":
		return o.Rules
	case o.RuntimeRoot != "":
		return filepath.Join(o.RuntimeRoot, o.RuntimeSubdir, o.RuntimeAppdir)
	default:
		return filepath.Join("config", "domains")
	}
}

// listenOptions say where the service listens.
type listenOptions struct {
	GRPCHost  string `name:"grpc-host" env:"GRPC_HOST" default:"0.0.0.0" help:"Address that gRPC listens on."`
	GRPCPort  int    `name:"grpc-port" env:"GRPC_PORT" default:"8081" help:"Port of gRPC; 0 takes a free one."`
	Host      string `env:"HOST" default:"0.0.0.0" help:"Address that HTTP (/json, /healthcheck, /metrics) listens on."`
	Port      int    `env:"PORT" default:"8080" help:"Port of HTTP; 0 takes a free one."`
	DebugHost string `env:"DEBUG_HOST" default:"127.0.0.1" help:"Address that the debug port listens on."`
	DebugPort int    `env:"DEBUG_PORT" default:"6070" help:"Port of /rlconfig, /stats and /debug/pprof; 0 takes a free one."`

	MaxConnectionAge      time.Duration `name:"grpc-max-connection-age" env:"GRPC_MAX_CONNECTION_AGE" default:"24h" help:"After which a gRPC connection is asked to reconnect."`
	MaxConnectionAgeGrace time.Duration `name:"grpc-max-connection-age-grace" env:"GRPC_MAX_CONNECTION_AGE_GRACE" default:"1h" help:"After which it is closed."`
	MaxMessageBytes       int           `env:"RATELIMITD_MAX_MESSAGE_BYTES" default:"4194304" help:"Largest request, in bytes."`
	MaxDescriptors        int           `env:"RATELIMITD_MAX_DESCRIPTORS" default:"256" help:"Most descriptors in a request."`
	DrainDelay            time.Duration `env:"RATELIMITD_DRAIN_DELAY" default:"0s" help:"How long to go on serving after health has turned red, before stopping."`
	StopTimeout           time.Duration `env:"RATELIMITD_STOP_TIMEOUT" default:"10s" help:"How long calls in flight may take to finish when stopping."`
}

func address(host string, port int) string { return net.JoinHostPort(host, strconv.Itoa(port)) }

// answerOptions say what is decided and answered.
type answerOptions struct {
	Shadow bool `name:"shadow-mode" env:"SHADOW_MODE" help:"Judge and measure every rule, enforce none."`
	Quota  bool `name:"quota-mode" env:"QUOTA_MODE" help:"Every rule is in quota mode."`
	Stop   bool `name:"stop-cache-key-increment-when-overlimit" env:"STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT" help:"A refused request counts only in the limits that refuse it."`

	Headers         bool   `name:"limit-response-headers-enabled" env:"LIMIT_RESPONSE_HEADERS_ENABLED" help:"Tell clients their limit in headers."`
	LimitHeader     string `env:"LIMIT_LIMIT_HEADER" default:"RateLimit-Limit" help:"Header with the requests per unit."`
	RemainingHeader string `env:"LIMIT_REMAINING_HEADER" default:"RateLimit-Remaining" help:"Header with the requests left."`
	ResetHeader     string `env:"LIMIT_RESET_HEADER" default:"RateLimit-Reset" help:"Header with the seconds until the limit resets."`

	Metadata  bool    `name:"response-dynamic-metadata" env:"RESPONSE_DYNAMIC_METADATA" help:"Answers carry dynamic metadata."`
	NearRatio float32 `name:"near-limit-ratio" env:"NEAR_LIMIT_RATIO" default:"0.8" help:"Share of a limit above which hits count as near it."`
	MaxSeries int     `name:"max-metric-series" env:"RATELIMITD_MAX_METRIC_SERIES" default:"10000" help:"Names that metrics by rule are kept under; the rest share one."`
}

func (o *answerOptions) settings() limiter.Settings {
	s := limiter.Settings{Shadow: o.Shadow, Quota: o.Quota, StopWhenOver: o.Stop, Metadata: o.Metadata, NearLimitRatio: o.NearRatio}
	if o.Headers {
		s.Headers = descriptor.HeadersReference
		s.HeaderNames = limiter.HeaderNames{Limit: o.LimitHeader, Remaining: o.RemainingHeader, Reset: o.ResetHeader}
	}
	return s
}

// backendOptions say where counts live.
type backendOptions struct {
	Backend     string `name:"backend-type" env:"BACKEND_TYPE" placeholder:"memory|redis" help:"Where counts live. Unset: Redis if REDIS_URL is set, else this process' memory."`
	KeyPrefix   string `name:"cache-key-prefix" env:"CACHE_KEY_PREFIX" help:"Put before every counter's key."`
	CacheBytes  int    `name:"local-cache-size-in-bytes" env:"LOCAL_CACHE_SIZE_IN_BYTES" default:"0" help:"What the over-limit cache may take; 0 turns it off."`
	MaxCounters int    `name:"memory-max-counters" env:"RATELIMITD_MEMORY_MAX_COUNTERS" default:"2000000" help:"Most counters that the memory backend holds; a live one is never evicted."`

	RedisURL        string        `name:"redis-url" env:"REDIS_URL" help:"host:port, the path of a unix socket, or redis://user:password@host:port/db."`
	RedisSocketType string        `name:"redis-socket-type" env:"REDIS_SOCKET_TYPE" placeholder:"tcp|unix" help:"Unset: unix if REDIS_URL is a path, else tcp."`
	RedisAuth       string        `name:"redis-auth" env:"REDIS_AUTH" help:"password, or user:password."`
	RedisPoolSize   int           `name:"redis-pool-size" env:"REDIS_POOL_SIZE" default:"10" help:"Connections to Redis."`
	RedisDial       time.Duration `name:"redis-timeout" env:"REDIS_TIMEOUT" default:"10s" help:"Longest time to connect to Redis."`
	RedisOp         time.Duration `name:"redis-op-timeout" env:"REDIS_OP_TIMEOUT" default:"15ms" help:"Longest time that Redis may take to answer; the caller's deadline if that is nearer."`
}

var errMemcache = errors.New("BACKEND_TYPE=memcache: counting in memcached is not supported, because it cannot decide atomically; use redis (set REDIS_URL) or memory")

// redis says whether counts live in Redis.
func (o *backendOptions) redis() (bool, error) {
	switch strings.ToLower(o.Backend) {
	case "":
		return o.RedisURL != "", nil
	case "memory":
		return false, nil
	case "redis":
		if o.RedisURL == "" {
			return false, errors.New("BACKEND_TYPE=redis needs REDIS_URL: set it to host:port, or unset BACKEND_TYPE to count in memory")
		}
		return true, nil
	case "memcache":
		return false, errMemcache
	default:
		return false, fmt.Errorf("BACKEND_TYPE=%s: use memory or redis", o.Backend)
	}
}

// logOptions say what is logged.
type logOptions struct {
	Level  string `name:"log-level" env:"LOG_LEVEL" default:"info" help:"debug, info, warn or error."`
	Format string `name:"log-format" env:"LOG_FORMAT" default:"text" help:"text or json."`
}

// logger writes to w. The names of levels are the ones that operators of the reference use.
func (o *logOptions) logger(w io.Writer) (*slog.Logger, error) {
	var level slog.Level
	switch strings.ToLower(o.Level) {
	case "trace", "debug":
		level = slog.LevelDebug
	case "info":
		level = slog.LevelInfo
	case "warn", "warning":
		level = slog.LevelWarn
	case "error", "fatal", "panic":
		level = slog.LevelError
	default:
		return nil, fmt.Errorf("LOG_LEVEL=%s: use debug, info, warn or error", o.Level)
	}
	opts := &slog.HandlerOptions{Level: level}
	switch strings.ToLower(o.Format) {
	case "text":
		return slog.New(slog.NewTextHandler(w, opts)), nil
	case "json":
		return slog.New(slog.NewJSONHandler(w, opts)), nil
	default:
		return nil, fmt.Errorf("LOG_FORMAT=%s: use text or json", o.Format)
	}
}
