package memory

// Holds says whether a key has a counter of its own.
func (s *Store) Holds(key []byte) bool {
	sh := &s.shards[s.shardOf(key)]
	sh.mu.Lock()
	defer sh.mu.Unlock()
	return sh.counters[string(key)] != nil
}
