package main

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/ratelimitd/ratelimitd/internal/assembly"
	"github.com/ratelimitd/ratelimitd/internal/backend/redisconn"
	"github.com/ratelimitd/ratelimitd/internal/platform/metric/prom"
)

const (
	pingEvery = time.Second // if health follows Redis, or after Redis has refused a call
	// pingTimeout bounds each ping. Making a connection may take longer: it continues in the background, and a later ping uses it.
	pingTimeout = time.Second
)

// The prefixes of the settings of the two Redis.
const (
	settingsOfRedis     = "REDIS"
	settingsOfPerSecond = "REDIS_PERSECOND"
)

// minCacheBytes is the size of envoyproxy/ratelimit's cache if the setting is smaller or negative.
const minCacheBytes = 512 << 10

// openCounters makes the counters.
func (s *service) openCounters(registry prometheus.Registerer) error {
	o := &s.options.Backend
	inRedis, err := o.redis()
	if err != nil {
		return err
	}
	if o.JitterSeconds != nil && (!inRedis || o.KeyFormat != keysLyft) {
		s.log.Info("accepted without effect", "variables", "EXPIRATION_JITTER_MAX_SECONDS", "because", "only counters in Redis with REDIS_KEY_FORMAT=lyft outlive their window")
	}
	opts := assembly.Options{
		MaxCounters: o.MaxCounters, KeyPrefix: o.KeyPrefix, LyftKeys: o.KeyFormat == keysLyft, LyftJitter: o.jitter(), Plain: o.Plain,
		Replicas: s.options.Answers.Replicas, Metrics: prom.With(registry), Logger: s.log,
	}
	if o.CacheBytes != 0 {
		opts.DenialBytes = max(o.CacheBytes, minCacheBytes)
	}
	if inRedis {
		redisconn.LogTo(s.log)
		opts.Redis = s.redisOf(settingsOfRedis, &o.Redis, registry)
	}
	if inRedis && o.UsePerSecond {
		opts.PerSecond = s.redisOf(settingsOfPerSecond, &o.PerSecond, registry)
	}
	if opts.Regions, err = s.regionLayer(inRedis, registry); err != nil {
		return err
	}
	if s.counters, err = assembly.Open(&s.tasks, opts); err != nil {
		return err
	}
	s.logCounters(&opts)
	return nil
}

// logCounters logs where counters are. Replicas share counters only if what it logs of Redis is equal.
func (s *service) logCounters(opts *assembly.Options) {
	o := &s.options.Backend
	if opts.Redis == nil {
		s.log.Info("counting in this replica's memory", "max_counters", o.MaxCounters)
		if o.Backend == "" && o.Redis.given() {
			s.log.Warn("REDIS_ settings have no effect, because REDIS_URL is not set: this service has no default socket for Redis")
		}
		return
	}
	if opts.LyftKeys {
		s.log.Info("counters that envoyproxy/ratelimit has too get its keys, so that both services share counters; descriptors whose keys are equal there share a counter here too",
			"REDIS_KEY_FORMAT", o.KeyFormat)
	}
	counting := func(what string, r *assembly.Redis) {
		s.log.Info(what, "type", strings.ToLower(r.Connect.Type), "address", r.Connect.Where(), "key_format", o.KeyFormat, "key_prefix", o.KeyPrefix)
	}
	counting("counting in Redis", opts.Redis)
	if opts.PerSecond != nil {
		counting("counting limits per second in another Redis", opts.PerSecond)
	}
}

// redisOf says how to reach one Redis. settings is the prefix of its variables.
func (s *service) redisOf(settings string, o *redisOptions, registry prometheus.Registerer) *assembly.Redis {
	all := &s.options.Backend
	return &assembly.Redis{
		Connect: all.connection(o, settings, s.log), Timeout: all.answerWithin(o), Sharded: o.Sharded,
		Metrics: prom.With(prometheus.WrapRegistererWith(prometheus.Labels{"redis": strings.ToLower(settings)}, registry)),
	}
}

// noAnswer is what /healthcheck answers while a Redis keeps health red.
func noAnswer(c *assembly.Connected) string {
	return "no answer from the Redis of " + c.Settings + "_URL"
}

// pingRedis finds out before the service listens whether each Redis answers. Without RATELIMITD_REDIS_STARTUP_SERVE, health is red until all of them have answered: a rollout
// should stop if a new replica cannot reach its Redis, because of a wrong address for example. Meanwhile calls are answered by on_error.
func (s *service) pingRedis(ctx context.Context) {
	ask := !s.options.Backend.Startup.Serve || s.options.Backend.Active
	answered := make([]bool, len(s.counters.Redis))
	pingCtx, cancel := context.WithTimeout(ctx, pingTimeout)
	defer cancel()
	var wg sync.WaitGroup
	for i, c := range s.counters.Redis {
		if ask {
			wg.Go(func() {
				answered[i] = c.Ping(pingCtx) == nil
				s.server.SetMissing(noAnswer(c), !answered[i])
			})
		}
		s.tasks.Add(func(ctx context.Context) error { return s.awaitRedis(ctx, c, answered[i]) })
	}
	wg.Wait()
}

// awaitRedis pings a Redis until it answers, and ends the service if that takes longer than allowed. Then health follows it, if
// the options say so.
func (s *service) awaitRedis(ctx context.Context, c *assembly.Connected, answered bool) error {
	o := &s.options.Backend.Startup
	if !answered {
		waited := false
		_, err := backoff.Retry(ctx, func() (struct{}, error) {
			pingCtx, cancel := context.WithTimeout(ctx, pingTimeout)
			defer cancel()
			return struct{}{}, c.Ping(pingCtx)
		}, backoff.WithBackOff(o.backOff()), backoff.WithMaxElapsedTime(o.MaxElapsed), backoff.WithNotify(func(err error, next time.Duration) {
			waited = true
			if advice := redisconn.Advice(err, c.Settings); advice != "" {
				s.log.Error("Redis cannot be used with these settings: on_error decides", "settings", c.Settings, "advice", advice, "error", err, "asked_again_in", next.Round(time.Millisecond))
				return
			}
			s.log.Warn("Redis does not answer yet: on_error decides until it does", "settings", c.Settings, "error", err, "asked_again_in", next.Round(time.Millisecond))
		}))
		switch {
		case err != nil && ctx.Err() != nil:
			return nil //nolint:nilerr // the service stops
		case err != nil:
			return fmt.Errorf("%s_URL: no answer within REDIS_STARTUP_MAX_ELAPSED_TIME=%s: %w", c.Settings, o.MaxElapsed, err)
		case waited:
			s.log.Info("Redis answers", "settings", c.Settings)
		}
		s.server.SetMissing(noAnswer(c), false)
	}
	s.followRedis(ctx, c)
	return nil
}

// followRedis makes health red while a Redis refuses the calls of this user, and, if the options say so, while it does not answer. It
// ends with ctx.
func (s *service) followRedis(ctx context.Context, c *assembly.Connected) {
	tick := time.NewTicker(pingEvery)
	defer tick.Stop()
	alive := true
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if !s.options.Backend.Active && alive && !c.Refused() {
			continue
		}
		pingCtx, cancel := context.WithTimeout(ctx, pingTimeout)
		err := c.Ping(pingCtx)
		cancel()
		if ctx.Err() != nil {
			return
		}
		if (err == nil) == alive || !s.options.Backend.Active && err != nil && !redisconn.Refuses(err) {
			continue
		}
		alive = err == nil
		s.server.SetMissing(noAnswer(c), !alive)
		if alive {
			s.log.Info("Redis can be used again", "settings", c.Settings)
		} else {
			s.log.Warn("Redis cannot be used: health is red", "settings", c.Settings, "advice", redisconn.Advice(err, c.Settings), "error", err)
		}
	}
}

// startupOptions say what the service does until Redis has answered.
type startupOptions struct {
	Serve      bool          `name:"redis-startup-serve" env:"RATELIMITD_REDIS_STARTUP_SERVE" help:"Health is green from the start. Unset: it is red until Redis has answered once, and on_error decides meanwhile."`
	Initial    time.Duration `name:"redis-startup-initial-interval" env:"REDIS_STARTUP_INITIAL_INTERVAL" nonpositive:"100ms" clamp:"1ms.." default:"1s" help:"Wait before the second ping until Redis answers; each later wait is 1.5 times as long."`
	Max        time.Duration `name:"redis-startup-max-interval" env:"REDIS_STARTUP_MAX_INTERVAL" nonpositive:"10s" clamp:"1ms.." default:"30s" help:"Longest of these waits."`
	MaxElapsed time.Duration `name:"redis-startup-max-elapsed-time" env:"REDIS_STARTUP_MAX_ELAPSED_TIME" clamp:"0s.." default:"0s" help:"Exit if Redis has not answered after this time; 0: never."`
}

func (o *startupOptions) backOff() backoff.BackOff {
	b := backoff.NewExponentialBackOff()
	b.InitialInterval, b.MaxInterval = min(o.Initial, o.Max), o.Max
	return b
}
