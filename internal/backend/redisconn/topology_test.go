package redisconn_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/ratelimitd/ratelimitd/internal/backend/redisconn"
	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
	"github.com/ratelimitd/ratelimitd/internal/testkit/servicetest"
)

// variant is a way to start servers, and the options of a client except the addresses.
type variant struct {
	setup redistest.Setup
	opts  redisconn.Options
}

// variants returns one without any security, and one with TLS and passwords everywhere.
func variants(t *testing.T) map[string]variant {
	t.Helper()
	ca := redistest.NewCA(t)
	client := ca.Issue(t, "client")
	return map[string]variant{
		"plain": {},
		"secure": {
			redistest.Setup{
				TLS: ca.Server(ca.Issue(t, "127.0.0.1"), true), Password: "primary-" + secret, SentinelPassword: "sentinel-" + secret,
				Args: []string{"--user", "counter", "on", ">counter-" + secret, "~*", "+@all"},
			},
			redisconn.Options{
				Auth: "counter:counter-" + secret, SentinelAuth: "sentinel-" + secret,
				TLS: redisconn.TLSOptions{Enabled: true, CACert: ca.File, ClientCert: client.Cert, ClientKey: client.Key},
			},
		},
	}
}

// wrong changes one option at a time. The client must be rejected, with an error that contains no password.
func wrong(t *testing.T, opts redisconn.Options) {
	t.Helper()
	for name, change := range map[string]func(*redisconn.Options){
		"password":          func(o *redisconn.Options) { o.Auth += "x" },
		"sentinel password": func(o *redisconn.Options) { o.SentinelAuth += "x" },
		"authority":         func(o *redisconn.Options) { o.TLS.CACert = redistest.NewCA(t).File },
		"no certificate":    func(o *redisconn.Options) { o.TLS.ClientCert, o.TLS.ClientKey = "", "" },
	} {
		if name == "sentinel password" && opts.Type != "SENTINEL" {
			continue
		}
		o := opts
		change(&o)
		var log servicetest.Log
		o.Logger = slog.New(slog.NewTextHandler(&log, nil))
		client, err := redisconn.Dial(o)
		if err != nil {
			t.Fatal(err)
		}
		err = client.Ping(bounded(t)).Err()
		_ = client.Close()
		if err == nil {
			t.Errorf("%s: accepted", name)
			continue
		}
		withoutSecret(t, err.Error()+log.String())
	}
}

// reaches returns an error unless a client's writes arrive at a server.
func reaches(ctx context.Context, client, server goredis.UniversalClient) error {
	now := time.Now().String()
	if err := client.Set(ctx, "reached", now, 0).Err(); err != nil {
		return err
	}
	if got := server.Get(ctx, "reached").Val(); got != now {
		return errors.New("another one was reached")
	}
	return nil
}

func TestSentinel(t *testing.T) {
	t.Parallel()
	for name, v := range variants(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := redistest.StartWatched(t, v.setup)
			opts := v.opts
			opts.Type, opts.URL, opts.DialTimeout = "SENTINEL", w.URL(), time.Second
			if name == "secure" {
				wrong(t, opts)
			}
			client := connect(t, opts)
			for want := range 2 {
				if n, err := counts.Run(bounded(t), client, []string{"k"}).Int(); n != want+1 || err != nil {
					t.Fatal(n, err)
				}
			}
			if n, err := w.Primary(t).Client(t).Get(bounded(t), "k").Int(); n != 2 || err != nil {
				t.Fatalf("the primary has %d, %v", n, err)
			}

			// A failover in good order: the former primary still answers, and takes writes, when the client must leave it.
			second := w.Failover(t)
			admin := second.Client(t)
			took := redistest.Eventually(t, "the new primary to be reached", func(ctx context.Context) error { return reaches(ctx, client, admin) })
			t.Logf("a failover in good order was followed within %v", took)
			if took > 2*time.Second {
				t.Errorf("it took %v", took)
			}

			// The primary dies, and the sentinel that the client is subscribed to hangs.
			w.Await(t)
			var hangs *redistest.Server
			for _, s := range w.Sentinels {
				if list := s.Client(t).Do(bounded(t), "client", "list", "type", "pubsub").Val(); list != "" {
					hangs = s
				}
			}
			if hangs == nil {
				t.Fatal("the client listens to no sentinel")
			}
			hangs.Pause(t)
			second.Kill(t)
			admin = w.AwaitOther(t, second).Client(t)
			took = redistest.Eventually(t, "the new primary to be reached", func(ctx context.Context) error { return reaches(ctx, client, admin) })
			t.Logf("after a death, with a sentinel that hangs, the new primary was reached within %v", took)
			if took > 10*time.Second { // the machine may be busy
				t.Errorf("it took %v", took)
			}
		})
	}
}

// load makes one call after the other until it is stopped.
type load struct {
	worked, failed atomic.Int64
	last           atomic.Value // the last error
	stop           func()
}

// startLoad starts a load. patience is how long each call may take.
func startLoad(t *testing.T, patience time.Duration, call func(context.Context) error) *load {
	t.Helper()
	l := &load{}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	l.stop = func() { cancel(); wg.Wait() }
	t.Cleanup(l.stop)
	wg.Go(func() {
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for ctx.Err() == nil {
			// Not under the context that ends: whether the last call counted would not be known.
			limited, cancel := context.WithTimeout(context.Background(), patience)
			err := call(limited)
			cancel()
			if err == nil {
				l.worked.Add(1)
				continue
			}
			l.failed.Add(1)
			l.last.Store(err.Error())
			<-tick.C
		}
	})
	return l
}

// more waits until n more calls have worked.
func (l *load) more(t *testing.T, n int64) time.Duration {
	t.Helper()
	from := l.worked.Load()
	return redistest.Eventually(t, "more calls to work", func(context.Context) error {
		if now := l.worked.Load(); now-from < n {
			return fmt.Errorf("%d did; the last error is %v", now-from, l.last.Load())
		}
		return nil
	})
}

func TestCluster(t *testing.T) {
	t.Parallel()
	for name, v := range variants(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := redistest.StartCluster(t, v.setup)
			opts := v.opts
			opts.Type, opts.URL = "CLUSTER", strings.Join(c.Addrs()[4:], ",") // two replicas: the others are to be found
			if name == "secure" {
				wrong(t, opts)
			}
			client := connect(t, opts)
			ctx := bounded(t)
			redistest.Eventually(t, "the cluster to answer", func(ctx context.Context) error { return client.Ping(ctx).Err() })

			// Keys of all nodes, and several of one slot in one call.
			for i := range 100 {
				key := fmt.Sprint("k", i)
				if n, err := counts.Run(ctx, client, []string{"{" + key + "}1", "{" + key + "}2"}).Int(); n != 2 || err != nil {
					t.Fatal(n, err)
				}
				if v, err := client.Get(ctx, "{"+key+"}2").Int(); v != 1 || err != nil {
					t.Fatal(v, err)
				}
			}
			for i, n := range c.Nodes {
				asked := n.Calls(t, "get")+n.Calls(t, "evalsha") > 0
				if primary := i < 3; asked != primary {
					t.Errorf("node %d, primary %v, was asked: %v", i, primary, asked)
				}
			}

			t.Run("a slot moves", func(t *testing.T) { slotMoves(t, c, client) })
			t.Run("is not sent again", func(t *testing.T) {
				notSentAgain(t, client, c.Primary(t, c.Slot(t, "n")), "n")
			})
			t.Run("failover", func(t *testing.T) { failsOver(t, c, client) })
		})
	}
}

// slotMoves moves a slot while calls and pipelines count in it. None of them may fail, or count twice.
func slotMoves(t *testing.T, c *redistest.Cluster, client goredis.UniversalClient) {
	slot := c.Slot(t, "{m}")
	one := startLoad(t, longest, func(ctx context.Context) error { return counts.EvalSha(ctx, client, []string{"{m}1"}).Err() })
	piped := startLoad(t, longest, func(ctx context.Context) error {
		_, err := client.Pipelined(ctx, func(p goredis.Pipeliner) error {
			counts.EvalSha(ctx, p, []string{"{m}2"})
			counts.EvalSha(ctx, p, []string{"elsewhere"})
			return nil
		})
		return err
	})
	both := func(n int64) { one.more(t, n); piped.more(t, n) }
	both(20)
	from := c.Primary(t, slot)
	to := c.Nodes[0]
	if from == to {
		to = c.Nodes[1]
	}
	// Load the script into all nodes: this test is not about NOSCRIPT.
	for _, n := range c.Nodes {
		if err := counts.Load(t.Context(), n.Client(t)).Err(); err != nil {
			t.Fatal(err)
		}
	}
	m := c.Migrate(t, slot, to)
	both(20)
	m.MoveKeys(t, 0)
	both(20)
	m.Finish(t)
	both(20)
	one.stop()
	piped.stop()
	if one.failed.Load() > 0 || piped.failed.Load() > 0 {
		t.Errorf("%d calls failed, the last one with %v, and %d pipelines, the last one with %v",
			one.failed.Load(), one.last.Load(), piped.failed.Load(), piped.last.Load())
	}
	admin := to.Client(t)
	for key, want := range map[string]int64{"{m}1": one.worked.Load(), "{m}2": piped.worked.Load()} {
		if n, err := admin.Get(t.Context(), key).Int64(); n != want || err != nil {
			t.Errorf("%s is at %d after %d calls, %v", key, n, want, err)
		}
	}
}

// failsOver has a primary hand over in good order, die, and hang.
func failsOver(t *testing.T, c *redistest.Cluster, client goredis.UniversalClient) {
	slot := c.Slot(t, "f")
	if err := counts.Run(bounded(t), client, []string{"f"}).Err(); err != nil {
		t.Fatal(err)
	}
	l := startLoad(t, 250*time.Millisecond, func(ctx context.Context) error { return counts.Run(ctx, client, []string{"f"}).Err() })
	l.more(t, 20)
	step := func(what string, act func(primary *redistest.Server)) {
		t.Helper()
		failed := l.failed.Load()
		act(c.Primary(t, slot))
		c.Await(t)
		took := l.more(t, 20)
		t.Logf("%s: calls work %v after the nodes agree; %d failed, the last one ever with %v", what, took, l.failed.Load()-failed, l.last.Load())
		if took > 5*time.Second {
			t.Errorf("%s: it took %v", what, took)
		}
	}
	step("in order", func(primary *redistest.Server) { c.Failover(t, c.Replicas(t, primary)[0]) })
	var left *redistest.Server
	step("death", func(primary *redistest.Server) { left = primary; primary.Kill(t) })
	left.Restart(t)
	c.Await(t)
	step("hang", func(primary *redistest.Server) { left = primary; primary.Pause(t) })
	left.Continue(t)
	c.Await(t)
	l.more(t, 20)
}

// The first call has to ask for the topology and to connect twice. If it has too little time, one of the next calls
// succeeds.
func TestClusterInLittleTime(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, redistest.Setup{})
	away := startRelay(t, c.Nodes[0].Addr)
	away.delay.Store(int64(30 * time.Millisecond))
	client := connect(t, redisconn.Options{Type: "CLUSTER", URL: away.Addr().String()})
	calls := 0
	redistest.Eventually(t, "a call with 15 ms to work", func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, 15*time.Millisecond)
		defer cancel()
		calls++
		return client.Set(ctx, "k", 1, 0).Err()
	})
	t.Logf("%d calls", calls)
}
