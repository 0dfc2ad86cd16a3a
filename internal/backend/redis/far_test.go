package redis_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/backend/redis"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
)

// takeOne takes one hit of a counter that has plenty left.
func takeOne(ctx context.Context, s *redis.Store, key string) error {
	return backend.Await(ctx, s, time.Now(), take(key, limit(1_000_000, descriptor.Year), 1))
}

// A cluster node that hangs delays only its own requests.
func TestOtherNodesGoOn(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, redistest.Setup{})
	client := dialCluster(t, c)
	const timeout = 2 * time.Second
	store := redis.New(redis.Options{Client: client, Timeout: timeout})
	c.NoFailover()
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
	// All requests except the first find flushes in flight. They share the next flushes.
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
