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
	"github.com/ratelimitd/ratelimitd/internal/backend/redisconn"
	"github.com/ratelimitd/ratelimitd/internal/platform/async"
)

// Options are the settings of a Store.
type Options struct {
	// Client is connected to the Redis with the counters; required. Its ContextTimeoutEnabled must be true, or only its
	// own read timeout bounds a call. redisconn.Dial returns a suitable client. The store does not close it.
	Client goredis.UniversalClient

	// Timeout is how long a call may take. A caller with an earlier deadline leaves a moment before it; the call
	// continues. Default redisconn.DefaultTimeout; negative disables the timeout.
	Timeout time.Duration

	// CallerClock makes the store use the time given to Start instead of Redis' clock. Without it, the store does so only
	// if the server does not give scripts the time; the store detects this on its own. Requests with different times
	// cannot share a call.
	CallerClock bool

	// LyftKeys allows keys of descriptor.KeysLyft, whose counters are shared with envoyproxy/ratelimit. These keys live
	// longer than their window by a random time of at most LyftJitter.
	LyftKeys   bool
	LyftJitter time.Duration

	Invalidations *Invalidations // tell other replicas about resets; nil to tell nobody

	// KeyPrefix starts the keys that reveal the layout behind the client's address.
	KeyPrefix string
	// Sharded states that the address leads to several servers or slots. Otherwise the store detects this. It has no
	// effect on a cluster's client.
	Sharded bool
	// Connections counts the connections of the client. When the client has opened a new one, the store finds the layout
	// behind the address again. If Connections is nil, it finds the layout once.
	Connections *redisconn.Connections

	// GaveBack is called after hits were given back that were reserved in one slot of a cluster for a request that another
	// slot denied, with the take that did it and its outcome. A denial that was remembered in between may be wrong now.
	// Nil if denials are not remembered.
	GaveBack func(*backend.Take, *backend.Outcome)

	Settings string       // the first letters of the variables of this Redis, for advice in the log
	Logger   *slog.Logger // default slog.Default()
}

// Store keeps counters in Redis. Close stops its background work.
type Store struct {
	opts     Options
	queues   queues
	failures failureLog

	lanes   *redisconn.Lanes // lanes of the client; nil if it has none
	cluster bool             // the server is a cluster: counters are in slots
	small   int              // number of reservations from which on a list is large
	// time until which calls name the keys of large lists too, by the callers' clock in microseconds
	large atomic.Int64
	ahead atomic.Int64 // latest lead of Redis' clock over the callers', in microseconds

	timeDenied atomic.Bool // the server does not give scripts the time
	timeGiven  atomic.Bool // it does

	layout    atomic.Int32 // a Layout
	search    search
	movedSaid atomic.Bool // it was logged that other nodes of a cluster have other counters

	rejected atomic.Bool // Redis has rejected a call since Rejected was called last
}

// New returns a store. Nothing is sent before the first take.
func New(opts Options) *Store {
	if opts.Timeout == 0 {
		opts.Timeout = redisconn.DefaultTimeout
	}
	if opts.Logger == nil {
		opts.Logger = slog.Default()
	}
	s := &Store{opts: opts, lanes: redisconn.LanesOf(opts.Client), small: fewReservations}
	s.search.life, s.search.end = context.WithCancel(context.Background())
	if opts.Sharded {
		s.layout.Store(int32(Servers))
	}
	connections := mostFlushes
	switch c := opts.Client.(type) {
	case *goredis.ClusterClient:
		s.cluster = true
		s.layout.Store(int32(Slots))
		connections = c.Options().PoolSize
	case interface{ Options() *goredis.Options }:
		connections = c.Options().PoolSize + s.lanes.Len()
	}
	s.queues.init(s, connections)
	s.failures.log, s.failures.settings = opts.Logger, opts.Settings
	return s
}

// Close sends the requests that wait in queues, waits for the answers, and ends all goroutines. A later take is sent by
// itself. The client stays open.
func (s *Store) Close() error {
	s.search.stop()
	s.queues.close()
	s.search.work.Wait()
	s.failures.close()
	return nil
}

// Start settles the takes of one request in one round trip, which it shares with others. If it fails, all of them are
// marked Failed: none of them has an answer, but if the error is a timeout they may have been counted. Such errors are
// backend.ErrUnavailable, and context.DeadlineExceeded too when the deadline of ctx has passed; a caller that cancelled
// gets context.Canceled only. A limit that cannot be counted in Redis is neither.
//
// The requests of a batch enter the queue together. A request whose counters are in several slots gets a goroutine.
func (s *Store) Start(ctx context.Context, now time.Time, b *backend.Batch, r *backend.Request,
	done func(error)) (settled bool, err error) {
	if len(r.Takes) == 0 {
		return true, nil
	}
	if err := ctx.Err(); err != nil {
		backend.Fail(r.Outcomes)
		return true, s.failed("count in Redis", s.failure(ctx, err))
	}
	if s.apart() {
		s.look()
		if !s.inOneSlot(r) {
			async.Go(func() error { return s.takeOfSlots(ctx, now.UnixMicro(), r) }, done)
			return false, nil
		}
	}
	q := s.queues.of(ctx, r)
	if b == backend.CallerWaits {
		b = nil
		// with callers' clocks each request has a separate call and goroutine, so the queue cannot tell that nothing is in
		// flight
		if !s.CallerClock() {
			if settled, err := q.settleHere(ctx, now.UnixMicro(), r); settled {
				return true, s.failed("count in Redis", err)
			}
		}
	}
	q.start(q.newRequest(ctx, now.UnixMicro(), r, done), b)
	return false, nil
}

// takeOfSlots settles a request whose counters are in several slots, and waits for each of them.
func (s *Store) takeOfSlots(ctx context.Context, at int64, r *backend.Request) error {
	queued := func(ctx context.Context, part *backend.Request) error {
		if err := ctx.Err(); err != nil {
			return s.failure(ctx, err)
		}
		w := async.NewWaiter()
		q := s.queues.of(ctx, part)
		f := q.newRequest(ctx, at, part, w.Done)
		f.part = true
		q.start(f, nil)
		return w.Wait(false, nil)
	}
	if s.known(ctx) == OneServer {
		err := queued(ctx, r)
		if err != nil {
			backend.Fail(r.Outcomes)
		}
		return s.failed("count in Redis", err)
	}
	return s.failed("count in Redis", s.split(ctx, r, queued))
}

// inOneSlot reports whether a request's counters can share a script.
func (s *Store) inOneSlot(r *backend.Request) bool {
	if len(r.Takes) == 1 {
		return true
	}
	first := s.slotID(&r.Takes[0])
	return !slices.ContainsFunc(r.Takes[1:], func(t backend.Take) bool { return s.slotID(&t) != first })
}

// Peek decides takes and changes nothing. It does not wait in a queue: it is sent alone.
func (s *Store) Peek(ctx context.Context, now time.Time, r *backend.Request) error {
	if len(r.Takes) == 0 {
		return nil
	}
	read := func(ctx context.Context, part *backend.Request) error { return s.read(ctx, now.UnixMicro(), part) }
	if !s.apart() {
		err := read(ctx, r)
		if !s.crossed(err) {
			if err != nil {
				backend.Fail(r.Outcomes)
			}
			return s.failed("read counters in Redis", err)
		}
	}
	return s.failed("read counters in Redis", s.split(ctx, r, read))
}

// split settles a request whose counters cannot be changed as one, because they are in different slots: f gets a part
// of it for each slot.
func (s *Store) split(ctx context.Context, r *backend.Request,
	f func(ctx context.Context, part *backend.Request) error) error {
	return backend.Split(ctx, r, s.slotID, func(ctx context.Context, _ slotID, part *backend.Request) error {
		err := f(ctx, part)
		if err != nil {
			backend.Fail(part.Outcomes)
		}
		return err
	}, s.opts.GaveBack)
}

// failed records that a request, or a part of it, has no answer.
func (s *Store) failed(what string, err error) error {
	if err == nil {
		return nil
	}
	s.failures.add(err)
	if redisconn.Rejects(err) {
		s.rejected.Store(true)
	}
	return fmt.Errorf("%s: %w", what, err)
}

// Rejected reports whether Redis has rejected a call since Rejected was called last: it answers, and does not let this
// user count.
func (s *Store) Rejected() bool { return s.rejected.Swap(false) }

// read decides takes whose counters can be read in one call. It sends takes without hits: the script then returns the
// counters and does not change them.
func (s *Store) read(ctx context.Context, at int64, r *backend.Request) error {
	shown := backend.Request{Takes: slices.Clone(r.Takes), Outcomes: make([]backend.Outcome, len(r.Takes))}
	for i := range shown.Takes {
		shown.Takes[i].Hits, shown.Takes[i].Reservation = 0, nil
	}
	c := scriptCalls.Get().(*scriptCall)
	defer c.release()
	c.reads = true
	if err := s.take(ctx, at, c, &shown); err != nil {
		return err
	}
	now := int64(binary.LittleEndian.Uint64(c.reply))
	for i := range r.Takes {
		r.Outcomes[i] = backend.Peek(&r.Takes[i], c.pointers[i], now)
	}
	return nil
}

// keepLarge is for how many microseconds calls name the keys of large lists after one was needed: a second.
const keepLarge = 1_000_000

// tries is how often a script may ask for other arguments. A script that asks did nothing. It asks more than once only
// if a calendar's window ends, or a log grows, in between.
const tries = 5

// largeReply is the size in bytes of an answer that requests do not share: a connection accepts 16 MiB, and a sliding
// log may have 256 KiB.
const largeReply = 8 << 20

var errLargeReply = errors.New("the logs of these requests are too large for one answer")

// settle settles one request in separate calls: one, if its counters can share a script.
func (s *Store) settle(ctx context.Context, at int64, r *backend.Request) error {
	alone := func(ctx context.Context, part *backend.Request) error {
		c := scriptCalls.Get().(*scriptCall)
		defer c.release()
		return s.take(ctx, at, c, part)
	}
	if s.apart() && !s.inOneSlot(r) {
		return s.split(ctx, r, alone)
	}
	err := alone(ctx, r)
	if s.crossed(err) && !s.inOneSlot(r) {
		return s.split(ctx, r, alone)
	}
	return err
}

func (s *Store) take(ctx context.Context, at int64, c *scriptCall, requests ...*backend.Request) error {
	deadline := s.deadline(ctx)
	entries, large := 0, false
	for try := 0; try < tries; try++ {
		redisClock := !s.CallerClock()
		m := s.terms(at, redisClock, entries)
		m.large = m.large || large
		if err := c.pack(m, requests...); err != nil {
			return unsendable{err}
		}
		if err := s.run(ctx, deadline, c); err != nil {
			if redisClock && goredis.HasErrorPrefix(err, noTime) {
				s.useCallerClock(err)
				continue
			}
			if len(requests) == 1 && goredis.HasErrorPrefix(err, tryAgain) && s.pause(ctx, deadline) {
				try--
				continue
			}
			return err
		}
		if now, n, wanted := c.retry(); wanted {
			if n == askWithLarge {
				large = true
				s.large.Store(at + keepLarge)
			} else {
				entries = n
				if len(requests) > 1 && c.room(entries) > largeReply {
					return unsendable{errLargeReply}
				}
			}
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

// terms returns the settings of a call for a caller's time.
func (s *Store) terms(at int64, redisClock bool, entries int) terms {
	large := at < s.large.Load()
	if redisClock {
		at += s.ahead.Load()
	}
	return terms{
		now: max(at, 1), redisClock: redisClock, entries: entries, small: s.small, large: large,
		lyft: s.opts.LyftKeys, jitter: s.opts.LyftJitter, routed: s.apart() && !s.cluster,
	}
}

// tryAgain is the prefix of a node's error for several keys of a slot that is moving, while only some of them have
// moved. Nothing was done then.
const tryAgain = "TRYAGAIN"

// partlyWritten is the prefix of a script's error if the takes may still have counted.
const partlyWritten = "PARTLY"

// unsendable is the error of a batch in which at least one request cannot be sent. Nothing was sent then.
type unsendable struct{ error }

func (e unsendable) Unwrap() error { return e.error }

// pause waits before another attempt. It returns false if the time is too short for one.
func (s *Store) pause(ctx context.Context, deadline time.Time) bool {
	const wait = time.Millisecond
	if !deadline.IsZero() && time.Until(deadline) < wait {
		return false
	}
	select {
	case <-ctx.Done():
		return false
	case <-time.After(wait):
		return true
	}
}

// CallerClock reports whether the store uses the time given to Start: because Options.CallerClock is set, or because
// the server does not give scripts the time.
func (s *Store) CallerClock() bool { return s.opts.CallerClock || s.timeDenied.Load() }

// noTime is the prefix of a script's error if the server does not give it the time. Nothing was done then.
const noTime = "NOTIME"

// useCallerClock makes the store use the callers' clocks from now on.
func (s *Store) useCallerClock(err error) {
	if !s.timeDenied.Swap(true) {
		s.opts.Logger.Warn("this Redis does not give scripts the time: the clocks of the replicas that call it decide, and "+
			"should agree", "error", err)
	}
}

func (s *Store) run(ctx context.Context, deadline time.Time, c *scriptCall) error {
	if err := ctx.Err(); err != nil {
		return s.failure(ctx, err)
	}
	var err error
	if lane := s.lane(ctx, deadline); lane != nil {
		err = c.sendOn(ctx, lane, deadline)
		lane.Release()
	} else {
		err = s.send(ctx, deadline, c, "evalsha", c.script.Hash)
	}
	if err != nil && goredis.HasErrorPrefix(err, "NOSCRIPT") {
		// Redis has lost the script (restart, SCRIPT FLUSH, failover), or never had it. EVAL runs the script and caches it.
		err = s.send(ctx, deadline, c, "eval", c.script.Text)
	}
	if err != nil {
		return s.failure(ctx, err)
	}
	return nil
}

// lane returns a lane for a call, or nil. A call that may be cancelled, or may have little time, gets nil, because it
// would close the connection of a lane.
func (s *Store) lane(ctx context.Context, deadline time.Time) *redisconn.Lane {
	if ctx.Done() != nil || deadline.IsZero() {
		return nil
	}
	return s.lanes.Take()
}

func (s *Store) send(ctx context.Context, deadline time.Time, c *scriptCall, name, script string) error {
	if !deadline.IsZero() {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, deadline)
		defer cancel()
	}
	cmd := c.command(ctx, name, script)
	if err := s.opts.Client.Process(ctx, cmd); err != nil {
		return err
	}
	if c.reply = cmd.Bytes(); len(c.reply) < 8 {
		return errReply
	}
	return nil
}

// bound applies the deadline of a call.
func (s *Store) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	if at := s.deadline(ctx); !at.IsZero() {
		return context.WithDeadline(ctx, at)
	}
	return ctx, func() {}
}

// deadline returns when a call ends: after the store's timeout, or at the caller's deadline. Zero means never.
func (s *Store) deadline(ctx context.Context) time.Time {
	own, ok := ctx.Deadline()
	if s.opts.Timeout < 0 {
		return own
	}
	if at := time.Now().Add(s.opts.Timeout); !ok || at.Before(own) {
		return at
	}
	return own
}

// failure converts the client's error to one that Start documents. ctx is the caller's.
func (s *Store) failure(ctx context.Context, err error) error {
	if errors.Is(ctx.Err(), context.Canceled) {
		return context.Canceled
	}
	if errors.Is(err, context.Canceled) {
		// The client library may hand a call the failed dial of another call that was cancelled. It must not look like a
		// cancellation of ctx, for which there is no answer by on_error.
		return fmt.Errorf("%w: %v", backend.ErrUnavailable, err) //nolint:errorlint // hidden on purpose
	}
	if !redisconn.IsTimeout(err) {
		return fmt.Errorf("%w: %w", backend.ErrUnavailable, err)
	}
	// A connection's deadline may pass a moment before the context's timer fires.
	if d, ok := ctx.Deadline(); ok && !time.Now().Before(d) {
		return fmt.Errorf("%w: %w", backend.ErrUnavailable, context.DeadlineExceeded)
	}
	// The store's timeout must not look like the caller's.
	return fmt.Errorf("%w: %v", backend.ErrUnavailable, err) //nolint:errorlint // hidden on purpose
}
