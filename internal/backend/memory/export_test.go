package memory

import "time"

// Holds reports whether a key has a separate counter.
func (s *Store) Holds(key []byte) bool {
	sh := &s.shards[s.shardOf(key)]
	sh.mu.Lock()
	defer sh.mu.Unlock()
	return sh.table.find(s.hash(key), key) != nil
}

// Elapsed returns a store's time for everything that does not depend on the wall clock.
func Elapsed(s *Store, now time.Time) int64 { return s.clock.Elapsed(now) }

func (s *Store) shardOf(key []byte) uint8 { return uint8(s.hash(key) % shardCount) }
