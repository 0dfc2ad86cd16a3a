package redis_test

import (
	"crypto/tls"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/ratelimitd/ratelimitd/internal/backend/redis"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/redistest"
)

func TestDialReaches(t *testing.T) {
	s := redistest.Start(t, "--requirepass", "s3cret:with:colons",
		"--user", "counter", "on", ">pass:word", "~*", "+@all")
	for name, opts := range map[string]redis.DialOptions{
		"host and port, password":   {URL: s.Addr, Auth: ":s3cret:with:colons"},
		"host and port, user":       {URL: s.Addr, Auth: "counter:pass:word"},
		"unix path":                 {URL: s.Socket, Auth: "counter:pass:word"},
		"unix path, said":           {URL: s.Socket, Network: "unix", Auth: "counter:pass:word"},
		"URL":                       {URL: "redis://counter:pass:word@" + s.Addr + "/0"},
		"URL, other credentials":    {URL: "redis://counter:wrong@" + s.Addr, Auth: "counter:pass:word"},
		"URL of a unix socket":      {URL: "unix://counter:pass:word@" + s.Socket},
		"host and port, tcp, sizes": {URL: s.Addr, Network: "tcp", Auth: "counter:pass:word", PoolSize: 1, DialTimeout: patience},
	} {
		t.Run(name, func(t *testing.T) {
			client, err := redis.Dial(opts)
			if err != nil {
				t.Fatal(err)
			}
			defer client.Close()
			store := redis.New(redis.Options{Client: client, Timeout: patience})
			if err := store.Ping(t.Context()); err != nil {
				t.Fatal(err)
			}
			if o := mustTake(t, store, name, limit(1, descriptor.Year), 1); !o.Allowed {
				t.Errorf("%+v", o)
			}
		})
	}

	client, err := redis.Dial(redis.DialOptions{URL: s.Addr, Auth: "wrong"})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if err := redis.New(redis.Options{Client: client, Timeout: patience}).Ping(t.Context()); err == nil || !strings.Contains(err.Error(), "WRONGPASS") {
		t.Errorf("with a wrong password: %v", err)
	}
}

func TestDialRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		opts redis.DialOptions
		want string
	}{
		"nothing":             {redis.DialOptions{}, "empty"},
		"another scheme":      {redis.DialOptions{URL: "http://localhost"}, "scheme"},
		"another socket type": {redis.DialOptions{URL: "localhost:1", Network: "udp"}, "socket type"},
		"a contradiction":     {redis.DialOptions{URL: "redis://localhost:1", Network: "unix"}, "tcp"},
	} {
		if client, err := redis.Dial(c.opts); err == nil || !strings.Contains(err.Error(), c.want) || client != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestDialSettings pins what the failure contract stands on.
func TestDialSettings(t *testing.T) {
	config := &tls.Config{ServerName: "redis.example"}
	client, err := redis.Dial(redis.DialOptions{URL: "localhost:1", Auth: "only-a-password", TLS: config, PoolSize: 3, DialTimeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	o := client.(*goredis.Client).Options()
	if o.MaxRetries != 0 || !o.ContextTimeoutEnabled || o.PoolSize != 3 || o.DialTimeout != time.Minute || o.TLSConfig != config ||
		o.Username != "" || o.Password != "only-a-password" {
		t.Errorf("%+v", o)
	}
	plain, err := redis.Dial(redis.DialOptions{URL: "rediss://redis.example:1"})
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	if o := plain.(*goredis.Client).Options(); o.TLSConfig == nil || o.TLSConfig.ServerName != "redis.example" || o.PoolSize != 64 {
		t.Errorf("%+v", o)
	}
}
