package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ratelimitd/ratelimitd/internal/backend/redis"
	"github.com/ratelimitd/ratelimitd/internal/backend/redisconn"
	"github.com/ratelimitd/ratelimitd/internal/config/override"
	"github.com/ratelimitd/ratelimitd/internal/config/override/redissource"
	"github.com/ratelimitd/ratelimitd/internal/operator"
	"github.com/ratelimitd/ratelimitd/internal/platform/metric/prom"
)

const (
	overridesInRedis = "redis" // a value of RATELIMITD_OVERRIDES

	// overridePool is the number of connections for overrides: one waits for changes.
	overridePool = 4
	// longestFirstRead is how long the first read of overrides may keep the service from answering. A million overrides take some
	// ten seconds, and a Redis that does not answer takes two.
	longestFirstRead = 30 * time.Second
)

var errNoRedisForOverrides = errors.New("RATELIMITD_OVERRIDES=redis needs REDIS_URL: set it to host:port")

// openOverrides makes the source of overrides, if they are on, and a worker that applies them.
func (s *service) openOverrides(registry prometheus.Registerer) error {
	o := &s.options.Overrides
	switch o.From {
	case "":
		if o.Copy != "" {
			s.log.Warn("RATELIMITD_OVERRIDES_COPY has no effect without RATELIMITD_OVERRIDES=redis")
		}
		return nil
	case overridesInRedis:
		return s.openOverridesInRedis(registry)
	default:
		if o.Copy != "" {
			s.log.Warn("RATELIMITD_OVERRIDES_COPY has no effect without RATELIMITD_OVERRIDES=redis")
		}
		source, err := override.OpenFile(override.FileOptions{Path: o.From, Log: s.log, Metrics: prom.With(registry)})
		if err != nil {
			return fmt.Errorf("RATELIMITD_OVERRIDES=%s: %w\nwrite redis, or the path of a YAML file; `overrides: []` is a file without overrides", o.From, err)
		}
		s.hasRead = s.putIntoForce(source)
		return nil
	}
}

// putIntoForce makes the limiter use the overrides of a source while the service runs. It returns a channel that is closed when
// the limiter uses them.
func (s *service) putIntoForce(source override.Source) <-chan struct{} {
	s.overrides = source
	inForce := make(chan struct{})
	done := sync.OnceFunc(func() { close(inForce) })
	s.workers = append(s.workers, func(ctx context.Context) error {
		return source.Run(ctx, func(set *override.Set) {
			s.limiter.SetOverrides(set)
			done()
		})
	})
	return inForce
}

func (s *service) openOverridesInRedis(registry prometheus.Registerer) error {
	o := &s.options.Backend
	if o.Redis.URL == "" {
		return errNoRedisForOverrides
	}
	connections := new(redisconn.Connections)
	if len(s.redis) > 0 {
		connections = s.redis[0].conns
	} else {
		redisconn.LogTo(s.log)
	}
	opts := o.connection(&o.Redis, settingsOfRedis, s.log, connections)
	opts.PoolSize, opts.OnEmpty = overridePool, ""
	client, err := redisconn.Dial(opts)
	if err != nil {
		return err
	}
	s.shutdown = append(s.shutdown, client.Close)
	source := redissource.New(redissource.Options{
		Client: client, Prefix: o.KeyPrefix, Copy: s.options.Overrides.Copy, Log: s.log, Metrics: prom.With(registry),
		Usable: func(ctx context.Context) (bool, error) { return redis.OneKeyspace(ctx, client, o.KeyPrefix) },
	})
	s.putIntoForce(source)
	s.workers = append(s.workers, (&override.Sweeper{Source: source, InForce: s.limiter.Overrides, Log: s.log}).Run)
	s.hasRead = source.Tried() // also closed if there is no answer
	return nil
}

// operatorsOverrides are the overrides that operators see and change.
func (s *service) operatorsOverrides() operator.Overrides {
	o := operator.Overrides{Source: s.overrides, Name: s.options.Overrides.From, InForce: s.limiter.Overrides, Peek: s.limiter.PeekWith}
	if source, ok := s.overrides.(interface{ Up() bool }); ok {
		o.Up = source.Up
	}
	return o
}

// awaitOverrides waits for the first attempt to read the overrides, so that no decision is made without them if Redis answers.
func (s *service) awaitOverrides(ctx context.Context) {
	if s.hasRead == nil {
		return
	}
	select {
	case <-s.hasRead:
	case <-ctx.Done():
	case <-time.After(longestFirstRead):
		s.log.Warn("calls are answered before the overrides have been read", "waited", longestFirstRead)
	}
}
