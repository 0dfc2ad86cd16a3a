package memory

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ratelimitd/ratelimitd/internal/backend"
)

// Options are the settings of a Store. The zero value serves.
type Options struct {
	MaxCounters   int           // counters in use at once; default DefaultMaxCounters, about 400 MB when keys are 50 bytes long
	SweepInterval time.Duration // in which every counter is looked at once for expiry; default 10 s

	Metrics prometheus.Registerer // nil: no metrics
}

// DefaultMaxCounters is how many counters a store holds that was not given a bound.
const DefaultMaxCounters = 2_000_000

// Store keeps counters in memory.
type Store struct {
	opts   Options
	seed   maphash.Seed
	shards [shardCount]shard
	live   atomic.Int64  // counters in all shards
	full   chan struct{} // asks Run for a sweep out of turn, because there was no room

	refused prometheus.Counter
}

const shardCount = 256

type shard struct {
	mu       sync.Mutex
	counters map[string]*counter
	peak     int // most counters since the map was made: maps do not shrink

	_ [40]byte // 64 bytes in all: neighbours do not share a cache line
}

type counter struct {
	state   backend.State
	expires int64 // when the state is as good as none, in microseconds
}

// New returns an empty store. Run sweeps it.
func New(opts Options) *Store {
	if opts.MaxCounters <= 0 {
		opts.MaxCounters = DefaultMaxCounters
	}
	if opts.SweepInterval <= 0 {
		opts.SweepInterval = 10 * time.Second
	}
	s := &Store{opts: opts, seed: maphash.MakeSeed(), full: make(chan struct{}, 1)}
	for i := range s.shards {
		s.shards[i].counters = make(map[string]*counter)
	}
	s.refused = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "ratelimitd_memory_refused_counters_total",
		Help: "Takes that failed because the memory backend holds as many live counters as it may.",
	})
	if opts.Metrics != nil {
		opts.Metrics.MustRegister(s.refused, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "ratelimitd_memory_counters",
			Help: "Counters that the memory backend holds.",
		}, func() float64 { return float64(s.live.Load()) }), prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "ratelimitd_memory_counters_max",
			Help: "Counters that the memory backend may hold.",
		}, func() float64 { return float64(opts.MaxCounters) }))
	}
	return s
}

// Take settles the takes of one request. It fails with backend.ErrFull when a new counter is needed and there is no
// room: those takes are marked Failed, the others are answered. When ctx ends, the groups of takes that were not settled
// yet are marked Failed.
func (s *Store) Take(ctx context.Context, now time.Time, r *backend.Request) error {
	at := now.UnixMicro()
	var err error
	for start := 0; start < len(r.Takes); {
		if start > 0 && ctx.Err() != nil {
			fail(r.Outcomes[start:])
			return errors.Join(err, fmt.Errorf("count in memory: %w", ctx.Err()))
		}
		end := r.Group(start)
		var ok bool
		if end == start+1 {
			ok = s.takeOne(at, r.Takes[start:end], r.Outcomes[start:end])
		} else {
			ok = s.takeGroup(at, r.Takes[start:end], r.Outcomes[start:end])
		}
		if !ok {
			s.refused.Inc()
			fail(r.Outcomes[start:end])
			err = errFull
		}
		start = end
	}
	return err
}

// errFull is made once: a refusal for lack of room costs next to nothing.
var errFull = fmt.Errorf("count in memory: %w", backend.ErrFull)

func fail(outcomes []backend.Outcome) {
	for i := range outcomes {
		outcomes[i] = backend.Outcome{Failed: true}
	}
}

func (s *Store) takeOne(now int64, takes []backend.Take, outcomes []backend.Outcome) bool {
	t := &takes[0]
	sh := &s.shards[s.shardOf(t.Key)]
	sh.mu.Lock()
	defer sh.mu.Unlock()

	if c := sh.counters[string(t.Key)]; c != nil {
		states := [1]*backend.State{&c.state}
		backend.Settle(takes, states[:], outcomes, now)
		c.expires = backend.Expires(t.Limit, &c.state)
		return true
	}
	var fresh backend.State
	states := [1]*backend.State{&fresh}
	backend.Settle(takes, states[:], outcomes, now)
	if fresh.Unused() {
		return true
	}
	return s.insert(sh, t.Key, counter{fresh, backend.Expires(t.Limit, &fresh)}) != nil
}

// takeGroup settles several takes as one. All their shards are locked, in ascending order, which is why two requests
// cannot wait for each other.
func (s *Store) takeGroup(now int64, takes []backend.Take, outcomes []backend.Outcome) bool {
	var shardBuf [16]uint8
	var counterBuf [16]*counter
	var stateBuf [16]*backend.State
	order, counters, states := shardBuf[:0], counterBuf[:0], stateBuf[:0]
	for i := range takes {
		order = append(order, s.shardOf(takes[i].Key))
	}
	slices.Sort(order)
	order = slices.Compact(order)
	for _, i := range order {
		s.shards[i].mu.Lock()
	}
	defer func() {
		for _, i := range order {
			s.shards[i].mu.Unlock()
		}
	}()

	// Missing counters are made first, so that two takes of one counter find the same; those still unused are dropped.
	room := true
	for i := range takes {
		sh := &s.shards[s.shardOf(takes[i].Key)]
		c := sh.counters[string(takes[i].Key)]
		if c == nil {
			if c = s.insert(sh, takes[i].Key, counter{}); c == nil {
				room = false
				break
			}
		}
		counters = append(counters, c)
		states = append(states, &c.state)
	}
	if room {
		backend.Settle(takes, states, outcomes, now)
	}
	for i, c := range counters {
		if !c.state.Unused() {
			c.expires = backend.Expires(takes[i].Limit, &c.state)
			continue
		}
		sh := &s.shards[s.shardOf(takes[i].Key)]
		if _, held := sh.counters[string(takes[i].Key)]; held {
			delete(sh.counters, string(takes[i].Key))
			s.live.Add(-1)
		}
	}
	return room
}

// insert adds a counter, or returns nil if there is no room: then Run is asked to make some. The shard is locked.
func (s *Store) insert(sh *shard, key []byte, c counter) *counter {
	if s.live.Add(1) > int64(s.opts.MaxCounters) {
		s.live.Add(-1)
		select {
		case s.full <- struct{}{}:
		default:
		}
		return nil
	}
	held := &c
	sh.counters[string(key)] = held
	sh.peak = max(sh.peak, len(sh.counters))
	return held
}

func (s *Store) shardOf(key []byte) uint8 {
	return uint8(maphash.Bytes(s.seed, key) % shardCount)
}

// Len is how many counters the store holds, expired ones that were not swept yet among them.
func (s *Store) Len() int { return int(s.live.Load()) }
