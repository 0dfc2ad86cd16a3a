package redis

import (
	"context"
	"errors"
	"fmt"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// Reset implements backend.Resetter. Whatever stands under a counter's key goes, also what is no state of ours. Counters
// may be in different slots of a cluster, so each is deleted by a command of its own; they share a round trip.
func (s *Store) Reset(ctx context.Context, counters []backend.Counter) error {
	if len(counters) == 0 {
		return nil
	}
	bounded, cancel := s.bound(ctx)
	defer cancel()
	pipe := s.opts.Client.Pipeline()
	deleted := make([]*goredis.IntCmd, len(counters))
	for i := range counters {
		deleted[i] = pipe.Del(bounded, string(s.keyNow(&counters[i])))
	}
	_, _ = pipe.Exec(bounded) // each command has its own error
	var errs error
	for _, d := range deleted {
		if err := d.Err(); err != nil {
			errs = errors.Join(errs, s.failure(ctx, err))
		}
	}
	if errs != nil {
		return fmt.Errorf("clear counters in Redis: %w", errs)
	}
	return nil
}

// keyNow is the key in Redis that a counter has now: one of envoyproxy/ratelimit's has the start of its window in it, by Redis'
// clock as it was last seen.
func (s *Store) keyNow(c *backend.Counter) []byte {
	if s.opts.LyftKeys {
		if stem, ok := descriptor.CutLyftKey(c.Key); ok {
			start, _ := c.Limit.Window.Bounds(time.Now().UnixMicro() + s.ahead.Load())
			return descriptor.AppendLyftKey(nil, stem, start)
		}
	}
	return c.Key
}

// Reset implements backend.Resetter, in both where there are counters in both.
func (p *Pair) Reset(ctx context.Context, counters []backend.Counter) error {
	var perSecond, other []backend.Counter
	for _, c := range counters {
		if p.place(c.Limit) == p.PerSecond {
			perSecond = append(perSecond, c)
		} else {
			other = append(other, c)
		}
	}
	return errors.Join(p.PerSecond.Reset(ctx, perSecond), p.Other.Reset(ctx, other))
}
