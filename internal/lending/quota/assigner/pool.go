package assigner

import (
	"time"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/lending/quota"
)

// pool is all buckets that share a counter, directly or through other buckets: limiter.QuotaBucket.Key. They may differ
// in everything else: see terms. Replicas divide a limit by this key, so a question of one of them must mean the same
// in all: see worth.
type pool struct {
	key     string
	planner *quota.Bucket
	buckets []*bucket

	due      time.Time
	position int    // index in Assigner.due; -1 if it is not there
	round    uint64 // number of the last round with this pool

	terms   []*terms // terms of its buckets, each once
	stale   bool     // terms have been removed since the last update
	worth   float64  // value of a token, the cost of the dearest request, in units that the store divides
	askedIn float64  // worth in the last question to the store

	onError descriptor.OnError
	rated   bool    // it has a rate to divide
	even    float64 // the limit spread over its window, in requests per second
	short   bool    // a window is so short that reports must be charged in small portions
	closes  bool    // has a counter that can show that the limit is exhausted

	made                     time.Time
	planned, looked, charged time.Time
	used                     bool // charged since its counters were read
	reopens                  time.Time
	retry                    time.Time // when to read counters again after a failure
	unread                   bool      // it has a rate, but its counters could not be read: on_error decides

	asked time.Time // when the store was asked for a share
	until time.Time // when that share expires
	empty time.Time // time of its last subscription, if it has none now
}

// Counters of windows of at least shortWindow are worth a read between reports.
const shortWindow = 30 * time.Second

// slack is how long clients may pass requests before we know: two reports.
const slack = 10 * time.Second

// planSoon schedules a pool for the earliest time at which it may be planned.
func (a *Assigner) planSoon(now time.Time, p *pool) {
	a.planIn(now, p, replan)
}

// planEach is the extra time per member between two plans of a pool: many times the time that planning a member needs.
const planEach = 10 * time.Microsecond

// planNewcomer plans a pool immediately, because a client without an assignment lets everything pass. A pool with very
// many members waits as usual, so that newcomers cannot keep the assigner busy.
func (a *Assigner) planNewcomer(now time.Time, p *pool) {
	a.planIn(now, p, min(time.Duration(len(p.planner.Subscribers()))*planEach, replan))
	a.rouse()
}

func (a *Assigner) planIn(now time.Time, p *pool, rest time.Duration) {
	at := p.planned.Add(rest)
	if at.Before(now) {
		at = now
	}
	if at.Before(p.due) {
		a.due.set(p, at)
		if at.Equal(now) {
			a.rouse()
		}
	}
}

// takeCharges appends the requests to charge now.
func (p *pool) takeCharges(now time.Time, all []*charge) []*charge {
	if now.Sub(p.charged) < replan {
		return all
	}
	for _, b := range p.buckets {
		if n := b.takeCharge(p.short); n > 0 {
			all = append(all, &charge{b.domain, b.entries, n})
			p.charged, p.used = now, true
		}
	}
	return all
}

// mustLook reports whether the limit's counters must be read.
func (p *pool) mustLook(now time.Time) bool {
	switch {
	case len(p.terms) == 0:
		return false
	case !p.retry.IsZero():
		return !p.retry.After(now)
	case !p.reopens.IsZero():
		return !p.reopens.After(now)
	default:
		return p.closes && p.used && now.Sub(p.looked) >= lookEvery
	}
}

// mustAsk reports whether the store must be asked for a share of the limit.
func (p *pool) mustAsk(now time.Time) bool {
	if !p.rated {
		return false
	}
	since := now.Sub(p.asked)
	return since >= renewEvery || p.asked.IsZero() || since >= claimEvery &&
		(p.planner.Claims(now) || p.planner.Unsettled())
}

// plan plans a pool, and queues the changes for its clients.
func (a *Assigner) plan(now time.Time, p *pool) {
	if a.pools[p.key] != p {
		return
	}
	a.abandonIdle(now, p)
	if p.stale && len(p.terms) > 0 && !p.unread {
		p.update(now, a.o.Store == nil)
	}
	if a.o.Store != nil && p.rated {
		p.guard(now)
	}
	for _, m := range p.planner.Plan(now) {
		s := m.Owner.(*subscription)
		if s.state == active {
			s.stream.enqueue(s)
		}
	}
	p.planned = now
	if a.removable(now, p) {
		delete(a.pools, p.key)
		a.keep(-p.bytes())
		a.due.remove(p)
		if len(a.pools) == 0 { // neither maps nor slices shrink
			a.pools, a.due.pools = make(map[string]*pool), nil
		}
		return
	}
	a.due.set(p, p.next(now))
}

// guard prevents a replica that has lost contact to the store from renewing shares that others may hold by now.
func (p *pool) guard(now time.Time) {
	switch {
	case now.Add(quota.TTL + shareMargin).Before(p.until):
		if _, fixed := p.planner.Fixed(); fixed && p.reopens.IsZero() && !p.unread {
			p.planner.Divide()
		}
	case p.onError == descriptor.OnErrorLocal && p.planner.Share().Replicas > 0:
		// it continues to divide its share
	default:
		p.fixOnError()
	}
}

// fixOnError gives all clients the assignment for on_error. With error, and with local if this replica has no share,
// their assignments expire.
func (p *pool) fixOnError() {
	switch p.onError {
	case descriptor.OnErrorAllow:
		p.planner.Fix(quota.Assignment{Kind: quota.AllowAll, TTL: quota.TTL})
	case descriptor.OnErrorDeny:
		p.planner.Fix(quota.Assignment{Kind: quota.DenyAll, TTL: quota.TTL})
	default:
		p.planner.Fix(quota.Assignment{})
	}
}

// shareMargin is how much longer a share lasts than its clients' assignments.
const shareMargin = 2 * time.Second

// next returns when a pool is due again after planning.
func (p *pool) next(now time.Time) time.Time {
	at := now.Add(longest)
	earlier := func(t time.Time) {
		if !t.IsZero() && t.Before(at) {
			at = t
		}
	}
	earlier(p.planner.Renewal())
	if len(p.terms) > 0 {
		earlier(p.retry)
		earlier(p.reopens)
	}
	if p.planner.NeedsPlan() {
		earlier(now.Add(replan))
	}
	for _, b := range p.buckets {
		if b.uncharged > 0 {
			earlier(p.charged.Add(replan))
			break
		}
	}
	if !p.asked.IsZero() {
		if p.planner.Claims(now) || p.planner.Unsettled() {
			earlier(p.asked.Add(claimEvery))
		}
		earlier(p.asked.Add(renewEvery))
	}
	if at.Before(now.Add(pause)) {
		at = now.Add(pause)
	}
	return at
}

// kept is how long a pool without subscriptions is kept, so that clients that return find as many saved tokens as when
// they left. The counters of longer windows remember the used hits. While more than half of the bytes are in use, a
// pool is kept for keptAtLeast only: until all assignments of its clients have expired.
const kept, keptAtLeast = 10 * time.Minute, quota.TTL + 2*time.Second

// removable reports whether the pool can be removed, and removes its buckets without subscriptions.
func (a *Assigner) removable(now time.Time, p *pool) bool {
	for _, b := range p.buckets {
		if len(b.subscriptions) > 0 || b.uncharged > 0 {
			p.empty = time.Time{}
			return false
		}
	}
	for len(p.buckets) > 0 {
		a.removeBucket(p.buckets[0])
	}
	if p.empty.IsZero() {
		p.empty = now
	}
	long := kept
	if a.bytes > a.o.MaxBytes/2 {
		long = keptAtLeast
	}
	return !p.rated || p.planner.Full(now) || now.Sub(p.empty) >= long
}

// removeBucket forgets a bucket without subscriptions.
func (a *Assigner) removeBucket(b *bucket) {
	if p := b.pool; p != nil {
		p.leave(b)
	}
	delete(a.buckets, b.key)
	if len(a.buckets) == 0 {
		a.buckets = make(map[string]*bucket)
	}
	a.keep(-(b.bytes() + b.reserved))
}

func (p *pool) join(b *bucket) {
	b.pool, b.place = p, len(p.buckets)
	p.buckets = append(p.buckets, b)
}

func (p *pool) leave(b *bucket) {
	p.dismiss(b)
	last := len(p.buckets) - 1
	p.buckets[b.place] = p.buckets[last]
	p.buckets[b.place].place = b.place
	p.buckets[last] = nil
	p.buckets = p.buckets[:last]
	b.pool = nil
}

// abandonIdle tells clients to forget buckets that they do not use.
func (a *Assigner) abandonIdle(now time.Time, p *pool) {
	for _, b := range p.buckets {
		for i := len(b.subscriptions) - 1; i >= 0; i-- { // drop moves the last one to its place
			s := b.subscriptions[i]
			switch {
			case s.state == active && s.member != nil && now.Sub(s.member.Active()) >= a.o.Idle:
				s.state = abandoning
				s.stream.enqueue(s)
			case s.state == forgotten && now.Sub(s.abandoned) >= settled:
				s.stream.drop(now, s)
			}
		}
	}
}

// settled is how long reports of a bucket may be pending after its client was told to forget it.
const settled = 5 * time.Second
