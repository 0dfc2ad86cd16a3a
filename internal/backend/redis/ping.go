package redis

import (
	"context"
	"fmt"

	goredis "github.com/redis/go-redis/v9"

	"github.com/ratelimitd/ratelimitd/internal/backend/redisconn"
	"github.com/ratelimitd/ratelimitd/internal/backend/scripts"
)

// Ping checks whether Redis answers, and whether it gives scripts the time. On a cluster it calls all primaries at once, and
// one answer is enough: that node's counters can be used. Only ctx bounds it, not Options.Timeout, because Ping checks whether
// Redis is reachable, not how fast it is. No breaker stops it.
func (s *Store) Ping(ctx context.Context) error {
	// The library notices a deadline, but not a cancelled context. A replica that is stopping must not wait for the deadline.
	answer := make(chan error, 1)
	go func() { answer <- s.answers(ctx) }()
	select {
	case err := <-answer:
		return err
	case <-ctx.Done():
		return fmt.Errorf("ping Redis: %w", s.failure(ctx, ctx.Err()))
	}
}

func (s *Store) answers(ctx context.Context) error {
	if err := redisconn.Ping(ctx, s.opts.Client); err != nil {
		return fmt.Errorf("ping Redis: %w", s.failure(ctx, err))
	}
	if s.CallerClock() || s.timeGiven.Load() {
		return nil
	}
	err := s.opts.Client.Eval(redisconn.Probe(ctx), scripts.Clock().Text, nil, make([]byte, 8)).Err()
	switch {
	case err == nil:
		s.timeGiven.Store(true)
	case goredis.HasErrorPrefix(err, noTime):
		s.useCallerClock(err)
	default:
		return fmt.Errorf("ask Redis for the time: %w", s.failure(ctx, err))
	}
	return nil
}
