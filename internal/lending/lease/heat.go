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

// heat counts the takes of one counter that has no lease, for the length of a lease's life. Many counters share a slot,
// and the first take that finds it free gets it for its counter. So cold counters cost nothing, however many there are.
// A hot counter is found soon, because its takes come first more often than others.
type heat struct {
	tag   uint32 // of the counter
	takes uint32
	until int64 // in microseconds
}

// hotness says how many takes within the life of a lease make a counter hot, and how long that life may be.
type hotness struct {
	takes   uint32
	longest time.Duration
}

var (
	nearHot = hotness{hotTakes, longest}
	farHot  = hotness{2, time.Minute} // a lease saves its callers an answer that comes too late
)

// warm counts a take of a counter that has no lease. It reports whether the counter is hot now.
func (sh *shard) warm(hash uint64, within time.Duration, hot hotness, now time.Time) bool {
	h := &sh.heat[hash/shardCount%heatSlots]
	tag, at := uint32(hash>>32), now.UnixMicro()
	if h.until <= at || h.until > at+hot.longest.Microseconds() { // over, or the clock went back
		*h = heat{tag: tag, until: at + within.Microseconds()}
	}
	if h.tag != tag {
		return false
	}
	h.takes++
	return h.takes >= hot.takes
}

// counter returns what is known about the counter of a take, if it is hot and under the same limit; else nil. The shard
// is locked.
func (l *Leases) counter(sh *shard, hash uint64, t *backend.Take, m *terms, now time.Time) *hotCounter {
	if c := sh.counters[string(t.Key)]; c != nil {
		if !c.of(t.Limit) {
			return nil
		}
		return c
	}
	hot, least, within := nearHot, int64(2), m.tau
	if l.opts.Far != nil {
		hot, least, within = farHot, 1, min(t.Limit.Window.Length(), farHot.longest)
	}
	if m.most < least || t.Hits <= 0 || l.closed.Load() || !sh.warm(hash, within, hot, now) {
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
	if c.edge != nil { // else it would keep the counter in memory until the window ends
		c.edge.Stop()
		c.edge = nil
	}
	delete(sh.counters, key)
	l.held.Add(-1)
}
