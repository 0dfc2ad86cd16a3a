package memory

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/platform/metric"
)

// Options are the settings of a Store. The zero value works.
type Options struct {
	// maximum number of counters and reservations at the same time; default DefaultMaxCounters, about 225 MB with keys of
	// 50 bytes
	MaxCounters int
	// number of shared counters, which are used when MaxCounters is reached; default 65,536 of 56 bytes; negative for none
	Shared        int
	SweepInterval time.Duration // time in which every counter is checked once for expiry; default 10 s

	Metrics metric.Registry // nil disables metrics
}

// DefaultMaxCounters is the maximum number of counters of a store without a bound in its options.
const DefaultMaxCounters = 2_000_000

// Store keeps counters in memory.
type Store struct {
	opts    Options
	clock   backend.Clock
	seed    maphash.Seed
	shards  [shardCount]shard
	live    atomic.Int64  // counters and reservations in all shards
	full    chan struct{} // asks Run for a sweep out of turn, because there was no room
	shares  shares
	metrics metrics
}

const shardCount = 256

type shard struct {
	mu           sync.Mutex
	work         counter // scratch counter of the take that holds mu, so that takes do not allocate it
	table        table
	reservations *reservationTable // reservations of each counter; nil without any
	last         *descriptor.Limit // limit of the last reservation whose limit differs from its rule's

	_ [32]byte // 256 bytes in all: neighbours do not share a cache line
}

// New returns an empty store. Run sweeps it.
func New(opts Options) *Store {
	if opts.MaxCounters <= 0 {
		opts.MaxCounters = DefaultMaxCounters
	}
	if opts.Shared == 0 {
		opts.Shared = 1 << 16
	}
	if opts.SweepInterval <= 0 {
		opts.SweepInterval = 10 * time.Second
	}
	s := &Store{opts: opts, clock: backend.NewClock(), seed: maphash.MakeSeed(), full: make(chan struct{}, 1),
		metrics: newMetrics()}
	s.shares.byRule, s.shares.domains, s.shares.free = make(map[uint64]*share), make(map[string]*domain), opts.Shared
	s.shares.table.Store(new([]*share))
	metric.Register(opts.Metrics, s.families()...)
	return s
}

// Start settles the takes of one request immediately. It fails with backend.ErrFull if a new counter is needed and the
// store is full. Takes without room are marked Failed, the others are answered. When ctx ends, the groups of takes that
// are not settled yet are marked Failed.
func (s *Store) Start(ctx context.Context, now time.Time, _ *backend.Batch, r *backend.Request,
	_ func(error)) (settled bool, err error) {
	at := s.clock.Times(now)
	for start := 0; start < len(r.Takes); {
		if start > 0 && ctx.Err() != nil {
			backend.Fail(r.Outcomes[start:])
			return true, errors.Join(err, fmt.Errorf("count in memory: %w", ctx.Err()))
		}
		end := r.Group(start)
		var ok bool
		if end == start+1 {
			ok = s.takeOne(at, r.Takes[start:end], r.Outcomes[start:end])
		} else {
			ok = s.takeGroup(at, r.Takes[start:end], r.Outcomes[start:end])
		}
		if !ok {
			backend.Fail(r.Outcomes[start:end])
			err = errFull
		}
		start = end
	}
	return true, err
}

// errFull is made once, so that a denial for lack of room costs almost nothing.
var errFull = fmt.Errorf("count in memory: %w", backend.ErrFull)

func (s *Store) takeOne(at backend.Times, takes []backend.Take, outcomes []backend.Outcome) bool {
	t := &takes[0]
	hash := s.hash(t.Key)
	sh := &s.shards[hash%shardCount]
	sh.mu.Lock()
	defer sh.mu.Unlock()

	r := sh.table.find(hash, t.Key)
	if r == nil {
		return s.takeNew(at, hash, takes, outcomes)
	}
	state := &sh.work.state
	sh.table.load(r, state)
	states := [1]*backend.State{state}
	if !concernsReservations(t) {
		backend.Settle(takes, states[:], outcomes, at)
	} else if places := [...]place{{hash, r, r.share()}}; !s.settleReservations(at, takes, states[:], places[:],
		outcomes) {
		return false
	}
	sh.table.store(r, state, s.keptUntil(state, r.share(), t.Limit, &outcomes[0], at))
	return true
}

// Peek judges takes and changes nothing. For a counter that does not exist, it reads the shared counter from which a
// new one would start. It never fails.
func (s *Store) Peek(_ context.Context, now time.Time, r *backend.Request) error {
	for i := range r.Takes {
		r.Outcomes[i] = s.peek(s.clock.Times(now), &r.Takes[i])
	}
	return nil
}

func (s *Store) peek(at backend.Times, t *backend.Take) backend.Outcome {
	now := at.Of(t.Limit)
	hash := s.hash(t.Key)
	sh := &s.shards[hash%shardCount]
	sh.mu.Lock()
	defer sh.mu.Unlock()
	state := &sh.work.state
	if r := sh.table.find(hash, t.Key); r != nil {
		sh.table.load(r, state)
		if b := sh.reservations.find(hash, t.Key); b != nil {
			return b.peek(t, *state, now)
		}
		return backend.Peek(t, state, now)
	}
	s.shares.mu.RLock()
	defer s.shares.mu.RUnlock()
	*state = backend.State{}
	if share := s.shares.byRule[s.ruleID(t.Rule)]; share != nil {
		*state = s.inherited(share, hash, t.Rule, t.Limit, at)
	}
	return backend.Peek(t, state, now)
}

// keptUntil is how long a counter of a share is kept after it was settled, as an elapsed time: a clock that is set ends
// nothing early, and keeps nothing longer.
func (s *Store) keptUntil(state *backend.State, share uint32, l *descriptor.Limit, o *backend.Outcome,
	at backend.Times) int64 {
	now := at.Of(l)
	expires := backend.ExpiresAfter(l, state, o, now) - now + at.Elapsed
	if state.Unused() && s.shareNumbered(share).rows.Load() != nil {
		// Without this counter, a new one of this key would start with the hits of other customers.
		expires = max(expires, at.Elapsed+l.Window.Length().Microseconds())
	}
	return expires
}

func (s *Store) hash(key []byte) uint64 { return maphash.Bytes(s.seed, key) }

// Len is the number of counters and of reservations in the store, including expired ones that were not swept yet.
func (s *Store) Len() int { return int(s.live.Load()) }
