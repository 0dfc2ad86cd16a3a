package lease

import (
	"context"

	"github.com/ratelimitd/ratelimitd/internal/backend"
)

// Reset clears counters in the backend, and then drops all permits of these counters: those that were taken before would pass
// uncounted after it. An acquisition under way may have been counted before the reset or after it. So its permits are dropped
// too, except those for its own take.
func (l *Leases) Reset(ctx context.Context, counters []backend.Counter) error {
	defer l.void(counters) // also if it failed: it may have been carried out
	return l.opts.Store.Reset(ctx, counters)
}

// void forgets the leases of counters. Permits that calls in flight bring back are lost.
func (l *Leases) void(counters []backend.Counter) {
	for i := range counters {
		key := counters[i].Key
		sh, _ := l.shard(key)
		sh.mu.Lock()
		if c := sh.counters[string(key)]; c != nil {
			l.counts.expired.Add(c.drop())
			l.forget(sh, string(key), c)
		}
		sh.mu.Unlock()
	}
}
