package redisstore_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
	"github.com/ratelimitd/ratelimitd/ratelimit"
	"github.com/ratelimitd/ratelimitd/ratelimit/redisstore"
)

func open(t testing.TB, requests uint64, o redisstore.Options) *ratelimit.Limiter {
	t.Helper()
	l, err := ratelimit.Open(t.Context(), ratelimit.Options{
		Domains: []ratelimit.Domain{{Name: "api", Rules: []ratelimit.Rule{{Key: "customer", Limit: ratelimit.PerDay(requests)}}}},
		Store:   redisstore.New(o), Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// connections returns the names of the connections to a Redis, without the one that asks. The tests' own have a name.
func connections(t *testing.T, r *redistest.Server) (all []string) {
	t.Helper()
	own := r.Client(t)
	list, err := own.ClientList(t.Context()).Result()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(list) {
		if !strings.Contains(line, "cmd=client|list") {
			all = append(all, line)
		}
	}
	return all
}

// A program's client has one connection, which stays the program's: limiters have their own, and close them.
func TestPoolOfOne(t *testing.T) {
	r := redistest.Start(t)
	own := goredis.NewClient(&goredis.Options{Addr: r.Addr, PoolSize: 1, ClientName: "own", Protocol: 2})
	defer func() { _ = own.Close() }()
	ping := func() {
		t.Helper()
		if err := own.Ping(t.Context()).Err(); err != nil {
			t.Errorf("the program's client fails: %v", err)
		}
	}
	ping()
	var all []*ratelimit.Limiter
	for range 3 {
		all = append(all, open(t, 2, redisstore.Options{Client: own, Timeout: 10 * time.Second, Overrides: true}))
	}
	var allowed []bool
	for _, l := range all { // the counters are in Redis
		ok, err := l.Allow(t.Context(), "api", "customer", "a")
		if err != nil {
			t.Fatal(err)
		}
		allowed = append(allowed, ok)
		ping()
	}
	if !allowed[0] || !allowed[1] || allowed[2] {
		t.Errorf("three requests of two a day: %v", allowed)
	}
	if s := own.PoolStats(); s.TotalConns != 1 || s.WaitCount > 0 || s.Timeouts > 0 {
		t.Errorf("the program's pool: %+v", s)
	}
	for _, l := range all {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}
	ping()
	redistest.Eventually(t, "the end of the limiters' connections", func(context.Context) error {
		for _, line := range connections(t, r) {
			if !strings.Contains(line, "name=own") {
				return errors.New(line)
			}
		}
		return nil
	})
}

// Decisions obey deadlines even if the client ignores them.
func TestClientWithoutDeadlines(t *testing.T) {
	r := redistest.Start(t)
	own := goredis.NewClient(&goredis.Options{Addr: r.Addr, Protocol: 2, ReadTimeout: time.Hour})
	defer func() { _ = own.Close() }()
	l := open(t, 2, redisstore.Options{Client: own, Timeout: 200 * time.Millisecond})
	defer func() { _ = l.Close() }()
	redistest.Eventually(t, "a decision", func(ctx context.Context) error {
		_, err := l.Allow(ctx, "api", "customer", "a")
		return err
	})
	r.Pause(t)
	defer r.Continue(t)
	begin := time.Now()
	ok, err := l.Allow(t.Context(), "api", "customer", "b")
	if took := time.Since(begin); ok || err == nil || took > 10*time.Second {
		t.Errorf("%t, %v after %s", ok, err, took)
	}
}

// Users, passwords, databases, TLS, dialers, sentinels and clusters of a client are those of the limiter.
func TestConnectsAsTheClient(t *testing.T) {
	ca := redistest.NewCA(t)
	secure := redistest.StartWith(t, redistest.Setup{TLS: ca.Server(ca.Issue(t, "127.0.0.1"), false), Password: "secret"})
	plain := redistest.Start(t, "--requirepass", "secret")
	watched, cluster := redistest.StartWatched(t, redistest.Setup{}), redistest.StartCluster(t, redistest.Setup{})
	pem, err := os.ReadFile(ca.File)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
	var sentinels []string
	for _, s := range watched.Sentinels {
		sentinels = append(sentinels, s.Addr)
	}
	for name, client := range map[string]goredis.UniversalClient{
		"TLS":      goredis.NewClient(&goredis.Options{Addr: secure.Addr, Password: "secret", TLSConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}}),
		"database": goredis.NewClient(&goredis.Options{Addr: plain.Addr, Username: "default", Password: "secret", DB: 3}),
		"a function for the password": goredis.NewClient(&goredis.Options{Addr: plain.Addr, CredentialsProviderContext: func(context.Context) (string, string, error) {
			return "", "secret", nil
		}}),
		"a dialer that hides the socket": goredis.NewClient(&goredis.Options{Addr: "nowhere:1", Password: "secret", Dialer: func(ctx context.Context, _, _ string) (net.Conn, error) {
			c, err := new(net.Dialer).DialContext(ctx, "tcp", plain.Addr)
			return struct{ net.Conn }{c}, err
		}}),
		"sentinels": goredis.NewFailoverClient(&goredis.FailoverOptions{MasterName: watched.Name, SentinelAddrs: sentinels}),
		"cluster":   goredis.NewClusterClient(&goredis.ClusterOptions{Addrs: cluster.Addrs()}),
	} {
		t.Run(name, func(t *testing.T) {
			defer func() { _ = client.Close() }()
			l := open(t, 2, redisstore.Options{Client: client, Timeout: 10 * time.Second})
			var allowed []bool
			for range 3 {
				ok, err := l.Allow(t.Context(), "api", "customer", name)
				if err != nil {
					t.Fatal(err)
				}
				allowed = append(allowed, ok)
			}
			if !allowed[0] || !allowed[1] || allowed[2] {
				t.Errorf("three requests of two a day: %v", allowed)
			}
			if err := l.Close(); err != nil {
				t.Error(err)
			}
			if n := client.PoolStats().TotalConns; n > 0 && name != "sentinels" && name != "cluster" {
				t.Errorf("the program's pool has %d connections", n)
			}
		})
	}
}

func TestClientsThatCannotBeUsed(t *testing.T) {
	ring := goredis.NewRing(&goredis.RingOptions{})
	defer func() { _ = ring.Close() }()
	for want, o := range map[string]redisstore.Options{
		"Ring":               {Client: ring},
		"a Client and a URL": {Client: goredis.NewClient(&goredis.Options{}), URL: "localhost:1"},
	} {
		_, err := ratelimit.Open(t.Context(), ratelimit.Options{Domains: []ratelimit.Domain{{Name: "api"}}, Store: redisstore.New(o)})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// A limiter that decides nothing has few goroutines.
func TestGoroutines(t *testing.T) {
	r := redistest.Start(t)
	before := runtime.NumGoroutine()
	l := open(t, 100, redisstore.Options{URL: r.Addr, Timeout: 10 * time.Second})
	defer func() { _ = l.Close() }()
	for range 5 {
		if _, err := l.Allow(t.Context(), "api", "customer", "a"); err != nil {
			t.Fatal(err)
		}
	}
	redistest.Eventually(t, "at most six goroutines", func(context.Context) error {
		if n := runtime.NumGoroutine() - before; n > 6 {
			stacks := make([]byte, 1<<20)
			return fmt.Errorf("%d goroutines:\n%s", n, stacks[:runtime.Stack(stacks, true)])
		}
		return nil
	})
}
