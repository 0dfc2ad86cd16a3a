package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend/redis"
	"github.com/ratelimitd/ratelimitd/internal/config/override"
	"github.com/ratelimitd/ratelimitd/internal/config/override/redissource"
)

const (
	overridePool = 4 // connections for overrides: one waits for changes

	// longestFirstRead is how long Open may wait for overrides in Redis.
	longestFirstRead = 2 * time.Second
)

// openOverrides returns the work that follows overrides, and for overrides in Redis a channel that is closed after the first attempt
// to read them; nil: there are none. Operators remove overrides that have ended, not this process.
func (l *Limiter) openOverrides(o *Options) (follow func(context.Context) error, hasRead <-chan struct{}, err error) {
	var source override.Source
	switch {
	case o.OverridesInRedis && o.OverridesFile != "":
		return nil, nil, errors.New("Options.OverridesInRedis and Options.OverridesFile are both set: overrides have one source")
	case o.OverridesInRedis:
		if o.Redis == nil {
			return nil, nil, errors.New("Options.OverridesInRedis needs Options.Redis")
		}
		client, err := l.dial(o.Redis, o.Logger, overridePool, nil, nil)
		if err != nil {
			return nil, nil, err
		}
		r := redissource.New(redissource.Options{
			Client: client, Prefix: o.KeyPrefix, Log: o.Logger,
			Usable: func(ctx context.Context) (bool, error) { return redis.OneKeyspace(ctx, client, o.KeyPrefix) },
		})
		source, hasRead = r, r.Tried()
	case o.OverridesFile != "":
		if source, err = override.OpenFile(override.FileOptions{Path: o.OverridesFile, Log: o.Logger}); err != nil {
			return nil, nil, fmt.Errorf("read overrides from %s: %w", o.OverridesFile, err)
		}
	default:
		return nil, nil, nil
	}
	return func(ctx context.Context) error { return source.Run(ctx, l.engine.SetOverrides) }, hasRead, nil
}

// awaitOverrides waits until the overrides in Redis have been read, so that no decision is made without them if Redis answers.
func awaitOverrides(ctx context.Context, hasRead <-chan struct{}, log *slog.Logger) {
	if hasRead == nil {
		return
	}
	select {
	case <-hasRead:
	case <-ctx.Done():
	case <-time.After(longestFirstRead):
		log.Warn("decisions are made before the overrides have been read", "waited", longestFirstRead)
	}
}
