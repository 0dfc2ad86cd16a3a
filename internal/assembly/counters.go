package assembly

import (
	"log/slog"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/backend/memory"
	"github.com/ratelimitd/ratelimitd/internal/backend/overlimit"
	"github.com/ratelimitd/ratelimitd/internal/backend/redis"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/lending/lease"
	"github.com/ratelimitd/ratelimitd/internal/platform/metric"
)

// Options configure the counters of a process.
type Options struct {
	MaxCounters int // the most counters in memory; default memory.DefaultMaxCounters

	Redis     *Redis // Redis for counters; nil for counters in memory
	PerSecond *Redis // second Redis, for limits per second; nil if Redis counts them too

	KeyPrefix  string        // prefix of all keys in Redis
	LyftKeys   bool          // use the keys of envoyproxy/ratelimit in Redis
	LyftJitter time.Duration // the longest random time that they outlive their windows

	DenialBytes int // size of the denial cache; 0 disables it

	Regions func(here backend.Store) (Regions, error) // see Layers

	Metrics metric.Registry // nil for no metrics
	Logger  *slog.Logger    // default slog.Default()
}

// Counters are the counters of a process, as its limiter needs them.
type Counters struct {
	Chain
	// Local counts for on_error: local. It is nil if counters are in memory: a second store would not help when that is
	// full.
	Local  backend.Store
	Keys   descriptor.KeyBuilder // builds the keys of counters
	Redis  []*Connected          // the Redis with the counters
	Caches []Cache               // caches of this process
	// Shared reaches Options.Redis for background work that no decision waits for. It is nil if counters are in memory.
	Shared goredis.UniversalClient

	replicas replicas
	prefix   string
	log      *slog.Logger
}

// Cache is something of which a process keeps many in memory.
type Cache struct {
	Name string
	Len  func() int
}

// Open opens the counters. Their background work and their connections become tasks. Nothing is connected yet.
func Open(tasks *Tasks, o Options) (*Counters, error) {
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	c := &Counters{Keys: descriptor.KeyBuilder{Prefix: o.KeyPrefix}, prefix: o.KeyPrefix, log: o.Logger}
	layers := Layers{Regions: o.Regions}
	if o.DenialBytes > 0 {
		layers.Denials = &overlimit.Options{Bytes: o.DenialBytes, Metrics: o.Metrics}
	}
	var counts backend.Store
	if o.Redis == nil {
		counts = c.openMemory(tasks, &o)
	} else {
		invalidations, err := c.shareInvalidations(tasks, &o)
		if err != nil {
			return nil, err
		}
		if counts, err = c.openRedis(tasks, &o, invalidations); err != nil {
			return nil, err
		}
		if layers.Denials != nil {
			layers.Denials.Refunded = invalidations.Refunded
		}
		layers.Leases = &lease.Options{Timeout: o.longestAnswer(), Metrics: o.Metrics}
	}
	if err := c.Put(counts, layers); err != nil {
		return nil, err
	}
	if c.Denials != nil {
		c.Caches = append(c.Caches, Cache{"denial cache", c.Denials.Len})
	}
	if c.Leases != nil {
		c.Caches = append(c.Caches, Cache{"leases", c.Leases.Len})
		tasks.Add(c.Leases.Run)
	}
	return c, nil
}

// openMemory returns a store that counts in memory.
func (c *Counters) openMemory(tasks *Tasks, o *Options) backend.Store {
	store := memory.New(memory.Options{MaxCounters: o.MaxCounters, Metrics: o.Metrics})
	tasks.Add(store.Run)
	c.Caches = append(c.Caches, Cache{"counters in memory", store.Len})
	return store
}

// openRedis returns a store that counts in Redis, and sets the one in memory for on_error: local.
func (c *Counters) openRedis(tasks *Tasks, o *Options, resets *redis.Invalidations) (backend.Store, error) {
	if o.LyftKeys {
		c.Keys.Format = descriptor.KeysLyft
	}
	local := memory.New(memory.Options{MaxCounters: o.MaxCounters})
	c.Local = &onDemand{Store: local, begin: tasks.OnDemand(local.Run)}
	c.replicas.register(o)
	store, err := c.connect(tasks, o, o.Redis, resets)
	if err != nil || o.PerSecond == nil {
		return store, err
	}
	perSecond, err := c.connect(tasks, o, o.PerSecond, resets)
	if err != nil {
		return nil, err
	}
	return &redis.Pair{PerSecond: perSecond, Other: store, GaveBack: c.GaveBack}, nil
}

// longestAnswer returns the longest time that a take waits for Redis.
func (o *Options) longestAnswer() time.Duration {
	if o.PerSecond == nil {
		return o.Redis.Timeout
	}
	return max(o.Redis.Timeout, o.PerSecond.Timeout)
}
