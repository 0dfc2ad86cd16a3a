package redis_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/backend/redis"
	"github.com/ratelimitd/ratelimitd/internal/backend/redisconn"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/testkit/backendtest"
	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
)

// layouts are addresses with different things behind them.
var layouts = map[string]struct {
	servers int
	start   func(t testing.TB, args ...string) *redistest.Server
	proxy   func(t testing.TB, servers ...*redistest.Server) (address string) // may be nil
	// whether scripts get the keys of one counter, and the log reports it once
	apart bool
}{
	"twemproxy":                   {2, redistest.Start, redistest.Twemproxy, true},
	"twemproxy with one server":   {1, redistest.Start, redistest.Twemproxy, true},
	"redis_proxy":                 {2, redistest.Start, redistest.RedisProxy, true},
	"redis_proxy with one server": {1, redistest.Start, redistest.RedisProxy, true},
	"a cluster of one shard":      {1, redistest.OneShard, nil, true},
	"a plain Redis":               {1, redistest.Start, nil, false},
}

// forEachLayout runs a test with a client of each of the addresses.
func forEachLayout(t *testing.T, test func(t *testing.T, opts redis.Options, servers []*redistest.Server, apart bool, log *logged)) {
	for name, l := range layouts {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var servers []*redistest.Server
			for range l.servers {
				servers = append(servers, l.start(t))
			}
			address := servers[0].Addr
			if l.proxy != nil {
				address = l.proxy(t, servers...)
			}
			log := new(logged)
			opts := redis.Options{Timeout: 10 * time.Second, Logger: slog.New(slog.NewTextHandler(log, nil))}
			opts.Client = connect(t, redisconn.Options{URL: address, DialTimeout: 10 * time.Second})
			test(t, opts, servers, l.apart, log)
		})
	}
}

// logged is a writer that keeps the log.
type logged struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logged) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func (l *logged) count(text string) int { return strings.Count(l.text(), text) }

// From the first call on, regardless of which requests share a call, each limit allows exactly its hits in every
// layout.
func TestLayoutsAreExact(t *testing.T) {
	const values, callers, each, requests = 6, 16, 8, 20
	forEachLayout(t, func(t *testing.T, opts redis.Options, _ []*redistest.Server, apart bool, log *logged) {
		opts.LyftKeys, opts.LyftJitter = true, time.Hour
		s := redis.New(opts) // no Ping: the first takes are sent before the layout is known
		t.Cleanup(func() { _ = s.Close() })
		algorithms := backendtest.EveryAlgorithm(requests)
		algorithms["lyft"] = limit(requests, descriptor.Year)
		for _, name := range slices.Sorted(maps.Keys(algorithms)) {
			l := algorithms[name]
			var admitted [values]atomic.Int64
			var wg sync.WaitGroup
			for c := range callers {
				wg.Go(func() {
					for i := range each * values {
						v := (i + c) % values
						r := take(fmt.Sprintf("%s%d", name, v), l, 1)
						if name == "lyft" {
							r = lyftTake(fmt.Sprint(v), l, 1)
						}
						if err := backend.Await(t.Context(), s, time.Now(), r); err != nil {
							t.Error(err)
						} else if r.Outcomes[0].Allowed {
							admitted[v].Add(1)
						}
					}
				})
			}
			wg.Wait()
			for v := range admitted {
				if n := admitted[v].Load(); n != requests {
					t.Errorf("%s: %d of %d admitted, the limit is %d", name, n, callers*each, requests)
				}
			}
		}
		if err := s.Ping(t.Context()); err != nil {
			t.Errorf("health: %v", err)
		}
		if n := log.count("several servers or slots"); apart && n != 1 || !apart && n != 0 {
			t.Errorf("the log says %d times what is behind the address:\n%s", n, log.text())
		}
	})
}

// No hit is lost, and requests of several limits count all of them or none.
func TestLayoutsLoseNoHits(t *testing.T) {
	const values, callers, each = 6, 8, 20
	forEachLayout(t, func(t *testing.T, opts redis.Options, _ []*redistest.Server, _ bool, _ *logged) {
		s := redis.New(opts)
		t.Cleanup(func() { _ = s.Close() })
		l, small := limit(1000, descriptor.Year), limit(values*callers*each/4, descriptor.Year)
		var passed [values]atomic.Int64
		var wg sync.WaitGroup
		for c := range callers {
			wg.Go(func() {
				for i := range each * values {
					v := (i + c) % values
					r := &backend.Request{Together: true, Outcomes: make([]backend.Outcome, 2), Takes: []backend.Take{
						{Key: fmt.Appendf(nil, "k%d", v), Limit: l, Hits: 1}, {Key: []byte("all"), Limit: small, Hits: 1, Member: 1},
					}}
					if err := backend.Await(t.Context(), s, time.Now(), r); err != nil {
						t.Error(err)
					} else if !backend.Denied(r.Takes, r.Outcomes) {
						passed[v].Add(1)
					}
				}
			})
		}
		wg.Wait()
		total := int64(0)
		for v := range passed {
			total += passed[v].Load()
			if o := mustTake(t, s, fmt.Sprint("k", v), l, 0); o.Used != passed[v].Load() {
				t.Errorf("k%d: %d used, %d passed", v, o.Used, passed[v].Load())
			}
		}
		if total > int64(small.Requests) || total < int64(small.Requests)*9/10 {
			t.Errorf("%d passed of a limit of %d", total, small.Requests)
		}
	})
}

// The keys of a counter are on one server: penalties and reservations work, and a reset clears them.
func TestLayoutsKeepCountersTogether(t *testing.T) {
	forEachLayout(t, func(t *testing.T, opts redis.Options, servers []*redistest.Server, _ bool, _ *logged) {
		s := redis.New(opts)
		t.Cleanup(func() { _ = s.Close() })
		for i := range 20 {
			key, l := fmt.Sprint("k", i), limit(3, descriptor.Year)
			mustPenalise(t, s, penalised(key, l, 3, time.Hour))
			if p, o := mustPenalise(t, s, penalised(key, l, 1, time.Hour)); p.Allowed || o.Allowed {
				t.Fatalf("%s: %+v, %+v", key, p, o)
			}
			mustTake(t, s, key, l, -2)
			r := penalised(key, l, 1, time.Hour)
			if err := s.Peek(t.Context(), time.Now(), r); err != nil || r.Outcomes[0].Allowed {
				t.Errorf("%s: the penalty is not seen: %+v, %v", key, r.Outcomes, err)
			}
			penalty := descriptor.AppendPenaltyKey(nil, []byte(key), false)
			reset := []backend.Counter{{Key: []byte(key), Limit: l}, {Key: penalty, Limit: descriptor.NewPenalty(time.Hour)}}
			if err := s.Reset(t.Context(), reset); err != nil {
				t.Fatal(err)
			}
			if p, o := mustPenalise(t, s, penalised(key, l, 3, time.Hour)); !p.Allowed || !o.Allowed || o.Used != 3 {
				t.Errorf("%s after a reset: %+v, %+v", key, p, o)
			}

			held, hl := fmt.Sprint("held", i), reservable(limit(10, descriptor.Year), false)
			mustReserve(t, s, held, hl, 4, reserve("a"))
			if h := commit("a"); !mustReserve(t, s, held, hl, 1, h).Allowed || h.Result != backend.ReservationDone {
				t.Errorf("%s: %+v", held, h)
			}
			if o := mustTake(t, s, held, hl, 0); o.Used != 1 {
				t.Errorf("%s: %d used after a commit of 1", held, o.Used)
			}
			if err := s.Reset(t.Context(), []backend.Counter{{Key: []byte(held), Limit: hl}}); err != nil {
				t.Fatal(err)
			}
		}
		for _, server := range servers {
			for _, key := range server.Client(t).Keys(t.Context(), "*held*").Val() {
				t.Errorf("a reset left %q", key)
			}
		}
	})
}

// A server that has lost its scripts gets them again, through a proxy too.
func TestLayoutsLoadScriptsAgain(t *testing.T) {
	forEachLayout(t, func(t *testing.T, opts redis.Options, servers []*redistest.Server, _ bool, _ *logged) {
		s := redis.New(opts)
		t.Cleanup(func() { _ = s.Close() })
		l, used := limit(1000, descriptor.Year), int64(0)
		for range 3 {
			b := newStarted()
			b.start(t, s, 40, l)
			requests := b.requests
			b.send(t)
			used++
			for _, r := range requests {
				if r.Outcomes[0].Used != used {
					t.Errorf("%s: %+v, want %d used", r.Takes[0].Key, r.Outcomes[0], used)
				}
			}
			for _, server := range servers {
				if err := server.Client(t).ScriptFlush(t.Context()).Err(); err != nil {
					t.Fatal(err)
				}
			}
		}
	})
}

// A Redis that is replaced by a cluster behind the same address is noticed when a call is rejected, and the requests of
// that call count.
func TestLayoutChanges(t *testing.T) {
	plain, shard := redistest.Start(t), redistest.OneShard(t)
	address := filepath.Join(t.TempDir(), "redis")
	if err := os.Symlink(plain.Socket, address); err != nil {
		t.Fatal(err)
	}
	log := new(logged)
	s := redis.New(redis.Options{Timeout: 10 * time.Second, Logger: slog.New(slog.NewTextHandler(log, nil)), Client: connect(t, redisconn.Options{URL: address})})
	t.Cleanup(func() { _ = s.Close() })
	if err := s.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	l := limit(1000, descriptor.Year)
	round := func(used int64) {
		t.Helper()
		b := newStarted()
		b.start(t, s, 40, l)
		requests := b.requests
		b.send(t)
		wide := &backend.Request{Together: true, Outcomes: make([]backend.Outcome, 2), Takes: []backend.Take{
			{Key: []byte("wide1"), Limit: l, Hits: 1}, {Key: []byte("wide2"), Limit: l, Hits: 1, Member: 1}}}
		if err := backend.Await(t.Context(), s, time.Now(), wide); err != nil {
			t.Error(err)
		}
		for _, r := range append(requests, wide) {
			for i, o := range r.Outcomes {
				if !o.Allowed || o.Used != used {
					t.Errorf("%s: %+v, want %d used", r.Takes[i].Key, o, used)
				}
			}
		}
	}
	round(1)
	round(2)
	if n := log.count("several"); n != 0 {
		t.Errorf("a plain Redis: %s", log.text())
	}
	plain.Kill(t)
	if err := errors.Join(os.Remove(address), os.Symlink(shard.Socket, address)); err != nil {
		t.Fatal(err)
	}
	redistest.Eventually(t, "the new server to answer", s.Ping)
	round(1)
	round(2)
	if n := log.count("several servers or slots"); n != 1 {
		t.Errorf("%d lines:\n%s", n, log.text())
	}
}

// A proxy rejects nothing that a server accepts, so only the store's own question shows that one took the server's
// place.
func TestLayoutOfAProxyThatReplacesAServer(t *testing.T) {
	plain, behind := redistest.Start(t), []*redistest.Server{redistest.Start(t), redistest.Start(t)}
	log, connections := new(logged), new(redisconn.Connections)
	s := redis.New(redis.Options{
		Timeout: 10 * time.Second, Logger: slog.New(slog.NewTextHandler(log, nil)), Connections: connections,
		Client: connect(t, redisconn.Options{URL: plain.Addr, Connections: connections}),
	})
	t.Cleanup(func() { _ = s.Close() })
	l := limit(1000, descriptor.Year)
	count := func(ctx context.Context, key string) (int64, error) {
		r := &backend.Request{Outcomes: make([]backend.Outcome, 1), Takes: []backend.Take{{Key: []byte(key), Limit: l, Hits: 1}}}
		err := backend.Await(ctx, s, time.Now(), r)
		return r.Outcomes[0].Used, err
	}
	if err := s.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := count(t.Context(), "k"); err != nil {
		t.Fatal(err)
	}
	plain.Kill(t)
	redistest.TwemproxyAt(t, plain.Addr, behind...)
	redistest.Eventually(t, "the proxy to be noticed", func(ctx context.Context) error {
		if _, err := count(ctx, "k"); err != nil {
			return err
		}
		if log.count("several servers or slots") != 1 {
			return errors.New(log.text())
		}
		return nil
	})
	for used := range int64(2) {
		var wg sync.WaitGroup
		for i := range 40 {
			wg.Go(func() {
				if got, err := count(t.Context(), fmt.Sprint("of", i)); err != nil || got != used+1 {
					t.Errorf("counter %d: %d used, %v; want %d", i, got, err, used+1)
				}
			})
		}
		wg.Wait()
	}
}

// A node of a cluster with other nodes cannot serve all counters: Ping reports this, and the setting to correct.
func TestLayoutOfANodeAmongOthers(t *testing.T) {
	cluster := redistest.StartCluster(t, redistest.Setup{})
	log := new(logged)
	s := redis.New(redis.Options{Timeout: patience, Logger: slog.New(slog.NewTextHandler(log, nil)), Client: connect(t, redisconn.Options{URL: cluster.Nodes[0].Addr})})
	t.Cleanup(func() { _ = s.Close() })
	for range 2 {
		if err := s.Ping(t.Context()); err == nil || !strings.Contains(err.Error(), "MOVED") {
			t.Errorf("health: %v", err)
		}
	}
	if n := log.count("set REDIS_TYPE=CLUSTER"); n != 1 {
		t.Errorf("%d lines:\n%s", n, log.text())
	}
}

// A server whose clock is set during a probe is not mistaken for several, although the keys of the probe expire then.
func TestLayoutWhenTheClockIsSet(t *testing.T) {
	start := time.Now()
	server, set := redistest.StartWithStoppedClock(t, start)
	client := connect(t, redisconn.Options{URL: server.Addr})
	ended := make(chan struct{})
	var sets sync.WaitGroup
	sets.Go(func() {
		for n := 1; ; n++ {
			select {
			case <-ended:
				return
			default:
				set(start.Add(time.Duration(n) * time.Minute))
			}
		}
	})
	defer sets.Wait()
	defer close(ended)
	for range 200 {
		if found, reason, err := redis.FindLayout(t.Context(), client, ""); err != nil || found == redis.Servers {
			t.Fatalf("layout %d: %v, %v", found, reason, err)
		}
	}
}

// Health is red without the right to run scripts, and green again with it.
func TestHealthNeedsScripts(t *testing.T) {
	forEachLayout(t, func(t *testing.T, opts redis.Options, servers []*redistest.Server, _ bool, _ *logged) {
		s := redis.New(opts)
		t.Cleanup(func() { _ = s.Close() })
		say := func(rights ...any) {
			t.Helper()
			for _, server := range servers {
				if err := server.Client(t).Do(t.Context(), append([]any{"acl", "setuser", "default"}, rights...)...).Err(); err != nil {
					t.Fatal(err)
				}
			}
		}
		for range 2 { // before and after the layout is known
			say("-@scripting")
			if err := s.Ping(t.Context()); err == nil || !strings.Contains(err.Error(), "NOPERM") {
				t.Errorf("health without scripts: %v", err)
			}
			say("+@all")
			redistest.Eventually(t, "health with scripts", func(ctx context.Context) error { return s.Ping(ctx) })
		}
	})
}

// A cluster whose nodes have no address for clients is asked at the addresses that are known: at each its slots, and at
// the ports that it names after a slot has moved.
func TestNodesWithoutAnAddress(t *testing.T) {
	for name, start := range map[string]func(t *testing.T) []string{
		"a node that has met no other": func(t *testing.T) []string { return []string{redistest.OneShard(t).Addr} },
		"unknown endpoints": func(t *testing.T) []string {
			return redistest.StartCluster(t, redistest.Setup{Args: []string{"--cluster-preferred-endpoint-type", "unknown-endpoint"}}).Addrs()
		},
		"host names that are not set": func(t *testing.T) []string {
			return redistest.StartCluster(t, redistest.Setup{Args: []string{"--cluster-preferred-endpoint-type", "hostname"}}).Addrs()
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := redis.New(redis.Options{Timeout: 10 * time.Second, Client: connect(t, redisconn.Options{Type: "CLUSTER", URL: start(t)[0], DialTimeout: 10 * time.Second})})
			t.Cleanup(func() { _ = s.Close() })
			if err := s.Ping(t.Context()); err != nil {
				t.Fatal(err)
			}
			b := newStarted()
			b.start(t, s, 60, limit(1000, descriptor.Year))
			b.send(t)
		})
	}
}
