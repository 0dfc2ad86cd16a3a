package redis_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/backend/redis"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/redistest"
)

func takeOne(ctx context.Context, s *redis.Store, key string) error {
	l := &descriptor.Limit{Requests: 1_000_000, Window: descriptor.Window{Unit: descriptor.Year}}
	r := &backend.Request{Takes: []backend.Take{{Key: []byte(key), Limit: l, Hits: 1}}, Outcomes: make([]backend.Outcome, 1)}
	return s.Take(ctx, time.Now(), r)
}

// Where a round trip takes long, whoever comes while others are on their way does not wait for them.
func TestFarAwayNobodyWaitsForOthers(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	p := redistest.StartProxy(t, server)
	const calls, away = 8, 3 * time.Second // far more than this machine may be busy with others
	client := connect(t, redis.DialOptions{URL: p.Addr, PoolSize: calls})
	occupy(t, client, calls) // connections are there
	store := redis.New(redis.Options{Client: client, Timeout: longest})
	if err := takeOne(t.Context(), store, "k"); err != nil { // the script is there
		t.Fatal(err)
	}
	p.Delay(t, away)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	var wg sync.WaitGroup
	for range calls {
		wg.Go(func() {
			start := time.Now()
			err := takeOne(t.Context(), store, "k")
			if took := time.Since(start); err != nil || took > away*17/10 {
				t.Errorf("%v after %v, with a round trip of %v", err, took, away)
			}
		})
		<-tick.C
	}
	wg.Wait()
}

// Where a round trip takes most of the time that a call has, connections are made all the same.
func TestFarAwayConnectionsAreMade(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]struct {
		setup redistest.Setup
		opts  redis.DialOptions
	}{
		"plain":    {},
		"password": {redistest.Setup{Password: secret}, redis.DialOptions{Auth: secret}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := redistest.StartProxy(t, redistest.StartWith(t, o.setup))
			const away = 500 * time.Millisecond
			p.Delay(t, away)
			o.opts.URL = p.Addr
			client := connect(t, o.opts)
			within(t, "a call to work in little more than a round trip", func(ctx context.Context) error {
				ctx, cancel := context.WithTimeout(ctx, away*17/10)
				defer cancel()
				return client.Do(ctx, "echo", "hello").Err()
			})
		})
	}
}

// A node of a cluster that hangs holds up those who ask it, and nobody else.
func TestOtherNodesGoOn(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, redistest.Setup{})
	client := connect(t, redis.DialOptions{Type: "CLUSTER", URL: strings.Join(c.Addrs(), ",")})
	const timeout = 2 * time.Second
	store := redis.New(redis.Options{Client: client, Timeout: timeout})
	for _, n := range c.Nodes { // they are not to take the one that hangs for dead
		if err := n.Client(t).ConfigSet(t.Context(), "cluster-node-timeout", "60000").Err(); err != nil {
			t.Fatal(err)
		}
	}
	hangs := c.Nodes[0]
	var there []string // counters of the other nodes
	for i := 0; len(there) < 100; i++ {
		key := fmt.Sprint("k", i)
		if err := takeOne(t.Context(), store, key); err != nil {
			t.Fatal(err)
		}
		if c.Slot(t, key) >= 16384/3 {
			there = append(there, key)
		}
	}
	hangs.Pause(t)
	// All but the first find others on their way, and go together with them.
	var wg sync.WaitGroup
	for i := range 300 {
		key := fmt.Sprint("k", i)
		if i%2 == 0 {
			key = there[i%len(there)]
		}
		wg.Go(func() {
			start := time.Now()
			err := takeOne(t.Context(), store, key)
			took := time.Since(start)
			switch hung := c.Nodes[0].Addr == ownerOf(t, client, key); {
			case hung && !errors.Is(err, backend.ErrUnavailable):
				t.Errorf("%s, of the node that hangs: %v", key, err)
			case hung && errors.Is(err, context.DeadlineExceeded):
				t.Errorf("%s: the store's own time looks like the caller's: %v", key, err)
			case !hung && (err != nil || took > timeout*9/10):
				t.Errorf("%s, of a node that is well: %v after %v", key, err, took)
			}
		})
	}
	wg.Wait()
}

func ownerOf(t *testing.T, client goredis.UniversalClient, key string) string {
	t.Helper()
	node, err := client.(*goredis.ClusterClient).MasterForKey(t.Context(), key)
	if err != nil {
		t.Error(err)
		return ""
	}
	return node.Options().Addr
}

// However rare calls are, a node that sends nothing opens its breaker. A caller that does not wait long enough for an answer says nothing of a
// node, neither that it is sick nor that it is well again.
func TestPatientAndImpatientCallers(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	const openFor, timeout = 2 * time.Second, 300 * time.Millisecond
	client := connect(t, redis.DialOptions{URL: server.Addr, Breaker: &redis.BreakerOptions{OpenFor: openFor, Silence: 4 * timeout}})
	call := func(timeout time.Duration) time.Duration {
		ctx, cancel := context.WithTimeout(t.Context(), timeout)
		defer cancel()
		start := time.Now()
		if err := client.Do(ctx, "echo", "hello").Err(); err == nil {
			t.Fatal("a server that hangs answered")
		}
		return time.Since(start)
	}
	if err := client.Ping(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	server.Pause(t)
	waited := 0
	for ; call(timeout) > timeout/2; waited++ {
		if waited > 10 {
			t.Fatalf("%d calls in a row without an answer did not open the breaker", waited)
		}
	}
	for tries := 0; ; tries++ {
		<-time.After(openFor)
		if call(2*time.Millisecond) < 4*time.Millisecond {
			break
		}
		if tries == 5 { // it has waited long enough to say something of the node
			t.Skip("this machine stalls too often for a caller that waits 2 ms")
		}
	}
	waited = 0
	for range 3 {
		if call(timeout) > timeout/2 {
			waited++
		}
	}
	if waited != 1 {
		t.Errorf("after an impatient caller, %d of 3 calls waited for the server, want the one that tries", waited)
	}
}
