package memory

import (
	"context"
	"fmt"
	"hash/maphash"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ratelimitd/ratelimitd/internal/backend"
)

// Options are the settings of a Store. The zero value serves.
type Options struct {
	MaxCounters   int           // counters in use at once; default 2,000,000, about 400 MB when keys are 50 bytes long
	SweepInterval time.Duration // in which every counter is looked at once for expiry; default 10 s

	Metrics prometheus.Registerer // nil: no metrics
}

// Store keeps counters in memory.
type Store struct {
	opts   Options
	seed   maphash.Seed
	shards [shardCount]shard
	live   atomic.Int64 // counters in all shards

	refused prometheus.Counter
}

const shardCount = 256

type shard struct {
	mu        sync.Mutex
	counters  map[string]*counter
	peak      int   // most counters since the map was made: maps do not shrink
	lastSweep int64 // when a full store last made this shard look for expired counters, in microseconds

	_ [24]byte // 64 bytes in all: neighbours do not share a cache line
}

type counter struct {
	state   backend.State
	expires int64 // when the state is as good as none, in microseconds
}

// New returns an empty store. Run sweeps it.
func New(opts Options) *Store {
	if opts.MaxCounters <= 0 {
		opts.MaxCounters = 2_000_000
	}
	if opts.SweepInterval <= 0 {
		opts.SweepInterval = 10 * time.Second
	}
	s := &Store{opts: opts, seed: maphash.MakeSeed()}
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
// room: those takes are marked Failed, the others are answered.
func (s *Store) Take(_ context.Context, now time.Time, r *backend.Request) error {
	at := now.UnixMicro()
	var err error
	for start := 0; start < len(r.Takes); {
		end := r.Group(start)
		var ok bool
		if end == start+1 {
			ok = s.takeOne(at, r.Takes[start:end], r.Outcomes[start:end])
		} else {
			ok = s.takeGroup(at, r.Takes[start:end], r.Outcomes[start:end])
		}
		if !ok {
			s.refused.Inc()
			for i := start; i < end; i++ {
				r.Outcomes[i] = backend.Outcome{Failed: true}
			}
			err = fmt.Errorf("count in memory: %w (%d in use)", backend.ErrFull, s.live.Load())
		}
		start = end
	}
	return err
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
	return s.insert(sh, now, t.Key, counter{fresh, backend.Expires(t.Limit, &fresh)}) != nil
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
			// It does not expire yet: making room for the next one must not sweep it away.
			if c = s.insert(sh, now, takes[i].Key, counter{expires: math.MaxInt64}); c == nil {
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

// insert adds a counter, or returns nil if there is no room even after expired counters are gone. The shard is locked.
func (s *Store) insert(sh *shard, now int64, key []byte, c counter) *counter {
	if s.live.Add(1) > int64(s.opts.MaxCounters) && !s.makeRoom(sh, now) {
		s.live.Add(-1)
		return nil
	}
	held := &c
	sh.counters[string(key)] = held
	sh.peak = max(sh.peak, len(sh.counters))
	return held
}

// makeRoom drops expired counters from one shard after the other, beginning with the one that is locked, until the
// store is within its bound. A shard is looked through at most once a second: an attacker who keeps the store full does
// not buy a sweep with every call. Shards that others hold are left out, so that nobody waits for anybody here.
func (s *Store) makeRoom(locked *shard, now int64) bool {
	within := func() bool { return s.live.Load() <= int64(s.opts.MaxCounters) }
	s.live.Add(-int64(locked.sweepOnce(now)))
	for i := range s.shards {
		if within() {
			return true
		}
		if sh := &s.shards[i]; sh != locked && sh.mu.TryLock() {
			s.live.Add(-int64(sh.sweepOnce(now)))
			sh.mu.Unlock()
		}
	}
	return within()
}

func (s *Store) shardOf(key []byte) uint8 {
	return uint8(maphash.Bytes(s.seed, key) % shardCount)
}

// Len is how many counters the store holds, expired ones that were not swept yet among them.
func (s *Store) Len() int { return int(s.live.Load()) }
