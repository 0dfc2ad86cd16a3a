package ratelimit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/ratelimitd/ratelimitd/internal/backend/fleet"
	"github.com/ratelimitd/ratelimitd/internal/backend/redis"
	"github.com/ratelimitd/ratelimitd/internal/backend/redisconn"
	"github.com/ratelimitd/ratelimitd/internal/lending/lease"
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

// dial returns a client for a Redis, which the limiter closes unless it is the program's own.
func (l *Limiter) dial(
	r *Redis, log *slog.Logger, pool int, breaker *redisconn.BreakerOptions, made *redisconn.Connections,
) (goredis.UniversalClient, error) {
	if r.Client != nil {
		if r.URL != "" {
			return nil, errors.New("Options.Redis has a Client and a URL: set one of them")
		}
		return r.Client, usable(r.Client)
	}
	client, err := redisconn.Dial(redisconn.Options{
		Type: string(r.Type), URL: r.URL, Auth: r.Auth, AuthFile: r.AuthFile, SentinelAuth: r.SentinelAuth,
		TLS:      redisconn.TLSOptions{Enabled: r.TLS, CACert: r.CACert, ClientCert: r.ClientCert, ClientKey: r.ClientKey},
		PoolSize: pool, Breaker: breaker, Connections: made, Logger: log,
	})
	if err != nil {
		return nil, fmt.Errorf("Options.Redis: %w", err)
	}
	l.closers = append(l.closers, client.Close)
	return client, nil
}

// usable returns why a client of the program cannot be used.
func usable(client goredis.UniversalClient) error {
	obeysDeadlines := true // as a type of the program has to
	switch c := client.(type) {
	case *goredis.Client:
		obeysDeadlines = c.Options().ContextTimeoutEnabled
	case *goredis.ClusterClient:
		obeysDeadlines = c.Options().ContextTimeoutEnabled
	case *goredis.Ring:
		return errors.New("Options.Redis.Client is a Ring, which is not supported: use a cluster")
	}
	if !obeysDeadlines {
		return errors.New("Options.Redis.Client must have ContextTimeoutEnabled: without it a decision could outlast its deadline")
	}
	return nil
}

// openRedis makes the store that counts in Redis, with its parts in the same order as in the service: leases in front
// of counters.
func (l *Limiter) openRedis(o *Options) (*counters, error) {
	quiet := slog.New(slog.DiscardHandler) // the client that counts logs the same
	background, err := l.dial(o.Redis, quiet, 2, nil, nil)
	if err != nil {
		return nil, err
	}
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
	made := new(redisconn.Connections)
	client, err := l.dial(o.Redis, o.Logger, o.Redis.PoolSize, &redisconn.BreakerOptions{Logger: o.Logger}, made)
	if err != nil {
		return nil, err
	}
	timeout := cmp.Or(o.Redis.Timeout, defaultTimeout)
	c.redis = redis.New(redis.Options{
		Client: client, Timeout: timeout, Logger: o.Logger, KeyPrefix: o.KeyPrefix, LyftKeys: o.LyftKeys, LyftJitter: redis.DefaultLyftJitter, Invalidations: resets,
		Connections: made,
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
