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
	// number of replicas that lease from the same counters, until SetReplicas. Too low a number wastes permits, but never
	// exceeds a limit. Default 1
	Replicas int

	// Timeout is the longest time that the backend takes to answer. A take that waits for another take's acquisition and
	// then for its own answer still ends within it. By default, only the deadline of the request applies.
	Timeout time.Duration

	Far *Far // set if the store is in another region, see far.go; requires Timeout

	// maximum number of leased counters; the backend counts the others. Default 10,000
	MaxLeases int

	// ReturnWithin bounds the delay of a refund: later, the backend no longer carries it out. Permits are returned only if
	// that is right even at the end of this time. Default 1 min.
	ReturnWithin time.Duration

	SweepInterval time.Duration // how often Run looks for unused leases; default 250 ms
	StopTimeout   time.Duration // longest time to return all permits when Run ends; default 1 s

	Metrics metric.Registry // nil disables metrics
}

// Leases answers takes from permits acquired earlier, and forwards the other takes to the backend.
type Leases struct {
	opts   Options
	seed   maphash.Seed
	shards [shardCount]shard
	held   atomic.Int64 // counters in all shards

	replicas atomic.Int64
	timers   timers

	asking sync.WaitGroup // questions for permits of far counters

	closed atomic.Bool // set when Run has ended: nothing is leased any more
	calls  sync.Pool   // *forwarded
	counts counts
}

type shard struct {
	mu sync.Mutex
	// counters by key; `lease` is the same in all rules of a counter, but their limits may differ
	counters map[string]*hotCounter
	heat     [heatSlots]heat
}

// New returns Leases that hold nothing yet. Run returns unused permits.
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

// SetReplicas sets the number of replicas that lease from the same counters. It does not change existing leases.
func (l *Leases) SetReplicas(n int) { l.replicas.Store(int64(max(n, 1))) }

func (l *Leases) shard(key []byte) (*shard, uint64) {
	hash := maphash.Bytes(l.seed, key)
	return &l.shards[hash%shardCount], hash
}

// Len returns the number of counters with a lease, or with one a moment ago.
func (l *Leases) Len() int { return int(l.held.Load()) }
