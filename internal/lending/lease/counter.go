package lease

import (
	"math"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// hotCounter is what this replica knows about a hot counter. The lock of its shard protects it, except fields that are
// set once.
type hotCounter struct {
	rule  descriptor.Limit // a copy of the takes' limit: their memory is the caller's
	limit descriptor.Limit // the limit that the store counts under: tightened
	terms terms

	// The lease. Permits in the pool are charged in the store and not used yet. They may be used until live. After that
	// they are dormant: the next answer of the store shows how many of them still count.
	pool       int64
	size       int64     // number of permits in the lease when it was taken
	sent       time.Time // when it was asked for, which is before the store's clock was read
	live, end  time.Time // after end, permits of a window or a log are worth nothing
	window     time.Time // the boundary when it was taken
	generation uint64    // number of the lease

	// The store's last answer.
	remaining int64 // -1: none yet
	used      int64
	more      time.Time // when more hits fit than then
	reset     time.Time
	boundary  time.Time // windows: until then, the window of that answer is the current one

	// Local use.
	rate    float64 // permits per second
	count   int64   // permits used since
	since   time.Time
	touched time.Time // the last take
	early   bool      // the last lease was used up long before its end

	fetch   *fetch    // in flight
	waiting time.Time // no lease is asked for before this time: the store is in trouble, or has denied one
	farParts

	gone bool // no longer kept: permits that come back are lost
}

// farParts are the parts of a counter that a far store keeps: far.go. They are zero for others.
type farParts struct {
	key    []byte
	from   *descriptor.Rule
	origin *backend.Origin
	there  *descriptor.Limit // the store's numbers, if they are not the limit's
	edge   *time.Timer       // until the window ends; nil: none runs
	hits   int64             // of the last request
	denied bool              // by the store's last answer
}

// fetch is one acquisition in flight. Other takes wait for done.
type fetch struct {
	done chan struct{}
	err  error // for the takes that waited; set before done is closed
}

// before reports whether now is before a deadline on both clocks. The monotonic clock does not follow corrections of
// the wall clock, but it stands still while the machine is suspended. The wall clock does not stand still.
func before(now, deadline time.Time) bool {
	return now.Before(deadline) && now.UnixNano() < deadline.UnixNano()
}

// shortened is d less one part in a thousand, because clocks may run apart by that much.
func shortened(d time.Duration) time.Duration { return d - d/1000 - 1 }

func lengthened(d time.Duration) time.Duration { return d + d/1000 + 1 }

// of reports whether the counter's lease is for this limit. The key does not say so: after a reload, or for another
// plan, the number may be another one. Takes under that limit ask the store, which counts the permits as used.
func (c *hotCounter) of(l *descriptor.Limit) bool {
	return c.rule.Requests == l.Requests && c.rule.Burst == l.Burst &&
		c.rule.Algorithm == l.Algorithm && c.rule.NoDelay == l.NoDelay
}

// alive is how many permits may be used at now.
func (c *hotCounter) alive(now time.Time) int64 {
	if before(now, c.live) {
		return c.pool
	}
	return 0
}

// worth is how many of n permits still count at now, or at a later time, if the store confirms it. What a bucket has
// refilled since they were taken may have gone to others: that many of them no longer count.
func (c *hotCounter) worth(n int64, now time.Time) int64 {
	switch {
	case c.terms.Kind == backend.PermitsOfBucket:
		age := max(now.Sub(c.sent), time.Duration(now.UnixNano()-c.sent.UnixNano()))
		return max(0, n-refilled(&c.limit, lengthened(age)))
	case before(now, c.end):
		return n
	default:
		return 0
	}
}

// unused is how many permits of the pool the store counts as used, although they are not.
func (c *hotCounter) unused(now time.Time) int64 { return max(c.alive(now), c.worth(c.pool, now)) }

// returnable is how many permits a refund may give back, if the store carries the refund out within the given time from
// now, or never.
func (c *hotCounter) returnable(now time.Time, within time.Duration) int64 {
	if c.terms.Kind == backend.PermitsOfLog {
		return 0 // the store would drop the newest entries, which may be those of other replicas
	}
	return c.worth(c.pool, now.Add(within))
}

// expire drops permits that are worth nothing any more and returns their number.
func (c *hotCounter) expire(now time.Time) (expired int64) {
	if c.alive(now) > 0 || c.worth(c.pool, now) > 0 {
		return 0
	}
	return c.drop()
}

// drop empties the pool and returns the number of permits that were in it.
func (c *hotCounter) drop() (dropped int64) {
	dropped, c.pool = c.pool, 0
	return dropped
}

// want is how many permits to ask the store for at now, including those that are needed at once. 1 or less means that
// no lease is wanted. It is what this replica uses in half of the life of a lease, but at most a fair share of the
// capacity, and of what is left.
func (c *hotCounter) want(now time.Time, replicas int) int64 {
	if dt := now.Sub(c.since); dt >= c.terms.tau/8 {
		w := math.Exp(-dt.Seconds() / c.terms.tau.Seconds())
		c.rate = c.rate*w + (1-w)*float64(c.count)/dt.Seconds()
		c.count, c.since = 0, now
	}
	if before(now, c.waiting) {
		return 0
	}
	horizon, left := c.terms.tau, c.remaining
	if c.terms.Kind == backend.PermitsOfWindow && !c.boundary.IsZero() {
		if before(now, c.boundary) {
			horizon = min(horizon, c.boundary.Sub(now))
		} else if c.terms.Renewed {
			left = int64(c.limit.Capacity()) // another window has begun
		}
	}
	n := int64(math.Ceil(min(c.rate*horizon.Seconds()/2, backend.MaxHits)))
	if c.early && now.Sub(c.sent) < c.terms.tau {
		n = max(n, 2*c.size)
	}
	if c.origin != nil {
		return min(n, c.terms.most/int64(replicas), left/(2*int64(replicas)))
	}
	return min(n, c.terms.most, int64(c.limit.Capacity())/share/int64(replicas), left/(2*int64(replicas)))
}

// take uses permits of the pool. If a lease is used up early, the next one should be larger.
func (c *hotCounter) take(hits int64, now time.Time) {
	c.pool -= hits
	c.count += hits
	if c.pool == 0 {
		c.early = now.Sub(c.sent) < c.terms.tau/4
	}
}

// answer is the outcome of a take that was allowed from the pool. Its hits have already left the pool.
func (c *hotCounter) answer(hits int64, now time.Time) backend.Outcome {
	used := max(c.used-c.pool, hits) + int64(c.terms.gap)
	o := backend.Outcome{
		Allowed: true, Before: used - hits, Used: used, Limit: c.there,
		MoreAfter:  max(0, c.more.Sub(now).Truncate(time.Microsecond)),
		ResetAfter: max(0, c.reset.Sub(now).Truncate(time.Microsecond)),
	}
	if c.terms.Within > 0 { // another region that leases from this one has to know
		o.PartEnds = max(0, c.boundary.Sub(now).Truncate(time.Microsecond))
	}
	return o
}

// capacity is that of the limit that the store counts under.
func (c *hotCounter) capacity() int64 {
	if c.there != nil {
		return int64(c.there.Capacity())
	}
	return int64(c.limit.Capacity())
}

// saw records the answer of the store to a request that was sent at sent. If denied hits were counted, more than the
// limit may be in use. Then that many permits are void, and saw returns how many it dropped.
func (c *hotCounter) saw(o *backend.Outcome, sent time.Time) (void int64) {
	c.there = o.Limit
	c.used, c.remaining = o.Used, int64(o.Remaining(uint64(c.capacity())))
	c.more, c.reset = sent.Add(o.MoreAfter), sent.Add(o.ResetAfter)
	if c.terms.Kind == backend.PermitsOfWindow {
		c.boundary = sent.Add(backend.Boundary(&c.limit, o))
	}
	void = min(c.pool, max(0, o.Used-c.capacity()))
	c.pool -= void
	return void
}

// same reports whether the window that the lease was charged to is still the window of the store's last answer, to a
// request that was sent at sent. If so, both windows end at the same time. They differ if the clock of the store jumped
// meanwhile, because it was set or because a failover brought another clock.
func (c *hotCounter) same(sent time.Time) bool {
	off := trip + sent.Sub(c.sent)/500
	return c.window.Sub(c.boundary).Abs() < off
}

// trip is the maximum time that a request may need to reach the store, so that the time of its answer can be relied on.
const trip = 50 * time.Millisecond

// hold makes n permits the new lease. sent is when they were asked for.
func (c *hotCounter) hold(n int64, sent time.Time) {
	c.pool, c.size, c.sent = n, n, sent
	c.window = c.boundary
	c.generation++
	c.early = false
	life := c.terms.tau
	if c.terms.Kind == backend.PermitsOfWindow {
		d := c.boundary.Sub(sent) // less than 0: it was over before
		life = min(life, d)
		c.end = sent.Add(shortened(d))
	} else {
		c.end = sent.Add(shortened(life))
	}
	c.live = sent.Add(shortened(life))
}
