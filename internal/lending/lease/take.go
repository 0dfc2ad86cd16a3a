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

// forwarded collects the takes of one request that go to the backend. It is reused.
type forwarded struct {
	request backend.SubRequest
	retry   backend.SubRequest // takes that still have no answer after the call
	takes   []forwardedTake    // one for each take of request
	// one of the takes is an acquisition: others wait for it, so this call must not wait for others
	leads bool
	err   error // error of an acquisition that a take waited for

	// until is the end of a call that waits more than once. Two timeouts of the backend would be twice the time that the
	// caller was promised.
	until time.Time
}

// forwardedTake is a take that goes to the backend, with the state of its counter here.
type forwardedTake struct {
	hits int64 // hits of the original take

	shard *shard
	c     *hotCounter // nil if the counter has no lease
	terms terms

	lead bool // the take acquires a lease: it asks for more than its own hits, and other takes wait for it

	// Permits of the lease set aside for this take: the backend is asked for that many fewer.
	aside      int64
	back       int64 // permits that a refund returns in addition
	generation uint64
	until      time.Time // end of the permits' life
	live       bool      // the lease was still usable when this acquisition was sent
	unused     int64     // permits in the lease before: the backend counts them as used, clients see them as unused

	limit descriptor.Limit // tightened
}

// take answers takes from leases where possible, and forwards the rest to the backend in one call, rarely in two. It
// waits for the backend, and for other calls.
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

// Start implements backend.Store. A request with a leased limit runs on a goroutine, unless the lease of its counter
// answers it.
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

// local answers a request with a single take from the lease of its counter. If it returns false, nothing has changed.
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

// use answers a take from a lease. It returns false if the lease has too few permits. The shard must be locked.
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
// acquiring permits of the same counter, single waits for the answer, but only once: others may use up those permits
// again and again, so the take then makes its own call. single advances now by the time that it waited.
func (l *Leases) single(ctx context.Context, now *time.Time, c *forwarded, r *backend.Request, i int) error {
	t := &r.Takes[i]
	sh, hash := l.shard(t.Key)
	m := terms{}
	for waited := false; ; waited = true {
		sh.mu.Lock()
		k := sh.counters[string(t.Key)]
		if k == nil || !k.of(t.Limit) { // permits under another limit do not count
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
			r.Outcomes[i] = backend.Outcome{Failed: true} // the other takes of the request continue
			return nil
		}
	}
}

// wait waits until another call's acquisition ends. It stops a margin before the deadline of ctx.
func (l *Leases) wait(ctx context.Context, c *forwarded, f *fetch, began time.Time) error {
	within, cancel := l.bound(ctx, c, began)
	defer cancel()
	var leave time.Time
	if d, ok := within.Deadline(); ok && !d.Equal(c.until) { // the deadline of ctx, not c.until
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

// timers tracks how late timers fire in calls that wait for an acquisition.
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

// shares reports whether an acquisition that this call waited for failed. Its error is then also an error of this call.
func (c *forwarded) shares(f *fetch) bool {
	c.err = errors.Join(c.err, f.err)
	return f.err != nil
}

// bound returns ctx with a deadline for a call that waits more than once.
func (l *Leases) bound(ctx context.Context, c *forwarded, began time.Time) (context.Context, context.CancelFunc) {
	if l.opts.Timeout <= 0 {
		return ctx, func() {}
	}
	if c.until.IsZero() {
		c.until = began.Add(l.opts.Timeout)
	}
	return context.WithDeadline(ctx, c.until)
}

// own returns an error as the caller with ctx may see it: the end of bound's time must not look like the end of the
// caller's time. The backend may give up a moment before the deadline of ctx.
func (c *forwarded) own(ctx context.Context, err error) error {
	d, ok := ctx.Deadline()
	if c.until.IsZero() || ok && !d.After(c.until) || ctx.Err() != nil || !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return fmt.Errorf("%w: %v", backend.ErrUnavailable, err) //nolint:errorlint // hidden on purpose
}

// ended returns the error that Store specifies for a caller that stopped waiting.
func ended(ctx context.Context) error {
	if err := ctx.Err(); !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return fmt.Errorf("%w: %w", backend.ErrUnavailable, context.DeadlineExceeded)
}

// prepare adds a take that the lease cannot answer to the call to the backend. It asks for a new lease if that pays
// off, otherwise for the missing hits. The shard must be locked.
func (l *Leases) prepare(c *forwarded, sh *shard, k *hotCounter, t *backend.Take, i int, now time.Time) {
	l.counts.expired.Add(k.expire(now))
	p := forwardedTake{hits: t.Hits, shard: sh, c: k, terms: k.terms}
	dormant := k.pool > 0 && k.alive(now) == 0
	size := k.want(now, int(l.replicas.Load()))
	missing := t.Hits - k.alive(now)
	ask := size // a lease asks for more than the missing hits
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
// a take of a group asks for that many fewer hits, a refund returns them too, and a peek counts them as unused.
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
		// The refund returns the unused permits too. If they stayed charged in the store, it would accept refunds of more
		// hits than clients have used, which a window ignores.
		back = min(k.returnable(now, l.opts.ReturnWithin), backend.MaxHits+t.Hits)
		p.unused, p.back, p.generation = back, back, k.generation
		l.counts.expired.Add(k.drop() - back)
	}
	c.forward(i, p, t).Hits -= back
}

// setAside takes permits of the lease for a take that asks the backend for the rest, if they will last until the
// backend answers. The shard must be locked.
func (p *forwardedTake) setAside(k *hotCounter, now time.Time) {
	alive := k.alive(now)
	p.unused, p.generation, p.until = k.unused(now), k.generation, k.live
	last := lasting
	if k.origin != nil {
		last = farLasting
	}
	// The backend always denies takes above the capacity.
	if before(now.Add(last), k.live) && p.hits <= int64(k.limit.Capacity()) {
		p.aside = min(alive, p.hits)
		k.pool -= p.aside
	}
}

// lasting is the remaining life that permits need to be set aside: longer than a backend takes to answer.
const lasting = 25 * time.Millisecond

// forward adds a take of the original request. It returns the take for the backend, which asks for the hits that are
// not set aside.
func (c *forwarded) forward(place int, p forwardedTake, t *backend.Take) *backend.Take {
	c.takes = append(c.takes, p)
	asked := c.request.Add(place, *t)
	asked.Hits = p.hits - p.aside
	return asked
}

// abandon returns the permits that were set aside, if a call ends before the backend was asked.
func (l *Leases) abandon(c *forwarded, r *backend.Request, from int) {
	for k := range c.takes {
		p := &c.takes[k]
		r.Outcomes[c.request.Place(k)] = backend.Outcome{Failed: true}
		if p.c != nil {
			p.aside += p.back // the backend was not asked to return them either
			p.shard.mu.Lock()
			l.putBack(p)
			p.shard.mu.Unlock()
		}
	}
	backend.Fail(r.Outcomes[from:])
}

// putBack returns unused permits that were set aside to the lease. If that lease is over, they are lost. The shard must
// be locked.
func (l *Leases) putBack(p *forwardedTake) {
	if p.c.gone || p.c.generation != p.generation {
		l.counts.expired.Add(p.aside)
	} else {
		p.c.pool += p.aside
	}
	p.aside, p.back = 0, 0
}

// maxKept is the largest capacity of a buffer that is kept for reuse.
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
