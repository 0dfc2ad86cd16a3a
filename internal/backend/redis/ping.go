package redis

import (
	"context"
	"encoding/binary"
	"fmt"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/ratelimitd/ratelimitd/internal/backend/redisconn"
	"github.com/ratelimitd/ratelimitd/internal/backend/scripts"
)

// Ping checks whether Redis answers and runs scripts, and whether it gives them the time. On a cluster it calls all
// primaries at the same time, and one answer is enough: that node's counters can be used. The same holds for servers
// behind a proxy, which answers a PING itself. Only ctx bounds it, not Options.Timeout, because Ping checks whether
// Redis is reachable, not how fast it is. Breakers do not stop it.
func (s *Store) Ping(ctx context.Context) error {
	// The library notices a deadline, but not a cancelled context. A replica that is stopping must not wait for the
	// deadline.
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
	if !s.cluster {
		usable := s.runsScripts
		if Layout(s.layout.Load()) == LayoutUnknown {
			usable = s.find
		}
		if err := usable(ctx); err != nil {
			return fmt.Errorf("run a script in Redis: %w", s.failure(ctx, err))
		}
	}
	if s.CallerClock() || s.timeGiven.Load() {
		return nil
	}
	_, err := s.time(redisconn.Probe(ctx), s.opts.KeyPrefix+ProbeKey)
	switch {
	case err == nil:
		s.timeGiven.Store(true)
	case goredis.HasErrorPrefix(err, noTime):
		s.useCallerClock(err)
	case mayNotUseKeys(err): // the first take will show it
	default:
		return fmt.Errorf("ask Redis for the time: %w", s.failure(ctx, err))
	}
	return nil
}

// time asks the server of a key for the time.
func (s *Store) time(ctx context.Context, key string) (time.Time, error) {
	keys := []string{key}
	if s.cluster { // any node will do
		keys = nil
	}
	text, err := s.opts.Client.Eval(ctx, scripts.Clock().Text, keys, make([]byte, 8)).Text()
	if err != nil {
		return time.Time{}, err
	}
	if len(text) != 8 {
		return time.Time{}, errReply
	}
	return time.UnixMicro(int64(binary.LittleEndian.Uint64([]byte(text)))), nil
}
