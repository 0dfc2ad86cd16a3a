package main

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/prometheus/client_golang/prometheus"
	goredis "github.com/redis/go-redis/v9"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/backend/redis"
	"github.com/ratelimitd/ratelimitd/internal/backend/redisconn"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
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

// redisStore is one Redis that holds counters.
type redisStore struct {
	settings string // prefix of its settings' names
	store    *redis.Store
	client   goredis.UniversalClient
	conns    *redisconn.Connections
	breakers *redisconn.OpenBreakers
	answered bool // before the service listened
}

// noAnswer is what /healthcheck answers while this Redis keeps health red.
func (c *redisStore) noAnswer() string { return "no answer from the Redis of " + c.settings + "_URL" }

// openRedis makes the store that counts in Redis. Limits per second have a store of their own if the options say so.
func (s *service) openRedis(registry prometheus.Registerer) (backend.Store, error) {
	o := &s.options.Backend
	if o.KeyFormat == keysLyft {
		s.log.Info("counters that envoyproxy/ratelimit has too get its keys, so that both services share counters; descriptors whose keys are equal there share a counter here too",
			"REDIS_KEY_FORMAT", o.KeyFormat)
	}
	if err := s.shareInvalidations(registry); err != nil {
		return nil, err
	}
	store, err := s.openOne(settingsOfRedis, &o.Redis, registry)
	if err != nil {
		return nil, err
	}
	if !o.UsePerSecond {
		return store, nil
	}
	perSecond, err := s.openOne(settingsOfPerSecond, &o.PerSecond, registry)
	if err != nil {
		return nil, err
	}
	return &redis.Pair{PerSecond: perSecond, Other: store, GaveBack: s.gaveBack}, nil
}

// gaveBack makes this replica, and others where needed, forget the denial of a counter.
func (s *service) gaveBack(t *backend.Take, o *backend.Outcome) {
	if s.cache != nil { // else the others have none either
		s.cache.GaveBack(t, o)
	}
}

// shareInvalidations makes the replicas that share a Redis learn of each other's resets and refunds. The messages about them go through the
// Redis of REDIS_URL, including for counters in the Redis of REDIS_PERSECOND_URL.
func (s *service) shareInvalidations(registry prometheus.Registerer) error {
	counting := &s.options.Backend
	connection := counting.connection(&counting.Redis, settingsOfRedis, slog.New(slog.DiscardHandler), nil) // the client that counts logs the same
	connection.PoolSize = 2                                                                                 // one reads all the time
	client, err := redisconn.Dial(connection)
	if err != nil {
		return err
	}
	s.shutdown = append(s.shutdown, client.Close)
	s.background = client
	s.invalidations = redis.NewInvalidations(redis.InvalidationsOptions{
		Client: client, Key: counting.KeyPrefix + redis.InvalidationsKey, Metrics: prom.With(registry), Logger: s.log,
		Forget: func(key []byte, cleared bool) {
			if s.cache != nil {
				s.cache.Forget(key)
			}
			if cleared {
				s.leases.Void(key)
				s.cleared()
			}
		},
		ForgetAll: func(cleared bool) {
			if s.cache != nil {
				s.cache.ForgetAll()
			}
			if cleared {
				s.leases.VoidAll()
				s.cleared()
			}
		},
	})
	s.workers = append(s.workers, s.invalidations.Run)
	return nil
}

// openOne makes the store of one Redis. settings is the prefix of its variables.
func (s *service) openOne(settings string, o *redisOptions, registry prometheus.Registerer) (*redis.Store, error) {
	counting := &s.options.Backend
	conns := new(redisconn.Connections)
	metrics := prom.With(prometheus.WrapRegistererWith(prometheus.Labels{"redis": strings.ToLower(settings)}, registry))
	breakers := new(redisconn.OpenBreakers)
	connection := counting.connection(o, settings, s.log, conns)
	connection.Breaker = &redisconn.BreakerOptions{Metrics: metrics, Logger: s.log, Opened: breakers}
	client, err := redisconn.Dial(connection)
	if err != nil {
		return nil, err
	}
	what := "counting in Redis"
	if settings == settingsOfPerSecond {
		what = "counting limits per second in another Redis"
	}
	// Replicas share counters only if these are equal.
	s.log.Info(what, "type", strings.ToLower(o.Type), "address", connection.Where(), "key_format", counting.KeyFormat, "key_prefix", counting.KeyPrefix)
	conns.Register(metrics)
	s.shutdown = append(s.shutdown, client.Close)
	store := redis.New(redis.Options{
		Client: client, Timeout: counting.answerWithin(o), Plain: counting.Plain, Settings: settings, Logger: s.log,
		KeyPrefix: counting.KeyPrefix, Sharded: o.Sharded, Connections: conns,
		LyftKeys: counting.KeyFormat == keysLyft, LyftJitter: counting.jitter(), Invalidations: s.invalidations, GaveBack: s.gaveBack,
	})
	s.shutdown = append(s.shutdown, store.Close)
	c := &redisStore{settings: settings, store: store, client: client, conns: conns, breakers: breakers}
	s.redis = append(s.redis, c)
	s.workers = append(s.workers, func(ctx context.Context) error { return s.awaitRedis(ctx, c) })
	return store, nil
}

// keyFormat returns the format of counters' keys. It matters in Redis only, where other services read them.
func (o *backendOptions) keyFormat(inRedis bool) descriptor.KeyFormat {
	if inRedis && o.KeyFormat == keysLyft {
		return descriptor.KeysLyft
	}
	return descriptor.KeysOwn
}

// pingRedis finds out before the service listens whether each Redis answers. Without RATELIMITD_REDIS_STARTUP_SERVE, health is red until all of them have answered: a rollout
// should stop if a new replica cannot reach its Redis, because of a wrong address for example. Meanwhile calls are answered by on_error.
func (s *service) pingRedis(ctx context.Context) {
	if s.options.Backend.Startup.Serve && !s.options.Backend.Active {
		return
	}
	pingCtx, cancel := context.WithTimeout(ctx, pingTimeout)
	defer cancel()
	var wg sync.WaitGroup
	for _, c := range s.redis {
		wg.Go(func() {
			c.answered = c.store.Ping(pingCtx) == nil
			s.server.SetMissing(c.noAnswer(), !c.answered)
		})
	}
	wg.Wait()
}

// awaitRedis pings a Redis until it answers, and ends the service if that takes longer than allowed. Then health follows it, if
// the options say so.
func (s *service) awaitRedis(ctx context.Context, c *redisStore) error {
	o := &s.options.Backend.Startup
	if !c.answered {
		waited := false
		_, err := backoff.Retry(ctx, func() (struct{}, error) {
			pingCtx, cancel := context.WithTimeout(ctx, pingTimeout)
			defer cancel()
			return struct{}{}, c.store.Ping(pingCtx)
		}, backoff.WithBackOff(o.backOff()), backoff.WithMaxElapsedTime(o.MaxElapsed), backoff.WithNotify(func(err error, next time.Duration) {
			waited = true
			if advice := redisconn.Advice(err, c.settings); advice != "" {
				s.log.Error("Redis cannot be used with these settings: on_error decides", "settings", c.settings, "advice", advice, "error", err, "asked_again_in", next.Round(time.Millisecond))
				return
			}
			s.log.Warn("Redis does not answer yet: on_error decides until it does", "settings", c.settings, "error", err, "asked_again_in", next.Round(time.Millisecond))
		}))
		switch {
		case err != nil && ctx.Err() != nil:
			return nil //nolint:nilerr // the service stops
		case err != nil:
			return fmt.Errorf("%s_URL: no answer within REDIS_STARTUP_MAX_ELAPSED_TIME=%s: %w", c.settings, o.MaxElapsed, err)
		case waited:
			s.log.Info("Redis answers", "settings", c.settings)
		}
		s.server.SetMissing(c.noAnswer(), false)
	}
	s.followRedis(ctx, c)
	return nil
}

// followRedis makes health red while a Redis refuses the calls of this user, and, if the options say so, while it does not answer. It
// ends with ctx.
func (s *service) followRedis(ctx context.Context, c *redisStore) {
	tick := time.NewTicker(pingEvery)
	defer tick.Stop()
	alive := true
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if !s.options.Backend.Active && alive && !c.store.Refused() {
			continue
		}
		pingCtx, cancel := context.WithTimeout(ctx, pingTimeout)
		err := c.store.Ping(pingCtx)
		cancel()
		if ctx.Err() != nil {
			return
		}
		if (err == nil) == alive || !s.options.Backend.Active && err != nil && !redisconn.Refuses(err) {
			continue
		}
		alive = err == nil
		s.server.SetMissing(c.noAnswer(), !alive)
		if alive {
			s.log.Info("Redis can be used again", "settings", c.settings)
		} else {
			s.log.Warn("Redis cannot be used: health is red", "settings", c.settings, "advice", redisconn.Advice(err, c.settings), "error", err)
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
