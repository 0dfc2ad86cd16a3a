package redis_test

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/backend/redis"
	"github.com/ratelimitd/ratelimitd/internal/backend/redisconn"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
)

// TestClusterIsExact counts from four clients on a cluster of six nodes: one hot counter, and many cold ones in
// all-or-nothing requests over several slots.
func TestClusterIsExact(t *testing.T) {
	cluster := redistest.StartCluster(t, redistest.Setup{})
	var stores []*redis.Store
	for range 4 {
		client := connect(t, redisconn.Options{Type: "CLUSTER", URL: strings.Join(cluster.Addrs(), ","), DialTimeout: 10 * time.Second})
		stores = append(stores, redis.New(redis.Options{Client: client, Timeout: 10 * time.Second}))
	}
	const hot, goroutines, each, cold = 500, 32, 60, 997
	limit := func(n uint64) *descriptor.Limit {
		return &descriptor.Limit{Requests: n, Window: descriptor.Window{Unit: descriptor.Year}}
	}
	hotLimit, coldLimit := limit(hot), limit(1_000_000)
	var admitted atomic.Int64
	passed := make([]atomic.Int64, cold)
	var wg sync.WaitGroup
	for g := range goroutines {
		wg.Go(func() {
			for i := range each {
				n := (g*each + i) % cold
				r := &backend.Request{Together: true, Outcomes: make([]backend.Outcome, 2), Takes: []backend.Take{
					{Key: []byte("hot"), Limit: hotLimit, Hits: 1},
					{Key: fmt.Appendf(nil, "cold%d", n), Limit: coldLimit, Hits: 1, Member: 1},
				}}
				if err := backend.Await(t.Context(), stores[g%len(stores)], time.Now(), r); err != nil {
					t.Error(err)
					return
				}
				if !backend.Denied(r.Takes, r.Outcomes) {
					admitted.Add(1)
					passed[n].Add(1)
				}
			}
		})
	}
	wg.Wait()
	// Between a reservation and its return other requests may be denied. No more than the limit is allowed.
	if n := admitted.Load(); n > hot || n < hot*9/10 {
		t.Errorf("admitted %d of %d", n, hot)
	}
	for n := range cold {
		r := &backend.Request{Outcomes: make([]backend.Outcome, 1), Takes: []backend.Take{{Key: fmt.Appendf(nil, "cold%d", n), Limit: coldLimit}}}
		if err := backend.Await(t.Context(), stores[0], time.Now(), r); err != nil {
			t.Fatal(err)
		}
		if got := r.Outcomes[0].Used; got != passed[n].Load() {
			t.Fatalf("cold%d: %d used at rest, %d passed", n, got, passed[n].Load())
		}
	}
}

// While a slot moves, the requests of a batch in that slot go to its new node, and each of them counts once.
func TestBatchFollowsASlot(t *testing.T) {
	cluster := redistest.StartCluster(t, redistest.Setup{})
	s := redis.New(redis.Options{Client: dialCluster(t, cluster), Timeout: patience})
	t.Cleanup(func() { _ = s.Close() })
	l, b, used := &descriptor.Limit{Requests: 1000, Window: descriptor.Window{Unit: descriptor.Year}}, newStarted(), int64(0)
	round := func(when string) {
		t.Helper()
		b.start(t, s, 60, l)
		requests := b.requests
		b.send(t)
		used++
		for _, r := range requests {
			if o := r.Outcomes[0]; !o.Allowed || o.Used != used {
				t.Errorf("%s, %s: %+v, want %d used", when, r.Takes[0].Key, o, used)
			}
		}
	}
	round("before")
	slot := cluster.Slot(t, "k0")
	from, to := cluster.Primary(t, slot), cluster.Nodes[0]
	if from == to {
		to = cluster.Nodes[1]
	}
	m := cluster.Migrate(t, slot, to)
	round("when no key has moved")
	m.MoveKeys(t, 0)
	round("when the key has moved") // the node asks to try the other one
	m.Finish(t)
	round("after")
	round("when the client knows")
}

func TestSlotOf(t *testing.T) {
	// From the specification of Redis Cluster, and from redis-cli.
	for key, want := range map[string]uint16{"123456789": 0x31c3, "foo": 12182, "{user1000}.following": 3443, "{user1000}.followers": 3443, "foo{}{bar}": 8363, "": 0} {
		if got := redis.SlotOf(key); got != want {
			t.Errorf("%q is in slot %d, want %d", key, got, want)
		}
	}
}
