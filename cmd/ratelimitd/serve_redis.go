package main

import (
	"context"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ratelimitd/ratelimitd/internal/assembly"
	"github.com/ratelimitd/ratelimitd/internal/assembly/service"
	"github.com/ratelimitd/ratelimitd/internal/backend/redisconn"
	"github.com/ratelimitd/ratelimitd/internal/platform/metric/prom"
)

// The prefixes of the settings of the two Redis.
const (
	settingsOfRedis     = "REDIS"
	settingsOfPerSecond = "REDIS_PERSECOND"
)

// minCacheBytes is the size of envoyproxy/ratelimit's cache if the setting is smaller or negative.
const minCacheBytes = 512 << 10

// counters sets the store of counters.
func (s *starting) counters(_ context.Context, opts *service.Options) error {
	o := &s.options.Backend
	inRedis, err := o.redis()
	if err != nil {
		return err
	}
	if o.JitterSeconds != nil && (!inRedis || o.KeyFormat != keysLyft) {
		s.log.Info("accepted without effect", "variables", "EXPIRATION_JITTER_MAX_SECONDS", "because",
			"only counters in Redis with REDIS_KEY_FORMAT=lyft outlive their window")
	}
	opts.Counters = assembly.Options{
		MaxCounters: o.MaxCounters, KeyPrefix: o.KeyPrefix, LyftKeys: o.KeyFormat == keysLyft, LyftJitter: o.jitter(),
	}
	if o.CacheBytes != 0 {
		opts.Counters.DenialBytes = max(o.CacheBytes, minCacheBytes)
	}
	if inRedis {
		redisconn.LogTo(s.log)
		opts.Counters.Redis = s.redis(settingsOfRedis, &o.Redis)
	}
	if inRedis && o.UsePerSecond {
		opts.Counters.PerSecond = s.redis(settingsOfPerSecond, &o.PerSecond)
	}
	opts.Redis = service.RedisHealth{
		Serve: o.Startup.Serve, Active: o.Active, Initial: o.Startup.Initial, Max: o.Startup.Max,
		MaxElapsed: o.Startup.MaxElapsed,
	}
	s.logCounters(&opts.Counters)
	return nil
}

// logCounters logs where counters are. Replicas share counters only if they log the same address, key format and
// prefix.
func (s *starting) logCounters(opts *assembly.Options) {
	o := &s.options.Backend
	if opts.Redis == nil {
		s.log.Info("counting in this replica's memory", "max_counters", o.MaxCounters)
		if o.Backend == "" && o.Redis.given() {
			s.log.Warn("REDIS_ settings have no effect, because REDIS_URL is not set: this service has no default " +
				"socket for Redis")
		}
		return
	}
	if opts.LyftKeys {
		s.log.Info("counters that envoyproxy/ratelimit has too get its keys, so that both services share counters; "+
			"descriptors whose keys are equal there share a counter here too",
			"REDIS_KEY_FORMAT", o.KeyFormat)
	}
	counting := func(what string, r *assembly.Redis) {
		s.log.Info(what, "type", strings.ToLower(r.Connect.Type), "address", r.Connect.Where(), "key_format", o.KeyFormat,
			"key_prefix", o.KeyPrefix)
	}
	counting("counting in Redis", opts.Redis)
	if opts.PerSecond != nil {
		counting("counting limits per second in another Redis", opts.PerSecond)
	}
}

// redis returns the options for one Redis. settings is the prefix of its variables.
func (s *starting) redis(settings string, o *redisOptions) *assembly.Redis {
	all := &s.options.Backend
	return &assembly.Redis{
		Connect: all.connection(o, settings, s.log), Timeout: all.answerWithin(o), Sharded: o.Sharded,
		Metrics: prom.With(prometheus.WrapRegistererWith(prometheus.Labels{"redis": strings.ToLower(settings)}, s.registry)),
	}
}

// startupOptions define how the service behaves until Redis has answered.
type startupOptions struct {
	Serve      bool          `name:"redis-startup-serve" env:"RATELIMITD_REDIS_STARTUP_SERVE" help:"Start with green health, even without Redis."`
	Initial    time.Duration `name:"redis-startup-initial-interval" env:"REDIS_STARTUP_INITIAL_INTERVAL" nonpositive:"100ms" clamp:"1ms.." default:"1s" help:"Wait before Redis is pinged again. Each later wait is 1.5 times as long."`
	Max        time.Duration `name:"redis-startup-max-interval" env:"REDIS_STARTUP_MAX_INTERVAL" nonpositive:"10s" clamp:"1ms.." default:"30s" help:"Longest wait."`
	MaxElapsed time.Duration `name:"redis-startup-max-elapsed-time" env:"REDIS_STARTUP_MAX_ELAPSED_TIME" clamp:"0s.." default:"0s" help:"Exit if Redis does not answer for this time (0: never)."`
}
