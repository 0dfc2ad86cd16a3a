package regions_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/backend/redis"
	"github.com/ratelimitd/ratelimitd/internal/backend/redisconn"
	"github.com/ratelimitd/ratelimitd/internal/backend/regions"
	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
	"github.com/ratelimitd/ratelimitd/internal/testkit/servicetest"
)

// While the Redis of a region hangs, its breaker ends takes across regions long before their deadlines, as it ends all others. Limits that
// another region counts are not affected.
func TestRedisHangs(t *testing.T) {
	w := newWorld(t, setup{regions: 2, processes: 1})
	w.limit("escrow", escrow("a", algorithms()["fixed"]))
	w.limit("here", atHome("b", algorithms()["fixed"]))
	w.limit("far", atHome("a", algorithms()["fixed"]))
	p := w.start("b", nil, func(o *regions.Options) {
		client := servicetest.Connect(t, redisconn.Options{URL: w.redis["b"].Addr, Breaker: &redisconn.BreakerOptions{}})
		store := redis.New(redis.Options{Client: client, Timeout: 100 * patience})
		t.Cleanup(func() { _ = store.Close() })
		o.Store, o.Records, o.Timeout = store, redis.NewRecords(store), 100*patience
	})
	answered := func(context.Context) error {
		for _, name := range []string{"escrow", "here", "far"} {
			if o, err := w.take(p, name, 1, patience); err != nil || !o.Allowed {
				return fmt.Errorf("%s: %+v, %w", name, o, err)
			}
		}
		return nil
	}
	redistest.Eventually(t, "takes are answered", answered)

	w.redis["b"].Pause(t)
	before := runtime.NumGoroutine()
	for range 3 {
		var wg sync.WaitGroup
		for i := range 300 {
			wg.Go(func() {
				name := []string{"escrow", "here"}[i%2]
				if _, err := w.take(p, name, 1, 50*patience); !errors.Is(err, backend.ErrUnavailable) || errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("%s: %v", name, err)
				}
			})
		}
		wg.Wait()
		if n := runtime.NumGoroutine(); n > before+50 {
			t.Errorf("%d goroutines are left of %d takes, there were %d", n, 300, before)
		}
		if o, err := w.take(p, "far", 1, patience); err != nil || !o.Allowed {
			t.Errorf("a limit that the other region counts: %+v, %v", o, err)
		}
	}
	w.redis["b"].Continue(t)
	redistest.Eventually(t, "takes are answered again", answered)
}
