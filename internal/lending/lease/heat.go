package lease

import (
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend"
)

const (
	shardCount = 64
	heatSlots  = 128 // slots of a shard
	hotTakes   = 4   // takes within the life of a lease that make a counter hot: with fewer, a lease hardly saves a trip
)

// heat counts the takes of a counter without a lease, for the length of a lease's life. Many counters share a slot: the
// first take that finds it free claims it for its counter. So any number of cold counters costs nothing. A hot counter
// is found soon, because it has more takes that can come first.
type heat struct {
	tag   uint32 // part of the counter's hash
	takes uint32
	until int64 // end of the count, in microseconds since 1970
}

// hotness defines a hot counter: the number of takes within the life of a lease, and a bound of that life.
type hotness struct {
	takes   uint32
	longest time.Duration
}

var (
	nearHot = hotness{hotTakes, longest}
	farHot  = hotness{2, time.Minute} // one lease already saves requests from an answer that comes too late
)

// warm counts a take of a counter without a lease, and reports whether the counter is now hot.
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

// counter returns the hot counter of a take, or nil if the counter is not hot or is leased under another limit. The
// shard must be locked.
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

// forget removes a counter. The shard must be locked.
func (l *Leases) forget(sh *shard, key string, c *hotCounter) {
	c.gone = true
	if c.edge != nil { // or it would keep the counter in memory until the window ends
		c.edge.Stop()
		c.edge = nil
	}
	delete(sh.counters, key)
	l.held.Add(-1)
}
