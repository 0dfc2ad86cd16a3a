package lease

import (
	"hash/maphash"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ratelimitd/ratelimitd/internal/backend"
)

// Options are the settings of Leases.
type Options struct {
	Backend  backend.Store // required
	Replicas int           // processes that lease from the same counters, until SetReplicas; too few waste permits, never admit more. Default 1

	// Timeout is how long the backend takes to answer at most. A take that has to wait more than once, for an acquisition
	// of others and then for its own answer, ends within it all the same. Default: only the caller's deadline bounds it.
	Timeout time.Duration

	MaxLeases int // counters that are leased from at once; others are counted in the backend. Default 10,000

	// ReturnWithin is the time after which the backend is sure to have carried out a refund that was sent, or never
	// will. Permits are only given back if that is right even at its end. Default 1 min.
	ReturnWithin time.Duration

	SweepInterval time.Duration // in which Run looks for unused leases; default 250 ms
	StopTimeout   time.Duration // for giving back everything when Run ends; default 1 s

	Metrics prometheus.Registerer // nil: no metrics
}

// Leases answers takes from permits that it has taken from the backend before, and asks the backend about the others.
type Leases struct {
	opts   Options
	seed   maphash.Seed
	shards [shardCount]shard
	held   atomic.Int64 // counters in all shards

	replicas atomic.Int64

	closed atomic.Bool // Run has ended: nothing is leased any more
	calls  sync.Pool   // *forwarded
	counts counts
}

type shard struct {
	mu       sync.Mutex
	counters map[string]*hotCounter
	heat     [heatSlots]heat
}

// New returns Leases that hold nothing yet. Run gives back what is not used.
func New(opts Options) *Leases {
	if opts.MaxLeases <= 0 {
		opts.MaxLeases = 10_000
	}
	if opts.ReturnWithin <= 0 {
		opts.ReturnWithin = time.Minute
	}
	if opts.SweepInterval <= 0 {
		opts.SweepInterval = 250 * time.Millisecond
	}
	if opts.StopTimeout <= 0 {
		opts.StopTimeout = time.Second
	}
	l := &Leases{opts: opts, seed: maphash.MakeSeed()}
	l.SetReplicas(opts.Replicas)
	l.calls.New = func() any { return new(forwarded) }
	for i := range l.shards {
		l.shards[i].counters = make(map[string]*hotCounter)
	}
	if opts.Metrics != nil {
		l.register(opts.Metrics)
	}
	return l
}

// SetReplicas says how many processes lease from the same counters. Leases that are out stay as they are.
func (l *Leases) SetReplicas(n int) { l.replicas.Store(int64(max(n, 1))) }

func (l *Leases) shard(key []byte) (*shard, uint64) {
	hash := maphash.Bytes(l.seed, key)
	return &l.shards[hash%shardCount], hash
}

// Len is how many counters are leased from, or were a moment ago.
func (l *Leases) Len() int { return int(l.held.Load()) }

// permits is how many permits are held and not used.
func (l *Leases) permits() int64 {
	n := int64(0)
	for i := range l.shards {
		sh := &l.shards[i]
		sh.mu.Lock()
		for _, c := range sh.counters {
			n += c.pool
		}
		sh.mu.Unlock()
	}
	return n
}
