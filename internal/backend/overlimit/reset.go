package overlimit

import (
	"context"

	"github.com/ratelimitd/ratelimitd/internal/backend"
)

// Reset clears counters in the backend, and then forgets their refusals. A refusal that is on its way at that time is not
// remembered: it may be about the counter before the reset.
func (c *Cache) Reset(ctx context.Context, counters []backend.Counter) error {
	defer c.forget(counters) // also if it failed: it may have been carried out
	return c.store.Reset(ctx, counters)
}

func (c *Cache) forget(counters []backend.Counter) {
	for i := range counters {
		key := counters[i].Key
		sh := c.shard(key)
		sh.mu.Lock()
		sh.refunds++
		sh.forget(key)
		sh.mu.Unlock()
	}
}
