package lease

import (
	"math"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// hotCounter is what is known here of a counter that is hot. Its shard's lock protects it, but for what is set once.
type hotCounter struct {
	rule  *descriptor.Limit // as the rule says it
	limit descriptor.Limit  // as the store counts it: tightened
	terms terms

	// The lease. Permits in the pool were charged in the store and not used yet. Until live they may be used; then they
	// are dormant, until the store's next answer shows how many of them are still worth something.
	pool       int64
	size       int64     // of the lease when it was taken
	sent       time.Time // when it was asked for, which is before the store's clock was read
	live, end  time.Time // after end nothing of a window's or log's permits is worth anything
	window     time.Time // the boundary when it was taken
	generation uint64    // of the lease

	// The store's last answer.
	remaining int64 // -1: none yet
	used      int64
	reset     time.Time
	boundary  time.Time // windows: before it, the window is the one that the answer was about

	// Local use.
	rate    float64 // permits per second
	count   int64   // permits used since
	since   time.Time
	touched time.Time // the last take
	early   bool      // the last lease was used up long before its end

	fetch   *fetch    // in flight
	waiting time.Time // no lease is asked for before: the store is in trouble
	gone    bool      // no longer kept: permits that come back are lost
}

// fetch is one acquisition in flight. Others wait for done.
type fetch struct {
	done chan struct{}
	err  error // for those who waited; set before done is closed
}

// before says whether now is before a deadline on both clocks. The monotonic one does not follow corrections of the
// wall clock, but stands still while the machine is suspended; the wall clock does not.
func before(now, deadline time.Time) bool {
	return now.Before(deadline) && now.UnixNano() < deadline.UnixNano()
}

// shortened allows for clocks that run apart by one part in a thousand.
func shortened(d time.Duration) time.Duration { return d - d/1000 - 1 }

func lengthened(d time.Duration) time.Duration { return d + d/1000 + 1 }

// of says whether the counter's lease is for this limit: a rule that was reloaded may have another number.
func (c *hotCounter) of(l *descriptor.Limit) bool {
	return c.rule == l || c.rule.Requests == l.Requests && c.rule.Burst == l.Burst &&
		c.rule.Algorithm == l.Algorithm && c.rule.NoDelay == l.NoDelay
}

// alive is how many permits may be used at now.
func (c *hotCounter) alive(now time.Time) int64 {
	if c.pool > 0 && before(now, c.live) {
		return c.pool
	}
	return 0
}

// worth is how many of n permits are worth something at a time that is not before now, if the store says so. Within a
// bucket, what has come back since they were taken may have come back for others: they count for as many fewer.
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

// unused is how many permits of the pool the store counts in vain.
func (c *hotCounter) unused(now time.Time) int64 { return max(c.alive(now), c.worth(c.pool, now)) }

// returnable is how many permits a refund may give back that is carried out within a time from now, or never.
func (c *hotCounter) returnable(now time.Time, within time.Duration) int64 {
	if c.terms.Kind == backend.PermitsOfLog {
		return 0 // the store would drop the newest entries, which may be somebody else's
	}
	return c.worth(c.pool, now.Add(within))
}

// expire drops permits that are worth nothing any more and returns how many.
func (c *hotCounter) expire(now time.Time) (expired int64) {
	if c.pool == 0 || c.alive(now) > 0 || c.worth(c.pool, now) > 0 {
		return 0
	}
	return c.drop()
}

// drop empties the pool and returns what was in it.
func (c *hotCounter) drop() (dropped int64) {
	dropped, c.pool = c.pool, 0
	return dropped
}

// want is how many permits to ask the store for at now, those that are needed at once included; 1 or less if there is
// to be no lease. It is what is used here within half of a lease's life, unless that is more than a fair share of what
// is there, or of what is left.
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
	return min(n, c.terms.most, int64(c.limit.Capacity())/share/int64(replicas), left/(2*int64(replicas)))
}

// take uses up permits of the pool. When a lease is used up early, the next one should be larger.
func (c *hotCounter) take(hits int64, now time.Time) {
	c.pool -= hits
	c.count += hits
	if c.pool == 0 {
		c.early = now.Sub(c.sent) < c.terms.tau/4
	}
}

// answer is the outcome of a take that was allowed from the pool, which it has left already.
func (c *hotCounter) answer(hits int64, now time.Time) backend.Outcome {
	used := max(c.used-c.pool, hits) + int64(c.terms.gap)
	return backend.Outcome{
		Allowed: true, Before: used - hits, Used: used,
		ResetAfter: max(0, c.reset.Sub(now).Truncate(time.Microsecond)),
	}
}

// saw keeps what the store answered to a request of the time sent. More is in use than the limit when refused hits were
// counted: then permits are void too, and saw returns how many it dropped.
func (c *hotCounter) saw(o *backend.Outcome, sent time.Time) (void int64) {
	c.used = o.Used
	c.remaining = int64(o.Remaining(c.limit.Capacity()))
	c.reset = sent.Add(o.ResetAfter)
	if c.terms.Kind == backend.PermitsOfWindow {
		c.boundary = sent.Add(backend.Boundary(&c.limit, o))
	}
	void = min(c.pool, max(0, o.Used-int64(c.limit.Capacity())))
	c.pool -= void
	return void
}

// same says whether the window that the lease was charged to is still the one of the store's last answer, to a question
// of sent: then both end at one time. It is not if the store's clock leapt meanwhile, because somebody set it or because
// a failover brought another clock.
func (c *hotCounter) same(sent time.Time) bool {
	off := trip + sent.Sub(c.sent)/500 + c.terms.Slack
	return c.window.Sub(c.boundary).Abs() < off
}

// trip is the longest that a question may be on its way to the store for its answer's time to be relied on.
const trip = 50 * time.Millisecond

// hold makes n permits the lease, from a question of sent on.
func (c *hotCounter) hold(n int64, sent time.Time) {
	c.pool, c.size, c.sent = n, n, sent
	c.window = c.boundary
	c.generation++
	c.early = false
	life := c.terms.tau
	if c.terms.Kind == backend.PermitsOfWindow {
		d := max(0, c.boundary.Sub(sent))
		life = min(life, d)
		c.end = sent.Add(shortened(d))
	} else {
		c.end = sent.Add(shortened(life))
	}
	c.live = sent.Add(shortened(life))
}
