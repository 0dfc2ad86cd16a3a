package redistest

import (
	"context"
	"sync"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
)

// longest is how long Eventually and OpenConnections may take, on a busy machine.
const longest = time.Minute

// Eventually calls check until it returns nil, and returns how long that took. Each call has a second. The test ends if
// check keeps failing, with a message that starts with the second argument.
func Eventually(t testing.TB, what string, check func(context.Context) error) time.Duration {
	t.Helper()
	start := time.Now()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		err := check(ctx)
		cancel()
		if err == nil {
			return time.Since(start)
		}
		if time.Since(start) > longest {
			t.Fatalf("%s: not within %v: %v", what, longest, err)
		}
		<-tick.C
	}
}

// OpenConnections makes a client open n connections.
func OpenConnections(t testing.TB, c goredis.UniversalClient, n int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), longest)
	defer cancel()
	var wg sync.WaitGroup
	for range n {
		wg.Go(func() { c.BLPop(ctx, time.Second, "nothing") }) // a call that blocks keeps its connection
	}
	wg.Wait()
	if got := c.PoolStats().TotalConns; got != uint32(n) {
		t.Fatalf("%d connections, want %d", got, n)
	}
}
