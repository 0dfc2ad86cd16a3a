package lease

import (
	"hash/maphash"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/platform/metric"
)

// Options are the settings of Leases.
type Options struct {
	Store backend.Store // required
	// replicas that lease from the same counters, until SetReplicas; too few waste permits, but never admit more. Default
	// 1
	Replicas int

	// Timeout is the maximum time that the backend takes to answer. A take that has to wait twice, for an acquisition of
	// another take and then for its own answer, still ends within it. Default: only the caller's deadline bounds it.
	Timeout time.Duration

	Far *Far // the store is in another region: far.go. Timeout is required then. Nil: it is near

	// maximum number of counters that are leased from at once; others are counted in the backend. Default 10,000
	MaxLeases int

	// ReturnWithin bounds the delay of a refund: after this time, the backend has carried the refund out, or never will.
	// Permits are given back only if that is right even at the end of this time. Default 1 min.
	ReturnWithin time.Duration

	SweepInterval time.Duration // how often Run looks for unused leases; default 250 ms
	StopTimeout   time.Duration // for giving back all permits when Run ends; default 1 s

	Metrics metric.Registry // nil: no metrics
}

// Leases answers takes from permits that it took from the backend earlier, and forwards the other takes to the backend.
type Leases struct {
	opts   Options
	seed   maphash.Seed
	shards [shardCount]shard
	held   atomic.Int64 // counters in all shards

	replicas atomic.Int64
	timers   timers

	asking sync.WaitGroup // questions for permits of far counters

	closed atomic.Bool // Run has ended: nothing is leased any more
	calls  sync.Pool   // *forwarded
	counts counts
}

type shard struct {
	mu sync.Mutex
	// by the counter's key; all rules of a counter have `lease` or none has it, and their limits may differ
	counters map[string]*hotCounter
	heat     [heatSlots]heat
}

// New returns Leases that hold nothing yet. Run gives back unused permits.
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
	metric.Register(opts.Metrics, l.families()...)
	return l
}

// SetReplicas sets how many replicas lease from the same counters. Leases that are already held stay as they are.
func (l *Leases) SetReplicas(n int) { l.replicas.Store(int64(max(n, 1))) }

func (l *Leases) shard(key []byte) (*shard, uint64) {
	hash := maphash.Bytes(l.seed, key)
	return &l.shards[hash%shardCount], hash
}

// Len is the number of counters that are leased from, or were a moment ago.
func (l *Leases) Len() int { return int(l.held.Load()) }
