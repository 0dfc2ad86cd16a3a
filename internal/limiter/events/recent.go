package events

import (
	"hash/maphash"
	"math"
	"sync"
)

// recent records which counters had an event, until their periods end. The key includes the limit, because one counter
// can be denied by several: after a change of plan, by an override or for another class. Each of these limits sends an
// event. recent is bounded: when it is full it drops any counter, which may then have a second event in its period,
// with the same id.
type recent struct {
	seed   maphash.Seed
	shards [shardCount]shard
}

const (
	shardCount = 64
	maxRecent  = 1024 // counters in a shard
)

type shard struct {
	mu sync.Mutex
	// end of the period in microseconds since the Unix epoch, keyed by the hash of kind, key and limit
	until map[uint64]int64
	first int64 // no period ends before this time
}

// ofLimit distinguishes the events about one counter: it is the limit, as it applies to a customer. It is the same in
// all replicas. It is zero if the counter determines its limit.
type ofLimit struct {
	name            string
	requests, burst uint64
	class           uint8
}

// lock returns the locked shard of a counter and limit, and their hash.
func (r *recent) lock(kind Kind, key []byte, l ofLimit) (*shard, uint64) {
	hash := maphash.Bytes(r.seed, key) + maphash.Comparable(r.seed, l) + uint64(kind)
	sh := &r.shards[hash%shardCount]
	sh.mu.Lock()
	return sh, hash
}

// add remembers a counter until a time. The shard is locked.
func (sh *shard) add(hash uint64, until, now int64) {
	if sh.until == nil {
		sh.until = make(map[uint64]int64)
	}
	if _, known := sh.until[hash]; !known && len(sh.until) >= maxRecent {
		sh.makeRoom(now)
	}
	sh.until[hash] = until
	sh.first = min(sh.first, until)
}

// makeRoom drops the counters whose periods are over. If no period is over, it drops an arbitrary counter.
func (sh *shard) makeRoom(now int64) {
	if sh.first <= now {
		sh.first = math.MaxInt64
		for hash, until := range sh.until {
			if until <= now {
				delete(sh.until, hash)
				continue
			}
			sh.first = min(sh.first, until)
		}
	}
	for hash := range sh.until {
		if len(sh.until) < maxRecent {
			return
		}
		delete(sh.until, hash)
	}
}
