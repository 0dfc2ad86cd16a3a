package redis

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/redisconn"
)

// Options are the settings of a Store.
type Options struct {
	// Client is connected to the Redis that counts; required. Its ContextTimeoutEnabled must be true, or no deadline
	// but its own read timeout bounds a call. redisconn.Dial returns one that fits. Whoever made it closes it.
	Client goredis.UniversalClient

	// Timeout is how long a call may take. A caller with a nearer deadline leaves a moment before that; the call goes on without it.
	// Default redisconn.DefaultTimeout; negative: there is no timeout.
	Timeout time.Duration

	// CallerClock lets the time given to Take decide, in place of Redis' clock. Without it, that happens only if the
	// server refuses to tell scripts the time; the store finds out by itself.
	CallerClock bool

	// LyftKeys lets takes have keys of descriptor.KeysLyft, whose counters envoyproxy/ratelimit counts in too. LyftJitter is by how much
	// those keys may live longer than a window, at random; 0: they do not.
	LyftKeys   bool
	LyftJitter time.Duration

	// Plain sends every request by itself, for comparison. Where the caller's clock decides, that is so anyway: requests
	// of different times cannot share a call.
	Plain bool

	Logger *slog.Logger // default slog.Default()
}

// Store keeps counters in Redis. Close ends what it runs in the background.
type Store struct {
	opts   Options
	queues queues
	losses losses

	cluster bool         // counters have slots
	ahead   atomic.Int64 // by how much Redis' clock is ahead of the callers', as last seen, in microseconds

	refused atomic.Bool // the server does not tell scripts the time
	told    atomic.Bool // it did
}

// New returns a store. Nothing is sent before the first take.
func New(opts Options) *Store {
	if opts.Timeout == 0 {
		opts.Timeout = redisconn.DefaultTimeout
	}
	if opts.Logger == nil {
		opts.Logger = slog.Default()
	}
	s := &Store{opts: opts}
	connections := mostFlushes
	switch c := opts.Client.(type) {
	case *goredis.ClusterClient:
		s.cluster = true
		connections = c.Options().PoolSize
	case *goredis.Client:
		connections = c.Options().PoolSize
	}
	s.queues.init(s, connections)
	s.losses.log = opts.Logger
	return s
}

// Close lets what waits for its turn finish, and ends what runs in the background. A take that comes later goes by itself. It
// leaves the client open.
func (s *Store) Close() error {
	s.queues.close()
	s.losses.close()
	return nil
}

// Take settles the takes of one request in one round trip. If it fails, all of them are marked Failed: none of them has
// an answer, but if the error is a timeout they may have been counted. Such errors are backend.ErrUnavailable, and
// context.DeadlineExceeded too when the caller's own deadline has passed; a caller that cancelled gets
// context.Canceled only. A limit that cannot be counted in Redis is neither.
func (s *Store) Take(ctx context.Context, now time.Time, r *backend.Request) error {
	if len(r.Takes) == 0 {
		return nil
	}
	at := now.UnixMicro()
	var err error
	if s.cluster {
		err = s.split(ctx, r, func(ctx context.Context, part *backend.Request) error { return s.queued(ctx, at, part) })
	} else {
		err = s.queued(ctx, at, r)
	}
	return s.lost("count in Redis", err, r)
}

// Peek judges takes and changes nothing. It does not wait in a queue: it goes by itself.
func (s *Store) Peek(ctx context.Context, now time.Time, r *backend.Request) error {
	if len(r.Takes) == 0 {
		return nil
	}
	read := func(ctx context.Context, part *backend.Request) error { return s.read(ctx, now.UnixMicro(), part) }
	if s.cluster {
		return s.lost("read counters in Redis", s.split(ctx, r, read), r)
	}
	return s.lost("read counters in Redis", read(ctx, r), r)
}

// split settles a request on a cluster, where counters of different slots cannot be changed as one: f gets a part of it for
// each slot.
func (s *Store) split(ctx context.Context, r *backend.Request, f func(ctx context.Context, part *backend.Request) error) error {
	return backend.Split(ctx, r, s.place, func(ctx context.Context, _ place, part *backend.Request) error {
		err := f(ctx, part)
		if err != nil {
			backend.Fail(part.Outcomes)
		}
		return err
	})
}

// lost notes that a request, or a part of it, has no answer. On a cluster, split says which.
func (s *Store) lost(what string, err error, r *backend.Request) error {
	if err == nil {
		return nil
	}
	s.losses.add(err)
	if !s.cluster {
		backend.Fail(r.Outcomes)
	}
	return fmt.Errorf("%s: %w", what, err)
}

// queued settles a request whose counters can be changed as one, with others in one round trip unless each is to have its own.
func (s *Store) queued(ctx context.Context, at int64, r *backend.Request) error {
	return s.queues.of(ctx, r).take(ctx, at, s.opts.Plain || s.CallerClock(), r)
}

// read judges takes whose counters can be read as one. Takes without hits have the script show the counters and leave them.
func (s *Store) read(ctx context.Context, at int64, r *backend.Request) error {
	shown := backend.Request{Takes: slices.Clone(r.Takes), Outcomes: make([]backend.Outcome, len(r.Takes))}
	for i := range shown.Takes {
		shown.Takes[i].Hits = 0
	}
	c := scriptCalls.Get().(*scriptCall)
	defer c.release()
	if err := s.take(ctx, at, c, &shown); err != nil {
		return err
	}
	now := int64(binary.LittleEndian.Uint64(c.reply))
	for i := range r.Takes {
		r.Outcomes[i] = backend.Peek(&r.Takes[i], c.pointers[i], now)
	}
	return nil
}

// tries is how often a script may ask for other arguments: it did nothing then. Once is enough but for a calendar's
// window that ends, or a log that grows, meanwhile.
const tries = 5

func (s *Store) take(ctx context.Context, at int64, c *scriptCall, requests ...*backend.Request) error {
	bounded, cancel := s.bound(ctx)
	defer cancel()
	entries := 0
	for try := 0; try < tries; try++ {
		redisClock := !s.CallerClock()
		if err := c.pack(s.terms(at, redisClock, entries), requests...); err != nil {
			return err
		}
		if err := s.run(bounded, ctx, c); err != nil {
			if redisClock && goredis.HasErrorPrefix(err, noTime) {
				s.refuse(err)
				continue
			}
			if len(requests) == 1 && goredis.HasErrorPrefix(err, tryAgain) && s.pause(bounded) {
				try--
				continue
			}
			return err
		}
		if now, n, wanted := c.again(); wanted {
			entries = n
			s.ahead.Store(now - at)
			continue
		}
		now, err := c.settle()
		if err == nil && c.calendar {
			s.ahead.Store(now - at)
		}
		return err
	}
	return fmt.Errorf("%w: the script asked for other arguments %d times", backend.ErrUnavailable, tries)
}

// terms are what a call of a caller's time is packed under.
func (s *Store) terms(at int64, redisClock bool, entries int) terms {
	if redisClock {
		at += s.ahead.Load()
	}
	return terms{now: max(at, 1), redisClock: redisClock, entries: entries, lyft: s.opts.LyftKeys, jitter: s.opts.LyftJitter}
}

// tryAgain begins the error of a cluster's node for several keys of a slot that is moving, while only some of them have.
// Nothing was done then.
const tryAgain = "TRYAGAIN"

// pause waits until it is worth trying again, and says whether there is time for that.
func (s *Store) pause(ctx context.Context) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(time.Millisecond):
		return true
	}
}

// CallerClock says whether the time given to Take decides, because it was asked for or because the server does not tell
// scripts the time.
func (s *Store) CallerClock() bool { return s.opts.CallerClock || s.refused.Load() }

// noTime begins a script's error when the server does not tell it the time. Nothing was done then.
const noTime = "NOTIME"

func (s *Store) refuse(err error) {
	if !s.refused.Swap(true) {
		s.opts.Logger.Warn("this Redis does not tell scripts the time: the clocks of the processes that ask decide, and should agree", "error", err)
	}
}

func (s *Store) run(bounded, ctx context.Context, c *scriptCall) error {
	if err := ctx.Err(); err != nil {
		return s.failure(ctx, err)
	}
	err := s.send(bounded, c, "evalsha", c.script.Hash)
	if err != nil && goredis.HasErrorPrefix(err, "NOSCRIPT") {
		// Redis forgot the script (restart, SCRIPT FLUSH, failover), or never had it. EVAL runs it and keeps it.
		err = s.send(bounded, c, "eval", c.script.Text)
	}
	if err != nil {
		return s.failure(ctx, err)
	}
	return nil
}

func (s *Store) send(ctx context.Context, c *scriptCall, name, script string) error {
	cmd := c.command(ctx, name, script)
	if err := s.opts.Client.Process(ctx, cmd); err != nil {
		return err
	}
	if c.reply = cmd.Bytes(); len(c.reply) < 8 {
		return errReply
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
	if !redisconn.IsTimeout(err) {
		return fmt.Errorf("%w: %w", backend.ErrUnavailable, err)
	}
	// A connection's deadline may pass a moment before the context's own timer fires.
	if d, ok := ctx.Deadline(); ok && !time.Now().Before(d) {
		return fmt.Errorf("%w: %w", backend.ErrUnavailable, context.DeadlineExceeded)
	}
	// Our own timeout must not look like the caller's.
	return fmt.Errorf("%w: %v", backend.ErrUnavailable, err) //nolint:errorlint // hidden on purpose
}
