package memory

import (
	"context"

	"github.com/ratelimitd/ratelimitd/internal/backend"
)

// Reset implements backend.Resetter. It never fails.
func (s *Store) Reset(_ context.Context, counters []backend.Counter) error {
	for i := range counters {
		s.drop(counters[i].Key)
	}
	return nil
}

func (s *Store) drop(key []byte) {
	sh := &s.shards[s.shardOf(key)]
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if _, ok := sh.counters[string(key)]; ok {
		delete(sh.counters, string(key))
		s.live.Add(-1)
	}
}
