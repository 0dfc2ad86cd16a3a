package lease

import (
	"context"

	"github.com/ratelimitd/ratelimitd/internal/backend"
)

// Reset clears counters in the backend, and then drops all permits of these counters: permits acquired before the reset
// would pass uncounted after it. A pending acquisition may be counted before or after the reset, so its permits are
// dropped too, except those for its own take.
func (l *Leases) Reset(ctx context.Context, counters []backend.Counter) error {
	defer l.void(counters) // even after an error: the backend may have cleared the counters
	return l.opts.Store.Reset(ctx, counters)
}

func (l *Leases) void(counters []backend.Counter) {
	for i := range counters {
		l.Void(counters[i].Key)
	}
}

// Void drops the permits of a counter that another replica has cleared. Permits that pending calls return are dropped
// too.
func (l *Leases) Void(key []byte) {
	sh, _ := l.shard(key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if c := sh.counters[string(key)]; c != nil {
		l.counts.expired.Add(c.drop())
		l.forget(sh, string(key), c)
	}
}

// VoidAll drops the permits of all counters, because any of them may have been cleared.
func (l *Leases) VoidAll() {
	for i := range l.shards {
		sh := &l.shards[i]
		sh.mu.Lock()
		for key, c := range sh.counters {
			l.counts.expired.Add(c.drop())
			l.forget(sh, key, c)
		}
		sh.mu.Unlock()
	}
}
