package overlimit

import (
	"context"

	"github.com/ratelimitd/ratelimitd/internal/backend"
)

// Reset clears counters in the backend, and then removes their denials. A denial that is on its way at that time is not
// remembered: it may be about the counter before the reset.
func (c *Cache) Reset(ctx context.Context, counters []backend.Counter) error {
	defer c.forget(counters) // even if it failed, because it may have been carried out
	return c.store.Reset(ctx, counters)
}

func (c *Cache) forget(counters []backend.Counter) {
	for i := range counters {
		c.Forget(counters[i].Key)
	}
}

// Forget removes the denial of a counter, because hits of it were given back. A denial that is on its way at that time
// is not remembered.
func (c *Cache) Forget(key []byte) {
	sh := c.shard(key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	sh.refunds++
	sh.forget(key)
}

// GaveBack removes the denial of a counter after a refund that did not come through the cache.
func (c *Cache) GaveBack(t *backend.Take, o *backend.Outcome) { c.refund(t, o, earlier{}) }

// ForgetAll removes all denials, including those that are on their way.
func (c *Cache) ForgetAll() {
	for i := range c.shards {
		sh := &c.shards[i]
		sh.mu.Lock()
		sh.refunds++
		clear(sh.denials)
		sh.bytes = 0
		sh.mu.Unlock()
	}
}
