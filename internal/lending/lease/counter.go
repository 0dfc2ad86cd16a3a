package lease

import (
	"math"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// hotCounter is the state of a hot counter on this replica. The lock of its shard protects it, except fields that are
// set once.
type hotCounter struct {
	rule  descriptor.Limit // copy of the takes' limit: the caller may reuse its memory
	limit descriptor.Limit // the limit that the store counts under, tightened
	terms terms

	// The lease. The pool holds permits already charged in the store but not yet spent. They may be used until live. Later
	// they are dormant: the next answer of the store shows how many of them still count.
	pool       int64
	size       int64     // permits in the lease when it was acquired
	sent       time.Time // when the lease was requested, which is before the store read its clock
	live, end  time.Time // after end, permits of a window or a log are worthless
	window     time.Time // the boundary at that time
	generation uint64    // number of the lease

	// The store's last answer.
	remaining int64 // remaining hits, or -1 before the first answer
	used      int64
	more      time.Time // when the remaining hits increase
	reset     time.Time
	boundary  time.Time // end of the window of that answer, if the limit has windows

	// Local use.
	rate    float64 // permits per second
	count   int64   // permits used since `since`
	since   time.Time
	touched time.Time // the last take
	early   bool      // the last lease was used up long before its end

	fetch   *fetch    // pending acquisition
	waiting time.Time // no lease is requested before this time: the store is in trouble, or has denied one
	farParts

	gone bool // evicted: returned permits are discarded
}

// farParts are the fields for a store in another region (far.go). Otherwise they are zero.
type farParts struct {
	key    []byte
	from   *descriptor.Rule
	origin *backend.Origin
	there  *descriptor.Limit // the store's limit, if its numbers differ from ours
	edge   *time.Timer       // fires when the window ends; nil if it is not running
	hits   int64             // hits of the last request
	denied bool              // whether the store's last answer was a denial
}

// fetch is a pending acquisition. Other takes wait for done.
type fetch struct {
	done chan struct{}
	err  error // error for the takes that waited; set before done is closed
}

// before reports whether now is before a deadline on both clocks. The monotonic clock does not follow corrections of
// the wall clock, but it stands still while the machine is suspended. The wall clock does not stand still.
func before(now, deadline time.Time) bool {
	return now.Before(deadline) && now.UnixNano() < deadline.UnixNano()
}

// shortened returns d less a thousandth, because clocks may drift apart by that much.
func shortened(d time.Duration) time.Duration { return d - d/1000 - 1 }

func lengthened(d time.Duration) time.Duration { return d + d/1000 + 1 }

// of reports whether the counter's lease is under this limit. The key does not tell: after a reload, or for another
// plan, the numbers may differ. Takes under such a limit ask the store, which counts the permits as used.
func (c *hotCounter) of(l *descriptor.Limit) bool {
	return c.rule.Requests == l.Requests && c.rule.Burst == l.Burst &&
		c.rule.Algorithm == l.Algorithm && c.rule.NoDelay == l.NoDelay
}

// alive returns how many permits may be used at now.
func (c *hotCounter) alive(now time.Time) int64 {
	if before(now, c.live) {
		return c.pool
	}
	return 0
}

// worth returns how many of n permits still count at now or later, if the store confirms it. A bucket may have given
// its refill since to others, so that many permits no longer count.
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

// unused returns how many unused permits of the pool the store counts as used.
func (c *hotCounter) unused(now time.Time) int64 { return max(c.alive(now), c.worth(c.pool, now)) }

// returnable returns how many permits a refund may return, if the store carries it out within the given time or never.
func (c *hotCounter) returnable(now time.Time, within time.Duration) int64 {
	if c.terms.Kind == backend.PermitsOfLog {
		return 0 // the store would drop the newest entries, which may be those of other replicas
	}
	return c.worth(c.pool, now.Add(within))
}

// expire drops permits that have become worthless and returns their number.
func (c *hotCounter) expire(now time.Time) (expired int64) {
	if c.alive(now) > 0 || c.worth(c.pool, now) > 0 {
		return 0
	}
	return c.drop()
}

// drop empties the pool and returns the number of dropped permits.
func (c *hotCounter) drop() (dropped int64) {
	dropped, c.pool = c.pool, 0
	return dropped
}

// want returns the number of permits to ask the store for at now, including those needed immediately. 1 or less means
// that no lease is wanted. The number is this replica's use in half of a lease's life, but at most a fair share of the
// capacity and of the remaining hits.
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
			left = int64(c.limit.Capacity()) // another window has started
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

// take uses permits of the pool. If they are used up early, the next lease is larger.
func (c *hotCounter) take(hits int64, now time.Time) {
	c.pool -= hits
	c.count += hits
	if c.pool == 0 {
		c.early = now.Sub(c.sent) < c.terms.tau/4
	}
}

// answer returns the outcome of a take that was answered from the pool, after its hits have left the pool.
func (c *hotCounter) answer(hits int64, now time.Time) backend.Outcome {
	used := max(c.used-c.pool, hits) + int64(c.terms.gap)
	o := backend.Outcome{
		Allowed: true, Before: used - hits, Used: used, Limit: c.there,
		MoreAfter:  max(0, c.more.Sub(now).Truncate(time.Microsecond)),
		ResetAfter: max(0, c.reset.Sub(now).Truncate(time.Microsecond)),
	}
	if c.terms.Within > 0 { // needed by another region that leases from this one
		o.PartEnds = max(0, c.boundary.Sub(now).Truncate(time.Microsecond))
	}
	return o
}

// capacity returns the capacity of the limit that the store counts under.
func (c *hotCounter) capacity() int64 {
	if c.there != nil {
		return int64(c.there.Capacity())
	}
	return int64(c.limit.Capacity())
}

// saw records the store's answer to a request sent at sent. If denied hits were counted, the used hits may exceed the
// limit. Then as many permits are void, and saw returns how many it dropped.
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

// same reports whether the lease was charged to the window of the store's last answer, to a request sent at sent. If
// so, both windows end at the same time. They differ if the store's clock jumped since, because it was set or because a
// failover brought another clock.
func (c *hotCounter) same(sent time.Time) bool {
	off := trip + sent.Sub(c.sent)/500
	return c.window.Sub(c.boundary).Abs() < off
}

// trip is the longest time in which a request may reach the store for the times in its answer to be accurate.
const trip = 50 * time.Millisecond

// hold starts a lease of n permits, requested at sent.
func (c *hotCounter) hold(n int64, sent time.Time) {
	c.pool, c.size, c.sent = n, n, sent
	c.window = c.boundary
	c.generation++
	c.early = false
	life := c.terms.tau
	if c.terms.Kind == backend.PermitsOfWindow {
		d := c.boundary.Sub(sent) // negative if the window had already ended
		life = min(life, d)
		c.end = sent.Add(shortened(d))
	} else {
		c.end = sent.Add(shortened(life))
	}
	c.live = sent.Add(shortened(life))
}
