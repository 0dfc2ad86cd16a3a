package memory

import (
	"context"
	"time"
)

// restAfterSweep is how long Run leaves a full store alone after a sweep out of turn. It rests four times as long as the
// sweep took, if that is more: a store that stays full does not cost more than a fifth of a core.
const restAfterSweep = time.Second

// Run drops expired counters until ctx ends; it returns nil. One shard is swept at a time, so that no decision waits
// for more than a 256th of the counters. A store that is full is swept as a whole, out of turn.
//
// This is the only place that makes room, but for Sweep: a take never looks at counters that it did not ask for.
func (s *Store) Run(ctx context.Context) error {
	tick := time.NewTicker(s.opts.SweepInterval / shardCount)
	defer tick.Stop()
	rest := time.NewTimer(0)
	defer rest.Stop()
	var full <-chan struct{} // nil while Run rests
	for i := 0; ; {
		select {
		case <-ctx.Done():
			return nil
		case now := <-tick.C:
			s.sweepShard(i, now)
			i = (i + 1) % shardCount
		case <-rest.C:
			full = s.full
		case <-full:
			began := time.Now()
			for j := range s.shards {
				if ctx.Err() != nil {
					return nil
				}
				s.sweepShard(j, began)
			}
			full = nil
			rest.Reset(max(restAfterSweep, 4*time.Since(began)))
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
