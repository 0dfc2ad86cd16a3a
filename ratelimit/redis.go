package ratelimit

import (
	"cmp"
	"errors"
	"log/slog"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/ratelimitd/ratelimitd/internal/assembly"
	"github.com/ratelimitd/ratelimitd/internal/backend/redisconn"
)

const defaultTimeout = time.Second

// open says how to reach the Redis, or why it cannot be used.
func (r *Redis) open(log *slog.Logger) (*assembly.Redis, error) {
	if r.Client != nil {
		if r.URL != "" {
			return nil, errors.New("Options.Redis has a Client and a URL: set one of them")
		}
		if err := usable(r.Client); err != nil {
			return nil, err
		}
	}
	return &assembly.Redis{
		Client: r.Client,
		Connect: redisconn.Options{
			Type: string(r.Type), URL: r.URL, Auth: r.Auth, AuthFile: r.AuthFile, SentinelAuth: r.SentinelAuth,
			TLS:      redisconn.TLSOptions{Enabled: r.TLS, CACert: r.CACert, ClientCert: r.ClientCert, ClientKey: r.ClientKey},
			PoolSize: r.PoolSize, Logger: log,
		},
		Timeout: cmp.Or(r.Timeout, defaultTimeout),
	}, nil
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
