package memory

import (
	"context"
	"time"
)

// Run drops expired counters until ctx ends; it returns nil. One shard is swept at a time, so that no decision waits
// for more than a 256th of the counters.
func (s *Store) Run(ctx context.Context) error {
	tick := time.NewTicker(s.opts.SweepInterval / shardCount)
	defer tick.Stop()
	for i := 0; ; i = (i + 1) % shardCount {
		select {
		case <-ctx.Done():
			return nil
		case now := <-tick.C:
			s.sweepShard(i, now)
		}
	}
}

// Sweep drops all counters that have expired at now.
func (s *Store) Sweep(now time.Time) {
	for i := range s.shards {
		s.sweepShard(i, now)
	}
}

func (s *Store) sweepShard(i int, now time.Time) {
	sh := &s.shards[i]
	sh.mu.Lock()
	defer sh.mu.Unlock()
	s.live.Add(-int64(sh.sweep(now.UnixMicro())))
}

// sweepOnce sweeps unless it did so within the last second.
func (sh *shard) sweepOnce(now int64) int {
	if now >= sh.lastSweep && now-sh.lastSweep < time.Second.Microseconds() {
		return 0
	}
	sh.lastSweep = now
	return sh.sweep(now)
}

// sweep drops expired counters and returns how many. When a map has become much smaller than it was, it is made anew:
// Go's maps keep the room that they once needed.
func (sh *shard) sweep(now int64) int {
	before := len(sh.counters)
	for key, c := range sh.counters {
		if c.expires <= now {
			delete(sh.counters, key)
		}
	}
	if sh.peak > 1024 && len(sh.counters) < sh.peak/4 {
		fresh := make(map[string]*counter, len(sh.counters))
		for key, c := range sh.counters {
			fresh[key] = c
		}
		sh.counters = fresh
		sh.peak = len(fresh)
	}
	return before - len(sh.counters)
}
