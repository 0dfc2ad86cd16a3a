package ratelimit

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/ratelimitd/ratelimitd/internal/backend/fleet"
	"github.com/ratelimitd/ratelimitd/internal/backend/lease"
	"github.com/ratelimitd/ratelimitd/internal/backend/redis"
	"github.com/ratelimitd/ratelimitd/internal/backend/redisconn"
)

const defaultTimeout = time.Second

// counters are the counters in Redis.
type counters struct {
	store  *lease.Leases
	redis  *redis.Store
	prefix string
	log    *slog.Logger
	work   []func(context.Context) error // in the background
}

// dial makes a client for a Redis.
func (r *Redis) dial(log *slog.Logger, pool int, breaker *redisconn.BreakerOptions) (goredis.UniversalClient, error) {
	client, err := redisconn.Dial(redisconn.Options{
		Type: r.Type, URL: r.URL, Auth: r.Auth, AuthFile: r.AuthFile, SentinelAuth: r.SentinelAuth,
		TLS:      redisconn.TLSOptions{Enabled: r.TLS, CACert: r.CACert, ClientCert: r.ClientCert, ClientKey: r.ClientKey},
		PoolSize: pool, Breaker: breaker, Logger: log,
	})
	if err != nil {
		return nil, fmt.Errorf("Options.Redis: %w", err)
	}
	return client, nil
}

// openRedis makes the store that counts in Redis, in the order in which the service has its parts: leases before counters.
func (l *Limiter) openRedis(o *Options) (*counters, error) {
	quiet := slog.New(slog.DiscardHandler) // the client that counts logs the same
	background, err := o.Redis.dial(quiet, 2, nil)
	if err != nil {
		return nil, err
	}
	l.closers = append(l.closers, background.Close)
	c := &counters{prefix: o.KeyPrefix, log: o.Logger}
	resets := redis.NewInvalidations(redis.InvalidationsOptions{
		Client: background, Key: o.KeyPrefix + redis.InvalidationsKey, Logger: o.Logger,
		Forget: func(key []byte, cleared bool) {
			if cleared {
				c.store.Void(key)
			}
		},
		ForgetAll: func(cleared bool) {
			if cleared {
				c.store.VoidAll()
			}
		},
	})
	client, err := o.Redis.dial(o.Logger, o.Redis.PoolSize, &redisconn.BreakerOptions{Logger: o.Logger})
	if err != nil {
		return nil, err
	}
	l.closers = append(l.closers, client.Close)
	timeout := cmp.Or(o.Redis.Timeout, defaultTimeout)
	c.redis = redis.New(redis.Options{
		Client: client, Timeout: timeout, Logger: o.Logger, LyftKeys: o.LyftKeys, LyftJitter: redis.DefaultLyftJitter, Invalidations: resets,
	})
	l.closers = append(l.closers, c.redis.Close)
	c.store = lease.New(lease.Options{Store: c.redis, Timeout: timeout})
	c.work = append(c.work, c.store.Run, resets.Run)
	return c, nil
}

// countReplicas returns the work that counts the processes which share the Redis: leases and on_error: local divide limits among them.
func (c *counters) countReplicas(changed func(n int)) func(context.Context) error {
	return fleet.New(fleet.Options{
		Beat: func(ctx context.Context, name string, lives time.Duration, leaves bool) (int, error) {
			return c.redis.Heartbeat(ctx, c.prefix+redis.ReplicasKey, name, lives, leaves)
		},
		Names: c.prefix + redis.ReplicasKey, Prefix: c.prefix, Log: c.log,
		Changed: func(n int) {
			c.store.SetReplicas(n)
			changed(n)
		},
	}).Run
}
