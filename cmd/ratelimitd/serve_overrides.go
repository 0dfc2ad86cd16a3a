package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ratelimitd/ratelimitd/internal/assembly"
	"github.com/ratelimitd/ratelimitd/internal/backend/redisconn"
	"github.com/ratelimitd/ratelimitd/internal/config/override"
	"github.com/ratelimitd/ratelimitd/internal/config/override/redissource"
	"github.com/ratelimitd/ratelimitd/internal/operator"
	"github.com/ratelimitd/ratelimitd/internal/platform/metric/prom"
)

const (
	overridesInRedis = "redis" // a value of RATELIMITD_OVERRIDES
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
		s.overrides = assembly.Follow(&s.tasks, s.limiter, source)
		return nil
	}
}

func (s *service) openOverridesInRedis(registry prometheus.Registerer) error {
	o := &s.options.Backend
	if o.Redis.URL == "" {
		return errNoRedisForOverrides
	}
	connections := new(redisconn.Connections)
	if len(s.counters.Redis) > 0 {
		connections = s.counters.Redis[0].Connections
	} else {
		redisconn.LogTo(s.log)
	}
	at := assembly.Redis{Connect: o.connection(&o.Redis, settingsOfRedis, s.log)}
	source, err := at.Overrides(&s.tasks, connections, redissource.Options{
		Prefix: o.KeyPrefix, Copy: s.options.Overrides.Copy, Log: s.log, Metrics: prom.With(registry),
	})
	if err != nil {
		return err
	}
	s.overrides = assembly.Follow(&s.tasks, s.limiter, source)
	s.tasks.Add((&override.Sweeper{Source: source, InForce: s.limiter.Overrides, Log: s.log}).Run)
	return nil
}

// operatorsOverrides are the overrides that operators see and change.
func (s *service) operatorsOverrides() operator.Overrides {
	o := operator.Overrides{Name: s.options.Overrides.From, InForce: s.limiter.Overrides, Peek: s.limiter.PeekWith}
	if s.overrides == nil {
		return o
	}
	o.Source = s.overrides.Source
	if source, ok := o.Source.(interface{ Up() bool }); ok {
		o.Up = source.Up
	}
	return o
}
