package redis

import (
	"context"
	"crypto/sha1"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/backend/scripts"
)

// Options are the settings of a Store.
type Options struct {
	// Client is connected to the Redis that counts; required. Its ContextTimeoutEnabled must be true, or no deadline
	// but its own read timeout bounds a call. Dial returns one that fits. Whoever made it closes it.
	Client goredis.UniversalClient

	// Timeout bounds a call if the caller's deadline is farther. Default 15 ms; negative: only the caller's deadline.
	Timeout time.Duration

	// CallerClock lets the time given to Take decide, in place of Redis' clock.
	CallerClock bool
}

// Store keeps counters in Redis.
type Store struct {
	opts Options
	hash string // of the script
}

// New returns a store. Nothing is sent before the first take.
func New(opts Options) *Store {
	if opts.Timeout == 0 {
		opts.Timeout = 15 * time.Millisecond
	}
	sum := sha1.Sum([]byte(scripts.Take))
	return &Store{opts: opts, hash: hex.EncodeToString(sum[:])}
}

// Take settles the takes of one request in one round trip. If it fails, all of them are marked Failed: none of them has
// an answer, but if the error is a timeout they may have been counted. Such errors are backend.ErrUnavailable, and
// context.DeadlineExceeded too when the caller's own deadline has passed; a caller that cancelled gets
// context.Canceled only. A limit that cannot be counted in Redis is neither.
func (s *Store) Take(ctx context.Context, now time.Time, r *backend.Request) error {
	if len(r.Takes) == 0 {
		return nil
	}
	c := calls.Get().(*call)
	defer c.release()

	at := int64(0)
	if s.opts.CallerClock {
		at = max(now.UnixMicro(), 1)
	}
	err := c.pack(at, r)
	if err == nil {
		err = s.run(ctx, c)
	}
	if err == nil {
		c.settle(r)
		return nil
	}
	for i := range r.Outcomes {
		r.Outcomes[i] = backend.Outcome{Failed: true}
	}
	return fmt.Errorf("count in Redis: %w", err)
}

// Ping asks whether Redis answers.
func (s *Store) Ping(ctx context.Context) error {
	bounded, cancel := s.bound(ctx)
	defer cancel()
	if err := s.opts.Client.Ping(bounded).Err(); err != nil {
		return fmt.Errorf("ping Redis: %w", s.failure(ctx, err))
	}
	return nil
}

func (s *Store) run(ctx context.Context, c *call) error {
	if err := ctx.Err(); err != nil {
		return s.failure(ctx, err)
	}
	bounded, cancel := s.bound(ctx)
	defer cancel()
	err := s.send(bounded, c, "evalsha", s.hash)
	if err != nil && goredis.HasErrorPrefix(err, "NOSCRIPT") {
		// Redis forgot the script (restart, SCRIPT FLUSH, failover). EVAL runs it and keeps it.
		err = s.send(bounded, c, "eval", scripts.Take)
	}
	if err != nil {
		return s.failure(ctx, err)
	}
	return nil
}

func (s *Store) send(ctx context.Context, c *call, name, script string) error {
	args := c.command(name, script)
	// A command that reads into our buffer is never sent twice by the client, whatever its MaxRetries are.
	cmd := goredis.NewZeroCopyStringCmd(ctx, c.reply[:cap(c.reply)], args...)
	if err := s.opts.Client.Process(ctx, cmd); err != nil {
		return err
	}
	c.reply = cmd.Bytes()
	if len(c.reply) != c.replySize() {
		return fmt.Errorf("the script answered with %d bytes, not %d", len(c.reply), c.replySize())
	}
	return nil
}

// bound applies the store's timeout, unless the caller's deadline is nearer.
func (s *Store) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	if s.opts.Timeout < 0 {
		return ctx, func() {}
	}
	if d, ok := ctx.Deadline(); ok && time.Until(d) <= s.opts.Timeout {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, s.opts.Timeout)
}

// failure turns the client's error into the contract's. ctx is the caller's.
func (s *Store) failure(ctx context.Context, err error) error {
	if errors.Is(ctx.Err(), context.Canceled) {
		return context.Canceled
	}
	if !isTimeout(err) {
		return fmt.Errorf("%w: %w", backend.ErrUnavailable, err)
	}
	// A connection's deadline may pass a moment before the context's own timer fires.
	if d, ok := ctx.Deadline(); ok && !time.Now().Before(d) {
		return fmt.Errorf("%w: %w", backend.ErrUnavailable, context.DeadlineExceeded)
	}
	// Our own timeout must not look like the caller's.
	return fmt.Errorf("%w: %v", backend.ErrUnavailable, err)
}

func isTimeout(err error) bool {
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, goredis.ErrPoolTimeout) {
		return true
	}
	var n net.Error
	return errors.As(err, &n) && n.Timeout()
}
