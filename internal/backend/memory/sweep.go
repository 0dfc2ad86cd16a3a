package memory

import (
	"context"
	"time"
)

// grace is how much longer an expired counter is kept while customers share counters because the store is full. A
// customer who comes back within this time keeps a separate counter from one window to the next.
const grace = 5 * time.Second

// restAfterSweep is how long Run leaves a full store alone after a sweep out of turn. Run rests four times as long as
// the sweep took, if that is longer: a store that stays full costs at most a fifth of a core.
const restAfterSweep = time.Second

// few is the number of counters that can be checked in one go: in about a millisecond. An idle replica would otherwise
// wake up 26 times a second for them.
const few = 10_000

// Run drops expired counters until ctx ends, and then returns nil. It sweeps one shard at a time, so that no decision
// waits for more than a 256th of the counters, and few counters in one go. A store that is full is swept as a whole,
// out of turn.
//
// Only Run and Sweep make room: a take never looks at the counters of others.
func (s *Store) Run(ctx context.Context) error {
	tick := time.NewTimer(s.opts.SweepInterval / shardCount)
	defer tick.Stop()
	rest := time.NewTimer(0)
	defer rest.Stop()
	var full <-chan struct{} // nil while Run rests
	for i := 0; ; {
		select {
		case <-ctx.Done():
			return nil
		case now := <-tick.C:
			last, wait := i, s.opts.SweepInterval/shardCount
			if s.Len() <= few {
				last, wait = shardCount-1, s.opts.SweepInterval
			}
			for ; i <= last; i++ {
				s.sweepShard(i, now.Add(-s.grace()))
			}
			if i == shardCount {
				i = 0
				s.tidy(s.clock.Elapsed(now.Add(-grace)))
			}
			tick.Reset(wait)
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
	s.tidy(s.clock.Elapsed(now))
}

func (s *Store) grace() time.Duration {
	if s.shares.rows.Load() == 0 {
		return 0
	}
	return grace
}

// sweepShard drops the expired counters of a shard, and gives back the memory that they needed.
func (s *Store) sweepShard(i int, at time.Time) {
	sh, now := &s.shards[i], s.clock.Times(at)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	s.sweepReservations(sh, now)
	sh.work = counter{} // it may be the last to refer to a tail
	sh.table.expire(now.Elapsed, func(share uint32) { s.giveRoom(s.shareNumbered(share)) })
	sh.table.shrink()
}
