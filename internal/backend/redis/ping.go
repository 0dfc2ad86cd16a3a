package redis

import (
	"context"
	"fmt"

	goredis "github.com/redis/go-redis/v9"

	"github.com/ratelimitd/ratelimitd/internal/backend/scripts"
	"github.com/ratelimitd/ratelimitd/internal/redisconn"
)

// Ping asks whether Redis answers, and finds out whether it tells scripts the time. On a cluster every primary is asked, side
// by side, and one that answers is enough: its counters can be counted. ctx alone bounds it, not Options.Timeout: what is asked is
// whether Redis is there, not how fast it is. No breaker stands before it.
func (s *Store) Ping(ctx context.Context) error {
	// The library notices the end of a connection's time, but not of a context: who is told to stop must not wait for the former.
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
	if s.CallerClock() || s.told.Load() {
		return nil
	}
	err := s.opts.Client.Eval(redisconn.Probe(ctx), scripts.Clock().Text, nil, make([]byte, 8)).Err()
	switch {
	case err == nil:
		s.told.Store(true)
	case goredis.HasErrorPrefix(err, noTime):
		s.refuse(err)
	default:
		return fmt.Errorf("ask Redis for the time: %w", s.failure(ctx, err))
	}
	return nil
}
