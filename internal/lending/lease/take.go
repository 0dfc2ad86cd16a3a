package lease

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/platform/async"
)

// forwarded holds the takes of one request that go to the backend. It is reused.
type forwarded struct {
	request backend.SubRequest
	retry   backend.SubRequest // takes that still have no answer after the call
	takes   []forwardedTake    // one for each take of request
	// one of the takes is an acquisition: others wait for it, so this call must not wait for others
	leads bool
	err   error // of an acquisition that a take waited for

	// When a call that waits more than once has to end: two timeouts of the backend would be twice the time that the
	// caller was promised.
	until time.Time
}

// forwardedTake is one take that goes to the backend, and what this replica knows about its counter.
type forwardedTake struct {
	hits int64 // of the original take

	shard *shard
	c     *hotCounter // nil: the counter has no lease
	terms terms

	lead bool // the take acquires a lease: it asks for more than its own hits, and other takes wait for it

	// Permits of the lease that are set aside for this take: the backend is asked for that many fewer.
	aside      int64
	back       int64 // a refund: permits that it gives back too
	generation uint64
	until      time.Time // they may be used before this time
	live       bool      // an acquisition: the lease could still be used when the acquisition was sent
	unused     int64     // permits in the lease before: the backend counts them as used, but callers see them as unused

	limit descriptor.Limit // tightened
}

// take answers what it can from leases, and forwards the rest to the backend in one call, in rare cases two. It waits
// for the backend, and for other calls.
func (l *Leases) take(ctx context.Context, now time.Time, r *backend.Request) error {
	c := l.calls.Get().(*forwarded)
	defer l.release(c)
	c.request.Together, c.request.PeekWhenKnown = r.Together, r.PeekWhenKnown
	for start := 0; start < len(r.Takes); {
		end := r.Group(start)
		if end == start+1 && r.Takes[start].Hits > 0 && r.Takes[start].Limit.Lease {
			if err := l.single(ctx, &now, c, r, start); err != nil {
				l.abandon(c, r, start)
				return err
			}
		} else {
			for i := start; i < end; i++ {
				l.pass(c, r, i, now)
			}
		}
		start = end
	}
	if len(c.takes) == 0 {
		return c.err
	}
	return errors.Join(c.err, l.ask(ctx, now, c, r))
}

// Start implements backend.Store. A request with a limit that is leased gets a goroutine, unless the lease of its
// counter answers it.
func (l *Leases) Start(ctx context.Context, now time.Time, b *backend.Batch, r *backend.Request,
	done func(error)) (settled bool, err error) {
	if !concerns(r) {
		return l.opts.Store.Start(ctx, now, b, r, done)
	}
	if l.opts.Far != nil {
		return l.startFar(ctx, now, b, r, done)
	}
	if l.local(now, r) {
		return true, nil
	}
	async.Go(func() error { return l.take(ctx, now, r) }, done)
	return false, nil
}

// local answers a request of one take from the lease of its counter. It returns false if that is not possible; then
// nothing has changed.
func (l *Leases) local(now time.Time, r *backend.Request) bool {
	if len(r.Takes) != 1 || r.Takes[0].Hits <= 0 {
		return false
	}
	t := &r.Takes[0]
	sh, _ := l.shard(t.Key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	k := sh.counters[string(t.Key)]
	return k != nil && k.of(t.Limit) && l.use(k, t, &r.Outcomes[0], now)
}

// use answers a take from a lease. It returns false if the lease has too few permits. The shard is locked.
func (l *Leases) use(k *hotCounter, t *backend.Take, o *backend.Outcome, now time.Time) bool {
	if k.alive(now) < t.Hits {
		return false
	}
	k.touched = now
	k.take(t.Hits, now)
	*o = k.answer(t.Hits, now)
	l.counts.used.Add(t.Hits)
	l.counts.local.Add(1)
	return true
}

// concerns reports whether a request has a take under a limit with leases.
func concerns(r *backend.Request) bool {
	for i := range r.Takes {
		if r.Takes[i].Limit.Lease {
			return true
		}
	}
	return false
}

// single answers a take from the lease of its counter, or adds it to the call to the backend. If another take is
// acquiring permits of the same counter, single waits for the answer, but only once: if others used up the permits that
// came back, they could do so again, so the take then makes its own call. single advances now by the time that it
// waited.
func (l *Leases) single(ctx context.Context, now *time.Time, c *forwarded, r *backend.Request, i int) error {
	t := &r.Takes[i]
	sh, hash := l.shard(t.Key)
	m := terms{}
	for waited := false; ; waited = true {
		sh.mu.Lock()
		k := sh.counters[string(t.Key)]
		if k == nil || !k.of(t.Limit) { // what is leased under another limit does not count
			k = nil
			if m = l.terms(t); m.Kind != backend.NoPermits {
				k = l.counter(sh, hash, t, &m, *now)
			}
		}
		if k == nil {
			sh.mu.Unlock()
			c.forward(i, forwardedTake{hits: t.Hits, terms: m}, t)
			return nil
		}
		k.touched = *now
		if l.use(k, t, &r.Outcomes[i], *now) {
			sh.mu.Unlock()
			return nil
		}
		if k.fetch == nil || waited || c.leads || l.opts.Far != nil {
			l.prepare(c, sh, k, t, i, *now)
			sh.mu.Unlock()
			return nil
		}
		f := k.fetch
		sh.mu.Unlock()

		began := time.Now()
		if err := l.wait(ctx, c, f, began); err != nil {
			return err
		}
		*now = now.Add(time.Since(began))
		if c.shares(f) {
			r.Outcomes[i] = backend.Outcome{Failed: true} // the request's other takes continue
			return nil
		}
	}
}

// wait waits until another call's acquisition ends. It gives up a margin before the caller's deadline.
func (l *Leases) wait(ctx context.Context, c *forwarded, f *fetch, began time.Time) error {
	within, cancel := l.bound(ctx, c, began)
	defer cancel()
	var leave time.Time
	if d, ok := within.Deadline(); ok && !d.Equal(c.until) { // it is the caller's
		leave = d.Add(-backend.Margin(d.Sub(began), l.timers.now(began)))
		var stop context.CancelFunc
		within, stop = context.WithDeadline(within, leave)
		defer stop()
	}
	select {
	case <-f.done:
		return nil
	case <-within.Done():
		if now := time.Now(); !leave.IsZero() && now.After(leave) {
			l.timers.fired(now, now.Sub(leave))
		}
		return fmt.Errorf("wait for a lease: %w", c.own(ctx, ended(within)))
	}
}

// timers are for calls that wait for another call's acquisition.
type timers struct {
	mu   sync.Mutex
	late backend.Lateness
}

func (t *timers) now(now time.Time) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.late.Now(now)
}

func (t *timers) fired(now time.Time, late time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.late.Timer(now, late)
}

// shares reports whether an acquisition that this call waited for failed. Its failure is a failure of this call too.
func (c *forwarded) shares(f *fetch) bool {
	c.err = errors.Join(c.err, f.err)
	return f.err != nil
}

// bound is ctx with a deadline for a call that waits more than once.
func (l *Leases) bound(ctx context.Context, c *forwarded, began time.Time) (context.Context, context.CancelFunc) {
	if l.opts.Timeout <= 0 {
		return ctx, func() {}
	}
	if c.until.IsZero() {
		c.until = began.Add(l.opts.Timeout)
	}
	return context.WithDeadline(ctx, c.until)
}

// own is an error as the caller with ctx may see it: the end of our own time (bound) must not look like the end of the
// caller's time. The backend may give up a moment before the caller's deadline.
func (c *forwarded) own(ctx context.Context, err error) error {
	d, ok := ctx.Deadline()
	if c.until.IsZero() || ok && !d.After(c.until) || ctx.Err() != nil || !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return fmt.Errorf("%w: %v", backend.ErrUnavailable, err) //nolint:errorlint // hidden on purpose
}

// ended is the error, by the contract of Store, for a caller that stopped waiting.
func ended(ctx context.Context) error {
	if err := ctx.Err(); !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return fmt.Errorf("%w: %w", backend.ErrUnavailable, context.DeadlineExceeded)
}

// prepare adds a take that the lease cannot answer to the call to the backend. It asks for a new lease if that pays,
// else for the hits that are missing. The shard is locked.
func (l *Leases) prepare(c *forwarded, sh *shard, k *hotCounter, t *backend.Take, i int, now time.Time) {
	l.counts.expired.Add(k.expire(now))
	p := forwardedTake{hits: t.Hits, shard: sh, c: k, terms: k.terms}
	dormant := k.pool > 0 && k.alive(now) == 0
	size := k.want(now, int(l.replicas.Load()))
	missing := t.Hits - k.alive(now)
	ask := size // more than is missing, else it is no lease
	if dormant {
		// The answer shows how many permits of the old lease still count, even if it is a denial.
		ask = max(missing, size-k.worth(k.pool, now))
	}
	p.lead = k.fetch == nil && t.Hits <= int64(k.limit.Capacity()) && !before(now, k.waiting) &&
		(dormant || ask > missing) && !l.closed.Load() && l.opts.Far == nil
	if !p.lead {
		p.setAside(k, now)
		c.forward(i, p, t)
		return
	}
	p.aside, p.unused, p.generation, p.live = k.pool, k.pool, k.generation, !dormant
	k.pool = 0
	k.fetch = &fetch{done: make(chan struct{})}
	c.leads = true
	asked := c.forward(i, p, t)
	asked.Hits, asked.CountDenied = ask, false // a denied lease is not a denied request
}

// pass adds a take that leases cannot answer to the call to the backend. The permits of an existing lease still matter:
// a take of a group asks for that many fewer hits, a refund gives them back too, and a peek counts them as unused.
func (l *Leases) pass(c *forwarded, r *backend.Request, i int, now time.Time) {
	t := &r.Takes[i]
	p := forwardedTake{hits: t.Hits}
	if !t.Limit.Lease {
		c.forward(i, p, t)
		return
	}
	p.terms = l.terms(t)
	if p.terms.Kind == backend.NoPermits {
		c.forward(i, p, t)
		return
	}
	sh, _ := l.shard(t.Key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	k := sh.counters[string(t.Key)]
	if k == nil || !k.of(t.Limit) {
		c.forward(i, p, t)
		return
	}
	p.shard, p.c = sh, k
	l.counts.expired.Add(k.expire(now))
	back := int64(0)
	switch {
	case t.Hits > 0:
		p.setAside(k, now)
	case t.Hits == 0:
		p.unused = k.unused(now)
	default:
		// The refund gives back the unused permits too. The store counts them as used, so if they stayed charged there, it
		// would carry out refunds of more than what callers have used, which a window drops.
		back = min(k.returnable(now, l.opts.ReturnWithin), backend.MaxHits+t.Hits)
		p.unused, p.back, p.generation = back, back, k.generation
		l.counts.expired.Add(k.drop() - back)
	}
	c.forward(i, p, t).Hits -= back
}

// setAside takes permits of the lease for a take that asks the backend for the rest. It does so only if they will last
// until the backend answers. The shard is locked.
func (p *forwardedTake) setAside(k *hotCounter, now time.Time) {
	alive := k.alive(now)
	p.unused, p.generation, p.until = k.unused(now), k.generation, k.live
	last := lasting
	if k.origin != nil {
		last = farLasting
	}
	// Takes above the capacity never pass: the backend denies them.
	if before(now.Add(last), k.live) && p.hits <= int64(k.limit.Capacity()) {
		p.aside = min(alive, p.hits)
		k.pool -= p.aside
	}
}

// lasting is the minimum time that permits which are set aside must still be valid: longer than a backend takes to
// answer.
const lasting = 25 * time.Millisecond

// forward adds a take of the original request. It returns the take that goes to the backend, which asks for fewer hits
// by the permits that are set aside.
func (c *forwarded) forward(place int, p forwardedTake, t *backend.Take) *backend.Take {
	c.takes = append(c.takes, p)
	asked := c.request.Add(place, *t)
	asked.Hits = p.hits - p.aside
	return asked
}

// abandon returns the permits that were set aside, when a call ends before the backend was asked.
func (l *Leases) abandon(c *forwarded, r *backend.Request, from int) {
	for k := range c.takes {
		p := &c.takes[k]
		r.Outcomes[c.request.Place(k)] = backend.Outcome{Failed: true}
		if p.c != nil {
			p.aside += p.back // the backend was not asked to take them back either
			p.shard.mu.Lock()
			l.putBack(p)
			p.shard.mu.Unlock()
		}
	}
	backend.Fail(r.Outcomes[from:])
}

// putBack returns to the lease the permits that were set aside and not used. If that lease is over, they are lost. The
// shard is locked.
func (l *Leases) putBack(p *forwardedTake) {
	if p.c.gone || p.c.generation != p.generation {
		l.counts.expired.Add(p.aside)
	} else {
		p.c.pool += p.aside
	}
	p.aside, p.back = 0, 0
}

// maxKept is the largest capacity of a call's buffer that is kept for reuse.
const maxKept = 1024

func (l *Leases) release(c *forwarded) {
	if cap(c.takes) > maxKept {
		return
	}
	clear(c.takes)
	c.takes = c.takes[:0]
	c.request.Clear()
	c.leads, c.err, c.until = false, nil, time.Time{}
	l.calls.Put(c)
}
