package assembly

import (
	"log/slog"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/ratelimitd/ratelimitd/internal/backend/redis"
	"github.com/ratelimitd/ratelimitd/internal/backend/redisconn"
	"github.com/ratelimitd/ratelimitd/internal/platform/metric"
)

// Redis has the options for reaching a Redis.
type Redis struct {
	// Client is the program's client: its address and credentials replace those of Connect. A client of an unknown type is
	// used itself. Nil uses Connect.
	Client  goredis.UniversalClient
	Connect redisconn.Options // without Breaker and Connections

	Timeout time.Duration   // longest wait for an answer
	Sharded bool            // several servers or slots are behind the address
	Metrics metric.Registry // registers the metrics of connections and breakers; nil for none
}

// Connected is a Redis that has counters.
type Connected struct {
	*redis.Store
	Settings    string // prefix of its settings' names
	Connections *redisconn.Connections
	Breakers    *redisconn.OpenBreakers
}

// Dial returns a client for a Redis, which is closed with the tasks.
func (r *Redis) Dial(tasks *Tasks, o redisconn.Options) (goredis.UniversalClient, error) {
	switch {
	case r.Client == nil:
	case redisconn.IsKnown(r.Client):
		o.Like = r.Client // a read that waits for messages must not take a connection of the program's pool
	default:
		return r.Client, nil
	}
	client, err := redisconn.Dial(o)
	if err != nil {
		return nil, err
	}
	tasks.Closing(client.Close)
	return client, nil
}

// backgroundPool is the number of connections for work that no decision waits for. One of them reads invalidations all
// the time.
const backgroundPool = 2

// shareInvalidations sends resets and refunds to the other processes that share the Redis, and applies theirs. The
// messages go through the Redis of most counters, including those for counters in the Redis for limits per second.
func (c *Counters) shareInvalidations(tasks *Tasks, o *Options) (*redis.Invalidations, error) {
	connect := o.Redis.Connect
	// the client that counts logs the same
	connect.PoolSize, connect.Logger = backgroundPool, slog.New(slog.DiscardHandler)
	client, err := o.Redis.Dial(tasks, connect)
	if err != nil {
		return nil, err
	}
	c.Shared = client
	resets := redis.NewInvalidations(redis.InvalidationsOptions{
		Client: client, Key: o.KeyPrefix + redis.InvalidationsKey, Forget: c.Forget, ForgetAll: c.ForgetAll,
		Metrics: o.Metrics, Logger: o.Logger,
	})
	tasks.Add(resets.Run)
	return resets, nil
}

// connect opens the store of one Redis.
func (c *Counters) connect(tasks *Tasks, o *Options, r *Redis, resets *redis.Invalidations) (*redis.Store, error) {
	found := &Connected{Settings: r.Connect.Settings, Connections: new(redisconn.Connections),
		Breakers: new(redisconn.OpenBreakers)}
	connect := r.Connect
	connect.Connections, connect.Lanes = found.Connections, redis.Lanes
	connect.Breaker = &redisconn.BreakerOptions{Metrics: r.Metrics, Logger: o.Logger, Opened: found.Breakers}
	client, err := r.Dial(tasks, connect)
	if err != nil {
		return nil, err
	}
	found.Store = redis.New(redis.Options{
		Client: client, Timeout: r.Timeout, Settings: r.Connect.Settings, Logger: o.Logger, KeyPrefix: o.KeyPrefix,
		Sharded: r.Sharded, Connections: found.Connections, LyftKeys: o.LyftKeys, LyftJitter: o.LyftJitter,
		Invalidations: resets,
		GaveBack:      c.GaveBack,
	})
	tasks.Closing(found.Close)
	c.Redis = append(c.Redis, found)
	return found.Store, nil
}
