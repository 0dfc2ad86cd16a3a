package lease

import (
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend"
)

const (
	shardCount = 64
	heatSlots  = 128 // per shard
	hotTakes   = 4   // within the life of a lease: with fewer takes, a lease hardly saves a trip
)

// heat counts the takes of one counter that has no lease, for the length of a lease's life. Many counters share a slot, and
// the first take that finds it free gets it for its counter. So cold counters cost nothing, however many there are. A hot
// counter is found soon, because its takes come first more often than others.
type heat struct {
	tag   uint32 // of the counter
	takes uint32
	until int64 // in microseconds
}

// warm counts a take of a counter that has no lease. It reports whether the counter is hot now.
func (sh *shard) warm(hash uint64, tau time.Duration, now time.Time) bool {
	h := &sh.heat[hash/shardCount%heatSlots]
	tag, at := uint32(hash>>32), now.UnixMicro()
	if h.until <= at || h.until > at+longest.Microseconds() { // over, or the clock went back
		*h = heat{tag: tag, until: at + tau.Microseconds()}
	}
	if h.tag != tag {
		return false
	}
	h.takes++
	return h.takes >= hotTakes
}

// counter returns what is known about the counter of a take, if it is hot and under the same limit; else nil. The shard is
// locked.
func (l *Leases) counter(sh *shard, hash uint64, t *backend.Take, m *terms, now time.Time) *hotCounter {
	if c := sh.counters[string(t.Key)]; c != nil {
		if !c.of(t.Limit) {
			return nil
		}
		return c
	}
	if m.most < 2 || t.Hits <= 0 || l.closed.Load() || !sh.warm(hash, m.tau, now) {
		return nil
	}
	if l.held.Add(1) > int64(l.opts.MaxLeases) {
		l.held.Add(-1)
		return nil
	}
	c := &hotCounter{
		rule: *t.Limit, limit: m.tighten(t.Limit), terms: *m, remaining: -1,
		rate: hotTakes / m.tau.Seconds(), since: now, touched: now,
	}
	sh.counters[string(t.Key)] = c
	return c
}

// forget removes a counter. The shard is locked.
func (l *Leases) forget(sh *shard, key string, c *hotCounter) {
	c.gone = true
	delete(sh.counters, key)
	l.held.Add(-1)
}
