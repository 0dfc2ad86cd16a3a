package memory

import (
	"context"

	"github.com/ratelimitd/ratelimitd/internal/backend"
)

// Reset clears counters, and removes their reservations. It never fails.
//
// Hits in a shared counter stay there, because others have used it too. Instead, the key gets a separate, unused
// counter. If the store has no room for that counter, the reset is dropped, and a metric counts it.
func (s *Store) Reset(_ context.Context, counters []backend.Counter) error {
	for i := range counters {
		s.drop(&counters[i])
	}
	return nil
}

func (s *Store) drop(named *backend.Counter) {
	hash := s.hash(named.Key)
	sh := &s.shards[hash%shardCount]
	sh.mu.Lock()
	defer sh.mu.Unlock()
	s.shares.mu.RLock()
	defer s.shares.mu.RUnlock()
	share, _ := s.shareOf(named.Rule)
	if b := sh.reservations.find(hash, named.Key); b != nil {
		s.forget(sh, b)
	}

	r := sh.table.find(hash, named.Key)
	expires := s.sharedUntil(share, hash, named)
	switch {
	case expires > 0 && r != nil:
		sh.table.store(r, &backend.State{}, expires)
	case expires > 0 && s.occupy(share):
		sh.table.add(hash, named.Key, share.number, &counter{expires: expires})
	case expires > 0: // its hits stay in the shared counter
	case r != nil:
		holder := s.shareNumbered(r.share())
		sh.table.remove(hash, named.Key)
		s.giveRoom(holder)
	}
}

// sharedUntil is the time at which the shared counter of a key expires, or 0 if nothing is used in it. mu is held for
// reading.
func (s *Store) sharedUntil(sh *share, hash uint64, named *backend.Counter) int64 {
	r := sh.find(named.Rule, named.Limit)
	if r == nil {
		return 0
	}
	c, stripe := r.cell(hash)
	s.shares.cells[stripe].Lock()
	defer s.shares.cells[stripe].Unlock()
	if c.state.Unused() {
		return 0
	}
	return c.expires
}
