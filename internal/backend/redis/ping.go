package redis

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/ratelimitd/ratelimitd/internal/backend/scripts"
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
	if err := s.ping(ctx); err != nil {
		return fmt.Errorf("ping Redis: %w", s.failure(ctx, err))
	}
	if s.CallerClock() || s.told.Load() {
		return nil
	}
	err := s.opts.Client.Eval(probe(ctx), scripts.Clock().Text, nil, make([]byte, 8)).Err()
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

func (s *Store) ping(ctx context.Context) error {
	c, ok := s.opts.Client.(*goredis.ClusterClient)
	if !ok {
		return ping(ctx, s.opts.Client)
	}
	answer := make(chan error, 1)
	say := func(err error) {
		select {
		case answer <- err:
		default: // another one was faster
		}
	}
	go func() {
		var mu sync.Mutex
		var errs []error
		err := c.ForEachMaster(ctx, func(ctx context.Context, node *goredis.Client) error {
			err := ping(ctx, node)
			if err == nil {
				say(nil)
			}
			mu.Lock()
			defer mu.Unlock()
			errs = append(errs, err)
			return nil
		})
		say(errors.Join(append(errs, err)...))
	}()
	return <-answer
}

type probeKey struct{}

// probe marks what this process asks for itself: no call may fail for it (aside). No breaker stands before a ping that is marked: whether
// Redis is there is asked of Redis.
func probe(ctx context.Context) context.Context { return context.WithValue(ctx, probeKey{}, true) }

func isProbe(ctx context.Context) bool { return ctx.Value(probeKey{}) != nil }

// ping asks one server. While all connections are in use there is one at least, and its turn is waited for.
func ping(ctx context.Context, c goredis.UniversalClient) error {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		err := c.Ping(probe(ctx)).Err()
		if !errors.Is(err, goredis.ErrPoolTimeout) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-tick.C:
		}
	}
}
