package memory

import "github.com/ratelimitd/ratelimitd/internal/backend"

// addPenalty adds the counter of a new penalty. It returns false if the store is full. The shard of the key is locked.
func (s *Store) addPenalty(at backend.Times, hash uint64, t *backend.Take, state *backend.State) bool {
	s.shares.mu.RLock()
	defer s.shares.mu.RUnlock()
	share, _ := s.shareOf(t.Rule)
	return s.keepPenalty(at, hash, t, state, share)
}

// keepPenalty adds the counter of a new penalty to a share. If there is no room for it, keepPenalty returns false, and
// the penalty has not started: the limit itself still denies. The shard of the key is locked, and mu for reading.
func (s *Store) keepPenalty(at backend.Times, hash uint64, t *backend.Take, state *backend.State, share *share) bool {
	table := &s.shards[hash%shardCount].table
	if table.find(hash, t.Key) != nil { // an earlier take of the group has added it
		return true
	}
	if !s.claimRoom(share) {
		return false
	}
	table.add(hash, t.Key, share.number, &counter{state: *state, expires: expires(t.Limit, state, at)})
	return true
}
