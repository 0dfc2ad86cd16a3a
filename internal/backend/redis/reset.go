package redis

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/backend/scripts"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// Reset clears counters. It deletes every value under a counter's key, also a foreign one. Counters may be in different
// slots of a cluster, so each is deleted by its own command, with the records of its reservations; the commands share a
// round trip.
func (s *Store) Reset(ctx context.Context, counters []backend.Counter) error {
	if len(counters) == 0 {
		return nil
	}
	bounded, cancel := s.bound(ctx)
	defer cancel()
	now, err := s.resetAt(bounded, counters)
	if err != nil {
		return fmt.Errorf("clear counters in Redis: %w", s.failure(ctx, err))
	}
	pipe := s.opts.Client.Pipeline()
	var deleted []*goredis.Cmd
	for i := range counters {
		for _, key := range s.keysOf(&counters[i], now) {
			home := key
			if l := counters[i].Limit; l != nil && l.Algorithm == descriptor.Penalties {
				counter, _ := descriptor.CutPenaltyKey(counters[i].Key)
				home = string(counter)
			}
			keys := []string{home, key}
			if l := counters[i].Limit; l != nil && l.Reservable() {
				for _, kind := range [...]string{reservationsKey, byIDKey, endsKey} {
					keys = append(keys, string(appendRecordKey(nil, []byte(key), kind)))
				}
			}
			deleted = append(deleted, pipe.Eval(bounded, scripts.Forget().Text, keys))
		}
	}
	_, _ = pipe.Exec(bounded) // each command has its own error
	var errs []error
	for _, d := range deleted {
		if err := d.Err(); err != nil {
			errs = append(errs, s.failure(ctx, err))
		}
	}
	if len(errs) > 0 {
		return fmt.Errorf("clear counters in Redis: %w", errors.Join(errs...))
	}
	if s.opts.Invalidations != nil {
		return s.opts.Invalidations.Cleared(bounded, counters)
	}
	return nil
}

// resetAt returns the time for the current window of keys that contain their window, or the zero time if there are no
// such keys.
func (s *Store) resetAt(ctx context.Context, counters []backend.Counter) (time.Time, error) {
	for i := range counters {
		if _, ok := descriptor.CutLyftKey(counters[i].Key); !ok || !s.opts.LyftKeys {
			continue
		}
		if s.CallerClock() {
			return time.Now(), nil
		}
		return s.time(ctx, string(counters[i].Key))
	}
	return time.Time{}, nil
}

// keysOf returns the keys of a counter in Redis. If a key contains its window, the keys for one second earlier and one
// second later are included: a window may end at any moment, and the clocks of a cluster's nodes may differ.
func (s *Store) keysOf(c *backend.Counter, now time.Time) []string {
	if c.Limit != nil && c.Limit.Algorithm == descriptor.Penalties {
		return []string{string(appendPenaltyKey(nil, c.Key))}
	}
	stem, ok := descriptor.CutLyftKey(c.Key)
	if !ok || !s.opts.LyftKeys {
		return []string{string(c.Key)}
	}
	var keys []string
	for _, at := range []time.Time{now.Add(-time.Second), now, now.Add(time.Second)} {
		start, _ := c.Limit.Window.Bounds(at.UnixMicro())
		if key := string(descriptor.AppendLyftKey(nil, stem, start)); !slices.Contains(keys, key) {
			keys = append(keys, key)
		}
	}
	return keys
}
