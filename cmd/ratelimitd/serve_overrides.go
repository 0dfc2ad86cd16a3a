package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/ratelimitd/ratelimitd/internal/assembly"
	"github.com/ratelimitd/ratelimitd/internal/assembly/service"
	"github.com/ratelimitd/ratelimitd/internal/backend/redisconn"
	"github.com/ratelimitd/ratelimitd/internal/config/override"
	"github.com/ratelimitd/ratelimitd/internal/platform/metric/prom"
)

const overridesInRedis = "redis" // a value of RATELIMITD_OVERRIDES

var errNoRedisForOverrides = errors.New("RATELIMITD_OVERRIDES=redis needs REDIS_URL: set it to host:port")

// overrides sets the source of overrides, if they are on.
func (s *starting) overrides(_ context.Context, opts *service.Options) (err error) {
	o, counting := &s.options.Overrides, &s.options.Backend
	opts.Overrides = service.Overrides{Name: o.From, Copy: o.Copy}
	if o.Copy != "" && o.From != overridesInRedis {
		s.log.Warn("RATELIMITD_OVERRIDES_COPY has no effect without RATELIMITD_OVERRIDES=redis")
	}
	switch {
	case o.From == "":
	case o.From != overridesInRedis:
		opts.Overrides.File, err = override.OpenFile(override.FileOptions{Path: o.From, Log: s.log,
			Metrics: prom.With(s.registry)})
		if err != nil {
			return fmt.Errorf("RATELIMITD_OVERRIDES=%s: %w\nwrite redis, or the path of a YAML file; `overrides: []` is a "+
				"file without overrides", o.From, err)
		}
	case counting.Redis.URL == "":
		return errNoRedisForOverrides
	default:
		redisconn.LogTo(s.log)
		opts.Overrides.Redis = &assembly.Redis{Connect: counting.connection(&counting.Redis, settingsOfRedis, s.log)}
	}
	return nil
}
