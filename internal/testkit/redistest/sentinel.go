package redistest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// Watched is a primary and its replicas, and the sentinels that monitor them.
type Watched struct {
	Name      string    // name of the primary, as the sentinels know it
	Servers   []*Server // the first one is the initial primary
	Sentinels []*Server
}

const (
	// downAfter is the time without an answer after which a sentinel considers a server dead. It pings once a second: with
	// less than two, one slow answer would cause a failover.
	downAfter       = 2 * time.Second
	failoverTimeout = 2 * time.Second // a failover that failed is tried again after twice this time
)

// StartWatched starts a primary with a replica, and three sentinels with a quorum of two. It returns when all of them
// know each other and the replica has the primary's data.
func StartWatched(t testing.TB, setup Setup) *Watched {
	t.Helper()
	primary := StartWith(t, setup)
	h, p, _ := net.SplitHostPort(primary.Addr)
	replica := setup
	replica.Args = append([]string{"--replicaof", h + " " + p}, setup.Args...)
	w := &Watched{Name: "counters", Servers: []*Server{primary, StartWith(t, replica)}}
	await(t, "the replica to have the primary's data", w.Servers[1].hasData)
	for range 3 {
		w.Sentinels = append(w.Sentinels, start(t, sentinel, setup.SentinelPassword, func(s *Server, port string) []string {
			return []string{w.configure(t, s, port, &setup), "--sentinel"}
		}))
	}
	w.Await(t)
	return w
}

// configure writes a sentinel's configuration, unless it exists: the sentinel keeps its state in that file.
func (w *Watched) configure(t testing.TB, s *Server, port string, setup *Setup) string {
	file := filepath.Join(s.Dir, "sentinel-"+port+".conf")
	if _, err := os.Stat(file); err == nil {
		return file
	}
	var b strings.Builder
	line := func(words ...string) { fmt.Fprintln(&b, strings.Join(words, " ")) }
	if setup.TLS == nil {
		line("port", port)
	} else {
		for _, c := range setup.TLS.config(port) {
			line(c[0], c[1])
		}
	}
	h, p, _ := net.SplitHostPort(w.Servers[0].Addr)
	line("sentinel monitor", w.Name, h, p, "2")
	line("sentinel down-after-milliseconds", w.Name, strconv.FormatInt(downAfter.Milliseconds(), 10))
	line("sentinel failover-timeout", w.Name, strconv.FormatInt(failoverTimeout.Milliseconds(), 10))
	if setup.Password != "" {
		line("sentinel auth-pass", w.Name, strconv.Quote(setup.Password))
	}
	if setup.SentinelPassword != "" {
		line("requirepass", strconv.Quote(setup.SentinelPassword))
		line("sentinel sentinel-pass", strconv.Quote(setup.SentinelPassword))
	}
	if err := os.WriteFile(file, []byte(b.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func (s *Server) hasData(ctx context.Context) error {
	return s.expect(ctx, "master_link_status", "up", "info", "replication")
}

// URL is the address for clients: the primary's name, then the sentinels.
func (w *Watched) URL() string {
	parts := []string{w.Name}
	for _, s := range w.Sentinels {
		parts = append(parts, s.Addr)
	}
	return strings.Join(parts, ",")
}

// Primary returns the primary, once the running sentinels agree on it.
func (w *Watched) Primary(t testing.TB) *Server {
	t.Helper()
	var primary *Server
	await(t, "the sentinels to agree on a primary", func(ctx context.Context) (err error) {
		primary, err = w.primary(ctx)
		return err
	})
	return primary
}

func (w *Watched) primary(ctx context.Context) (*Server, error) {
	agreed := ""
	for _, s := range w.Sentinels {
		if !s.up() {
			continue
		}
		a, err := s.admin.Do(ctx, "sentinel", "get-master-addr-by-name", w.Name).StringSlice()
		if err != nil {
			return nil, err
		}
		addr := net.JoinHostPort(a[0], a[1])
		if agreed != "" && addr != agreed {
			return nil, fmt.Errorf("one sentinel answers %s, another %s", agreed, addr)
		}
		agreed = addr
	}
	for _, s := range w.Servers {
		if s.Addr == agreed {
			return s, nil
		}
	}
	return nil, fmt.Errorf("the sentinels answer %q, which is none of the servers", agreed)
}

// Await returns when all running servers and sentinels know each other, a running server is primary, and the other
// running servers have its data. A server that was killed or paused is not primary any more by then.
func (w *Watched) Await(t testing.TB) {
	t.Helper()
	await(t, "the servers and sentinels to agree", func(ctx context.Context) error {
		primary, err := w.primary(ctx)
		if err != nil {
			return err
		}
		for _, s := range w.Servers {
			switch {
			case s == primary && !s.up():
				err = fmt.Errorf("the sentinels consider %s the primary, which does not run", s.Addr)
			case s == primary:
				err = s.expect(ctx, "role", "master", "info", "replication")
			case s.up():
				err = s.hasData(ctx)
			}
			if err != nil {
				return err
			}
		}
		for _, s := range w.Sentinels {
			if !s.up() {
				continue
			}
			state, err := s.master(ctx, w.Name)
			if err != nil {
				return err
			}
			if state["num-slaves"] != strconv.Itoa(len(w.Servers)-1) ||
				state["num-other-sentinels"] != strconv.Itoa(len(w.Sentinels)-1) ||
				state["flags"] != "master" {
				return fmt.Errorf("the sentinel on %s sees %s replicas and %s other sentinels, and the primary as %s",
					s.Addr, state["num-slaves"], state["num-other-sentinels"], state["flags"])
			}
		}
		return nil
	})
}

func (s *Server) master(ctx context.Context, name string) (map[string]string, error) {
	pairs, err := s.admin.Do(ctx, "sentinel", "master", name).StringSlice()
	if err != nil {
		return nil, err
	}
	state := make(map[string]string)
	for p := range slices.Chunk(pairs, 2) {
		state[p[0]] = p[1]
	}
	return state, nil
}

// Failover starts a planned failover, in which the sentinels promote a replica, and returns the new primary when the
// running ones agree on it. The former primary takes writes for another ten seconds, until the sentinels reconfigure
// it; Await waits for that too.
func (w *Watched) Failover(t testing.TB) *Server {
	t.Helper()
	old := w.Primary(t)
	asked := slices.IndexFunc(w.Sentinels, (*Server).up)
	if asked < 0 {
		t.Fatal("no sentinel runs")
	}
	// A sentinel rejects the command until it has seen a good replica.
	await(t, "the sentinel to begin a failover", func(ctx context.Context) error {
		return w.Sentinels[asked].admin.Do(ctx, "sentinel", "failover", w.Name).Err()
	})
	return w.AwaitOther(t, old)
}

// AwaitOther returns the new primary, when the running sentinels agree on one that is not old.
func (w *Watched) AwaitOther(t testing.TB, old *Server) *Server {
	t.Helper()
	var primary *Server
	await(t, "another primary", func(ctx context.Context) (err error) {
		if primary, err = w.primary(ctx); err != nil {
			return err
		}
		if primary == old {
			return errors.New("it is still " + old.Addr)
		}
		return primary.expect(ctx, "role", "master", "info", "replication")
	})
	return primary
}
