package memory

// Holds reports whether a key has its own counter.
func (s *Store) Holds(key []byte) bool {
	sh := &s.shards[s.shardOf(key)]
	sh.mu.Lock()
	defer sh.mu.Unlock()
	return sh.table.find(s.hash(key), key) != nil
}
