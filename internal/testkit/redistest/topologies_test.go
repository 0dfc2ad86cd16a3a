package redistest_test

import (
	"crypto/tls"
	"crypto/x509"
	"net"
	"os"
	"strings"
	"testing"

	goredis "github.com/redis/go-redis/v9"

	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
)

func TestTLS(t *testing.T) {
	ca := redistest.NewCA(t)
	s := redistest.StartWith(t, redistest.Setup{
		TLS:      ca.Server(ca.Issue(t, "127.0.0.1", "localhost"), true),
		Password: "s3cret",
	})
	pem, err := os.ReadFile(ca.File)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
	ask := func(certificates ...tls.Certificate) error {
		c := goredis.NewClient(&goredis.Options{Addr: s.Addr, Password: "s3cret", MaxRetries: -1, DialerRetries: 1,
			TLSConfig: &tls.Config{RootCAs: roots, Certificates: certificates, MinVersion: tls.VersionTLS12}})
		defer func() { _ = c.Close() }()
		return c.Ping(t.Context()).Err()
	}
	if err := ask(); err == nil {
		t.Error("a client without a certificate was let in")
	}
	p := ca.Issue(t, "client")
	pair, err := tls.LoadX509KeyPair(p.Cert, p.Key)
	if err != nil {
		t.Fatal(err)
	}
	if err := ask(pair); err != nil {
		t.Error(err)
	}
	if err := s.Client(t).Ping(t.Context()).Err(); err != nil {
		t.Errorf("over the unix socket: %v", err)
	}
}

func TestWatched(t *testing.T) {
	t.Parallel()
	ca := redistest.NewCA(t)
	for name, setup := range map[string]redistest.Setup{
		"plain": {},
		"secure": {TLS: ca.Server(ca.Issue(t, "127.0.0.1"), true), Password: "s3cret", SentinelPassword: "other",
			Args: []string{"--maxmemory", "100mb"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := redistest.StartWatched(t, setup)
			first := w.Primary(t)
			if first != w.Servers[0] || len(w.Sentinels) != 3 || len(w.Servers) != 2 {
				t.Fatalf("%+v", w)
			}
			if err := first.Client(t).Set(t.Context(), "a", "1", 0).Err(); err != nil {
				t.Fatal(err)
			}
			if n, err := first.Client(t).Wait(t.Context(), 1, 0).Result(); n != 1 || err != nil {
				t.Fatal(n, err)
			}
			second := w.Failover(t)
			if second != w.Servers[1] {
				t.Fatalf("%+v", second)
			}
			if v := second.Client(t).Get(t.Context(), "a").Val(); v != "1" {
				t.Errorf("after a failover: %q", v)
			}
			w.Await(t)
			second.Kill(t)
			if third := w.AwaitOther(t, second); third != first {
				t.Fatalf("%+v", third)
			}
			second.Restart(t)
			w.Await(t)
			if err := second.Client(t).Set(t.Context(), "a", "2", 0).Err(); err == nil || !strings.Contains(err.Error(), "READONLY") {
				t.Errorf("the former primary takes writes: %v", err)
			}
			w.Sentinels[0].Kill(t)
			w.Sentinels[0].Restart(t)
			w.Await(t)
		})
	}
}

func TestCluster(t *testing.T) {
	t.Parallel()
	ca := redistest.NewCA(t)
	for name, setup := range map[string]redistest.Setup{
		"plain":  {},
		"secure": {TLS: ca.Server(ca.Issue(t, "127.0.0.1"), true), Password: "s3cret"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx := t.Context()
			c := redistest.StartCluster(t, setup)
			slot := c.Slot(t, "a")
			if slot != 15495 || c.Primary(t, slot) != c.Nodes[2] || len(c.Addrs()) != 6 {
				t.Fatalf("%d %+v", slot, c)
			}

			// A slot moves.
			to := c.Nodes[0]
			from := c.Primary(t, slot)
			for _, key := range []string{"a", "{a}1"} {
				if err := from.Client(t).Set(ctx, key, "1", 0).Err(); err != nil {
					t.Fatal(err)
				}
			}
			m := c.Migrate(t, slot, to)
			if n := m.MoveKeys(t, 1); n != 1 {
				t.Fatalf("moved %d", n)
			}
			asked := 0
			for _, key := range []string{"a", "{a}1", "{a}2"} {
				if err := from.Client(t).Get(ctx, key).Err(); err != nil && strings.HasPrefix(err.Error(), "ASK ") {
					asked++
				}
			}
			if asked != 2 {
				t.Errorf("asked to try the target for %d of 2 keys", asked)
			}
			m.Finish(t)
			if c.Primary(t, slot) != to {
				t.Fatal("the slot did not move")
			}
			if v := to.Client(t).Get(ctx, "{a}1").Val(); v != "1" {
				t.Errorf("after the migration: %q", v)
			}

			// Its primary hands over in good order, dies, and hangs.
			replica := c.Replicas(t, to)[0]
			c.Failover(t, replica)
			if c.Primary(t, slot) != replica {
				t.Fatal("the replica did not become primary")
			}
			replica.Kill(t)
			c.Await(t)
			if c.Primary(t, slot) != to {
				t.Fatal("no replica took over from a dead primary")
			}
			replica.Restart(t)
			c.Await(t)
			to.Pause(t)
			c.Await(t)
			to.Continue(t)
			c.Await(t)
			if c.Primary(t, slot) != replica {
				t.Fatal("no replica took over from a paused primary")
			}
		})
	}
}

func TestEnd(t *testing.T) {
	var all []*redistest.Server
	t.Run("", func(t *testing.T) {
		w := redistest.StartWatched(t, redistest.Setup{})
		all = append(append(all, w.Servers...), w.Sentinels...)
		all[0].Pause(t)
	})
	for _, s := range all {
		if _, err := net.Dial("tcp", s.Addr); err == nil {
			t.Error("a server outlives its test")
		}
		if _, err := os.Stat(s.Dir); !os.IsNotExist(err) {
			t.Errorf("a directory outlives its test: %v", err)
		}
	}
}
