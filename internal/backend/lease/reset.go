package lease

import (
	"context"

	"github.com/ratelimitd/ratelimitd/internal/backend"
)

// Reset clears counters in the backend. Permits that were taken before the counters were cleared would pass uncounted after
// it, so all are dropped once that is done. An acquisition under way may have been counted on either side: what it brings
// beyond its own take is dropped too.
func (l *Leases) Reset(ctx context.Context, counters []backend.Counter) error {
	defer l.void(counters) // also if it failed: it may have been carried out
	return l.opts.Backend.Reset(ctx, counters)
}

// void forgets the leases of counters: what comes back to them from calls in flight is lost.
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
