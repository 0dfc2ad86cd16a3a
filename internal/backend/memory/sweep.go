package memory

import (
	"context"
	"time"
)

// grace is how much longer an expired counter is kept while callers share counters because there is no room. A caller that
// comes back within this time keeps its own counter from one window to the next.
const grace = 5 * time.Second

// restAfterSweep is how long Run leaves a full store alone after a sweep out of turn. Run rests four times as long as the
// sweep took, if that is longer: a store that stays full costs at most a fifth of a core.
const restAfterSweep = time.Second

// Run drops expired counters until ctx ends, and then returns nil. It sweeps one shard at a time, so that no decision waits
// for more than a 256th of the counters. A store that is full is swept as a whole, out of turn.
//
// Only Run and Sweep make room: a take never looks at the counters of others.
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
			s.sweepShard(i, now.Add(-s.grace()))
			if i = (i + 1) % shardCount; i == 0 {
				s.tidy(now.Add(-grace).UnixMicro())
			}
		case <-rest.C:
			full = s.full
		case <-full:
			began := time.Now()
			for j := range s.shards {
				if ctx.Err() != nil {
					return nil
				}
				s.sweepShard(j, began.Add(-s.grace()))
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
	s.tidy(now.UnixMicro())
}

func (s *Store) grace() time.Duration {
	if s.shares.rows.Load() == 0 {
		return 0
	}
	return grace
}

// sweepShard drops the expired counters of a shard. If the map has become much smaller than it was, sweepShard makes a new
// one: Go's maps keep the memory that they once needed.
func (s *Store) sweepShard(i int, at time.Time) {
	sh, now := &s.shards[i], at.UnixMicro()
	sh.mu.Lock()
	defer sh.mu.Unlock()
	for key, c := range sh.counters {
		if c.expires <= now {
			delete(sh.counters, key)
			s.release(c.share)
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
}
