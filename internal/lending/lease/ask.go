package lease

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// ask calls the backend and settles its answers. A denied lease does not show whether the take's own hits would be
// denied too, so a second call asks for those.
func (l *Leases) ask(ctx context.Context, now time.Time, c *forwarded, r *backend.Request) error {
	began, within, cancel := time.Now(), ctx, context.CancelFunc(func() {})
	if !c.until.IsZero() { // this request has waited before
		within, cancel = l.bound(ctx, c, began)
	}
	err := l.send(within, &now, c, r)
	cancel()
	if len(c.takes) > 0 {
		within, cancel = l.bound(ctx, c, began)
		err = errors.Join(err, l.send(within, &now, c, r))
		cancel()
	}
	return c.own(ctx, err)
}

// send makes one call. Afterwards c holds the takes that need another call.
func (l *Leases) send(ctx context.Context, now *time.Time, c *forwarded, r *backend.Request) error {
	for k := range c.takes {
		p := &c.takes[k]
		switch {
		case p.c != nil:
			c.request.Takes[k].Limit = &p.c.limit
		case p.terms.tightens():
			p.limit = p.terms.tighten(c.request.Takes[k].Limit)
			c.request.Takes[k].Limit = &p.limit
		}
	}
	c.request.Prepare()

	sent, began := *now, time.Now()
	within := ctx
	if c.leads {
		// Others wait for these permits. If the caller cancels, the call continues, to find out whether the permits were
		// granted.
		var cancel context.CancelFunc
		within, cancel = uncancelled(ctx)
		defer cancel()
		defer c.breakOff()
	}
	err := backend.Await(within, l.opts.Store, sent, &c.request.Request)
	*now = sent.Add(time.Since(began))

	again := 0
	for start := 0; start < len(c.request.Takes); {
		end := c.request.Group(start)
		if c.late(start, end, *now) {
			err = errors.Join(err, fmt.Errorf("%w: the answer came after the end of the lease that a part of the hits is from",
				backend.ErrUnavailable))
		}
		call := reply{sent, *now, shared(ctx, err)}
		denied := backend.Denied(c.request.Takes[start:end], c.request.Outcomes[start:end])
		for k := start; k < end; k++ {
			p, t, o, place := &c.takes[k], &c.request.Takes[k], &c.request.Outcomes[k], c.request.Place(k)
			if p.lead {
				if !l.settleLease(p, t, o, call) {
					c.takes[again] = *p
					c.retry.Add(place, r.Takes[place]).Hits = p.hits - p.aside
					again++
					continue
				}
			} else {
				l.settle(p, t, o, denied, sent)
			}
			r.Outcomes[place] = *o
		}
		start = end
	}
	c.takes = c.takes[:again]
	c.retry.Together, c.retry.PeekWhenKnown = c.request.Together, c.request.PeekWhenKnown
	c.request, c.retry = c.retry, c.request
	c.retry.Clear()
	c.leads = false
	return err
}

// breakOff ends pending acquisitions after the backend panicked, so that the takes that wait for them continue.
func (c *forwarded) breakOff() {
	for k := range c.takes {
		p := &c.takes[k]
		if !p.lead {
			continue
		}
		p.shard.mu.Lock()
		close(p.c.fetch.done)
		p.c.fetch = nil
		p.shard.mu.Unlock()
		p.lead = false
	}
}

// late reports whether permits set aside for a group expired before the answer, and then marks the group as failed:
// these permits and the hits that the call took were never valid at the same time. This is like a timeout, and as rare.
func (c *forwarded) late(start, end int, now time.Time) bool {
	late := false
	for k := start; k < end; k++ {
		p := &c.takes[k]
		late = late || !p.lead && p.aside > 0 && !before(now, p.until)
	}
	if late {
		backend.Fail(c.request.Outcomes[start:end])
	}
	return late
}

// uncancelled returns ctx without its cancellation. The deadline of ctx still applies.
func uncancelled(ctx context.Context) (context.Context, context.CancelFunc) {
	bare := context.WithoutCancel(ctx)
	if d, ok := ctx.Deadline(); ok {
		return context.WithDeadline(bare, d)
	}
	return bare, func() {}
}

// settle finishes a take that asked for its own hits. denied means that its group was denied: then nothing was added,
// unless this take was denied itself and its denied hits count.
func (l *Leases) settle(p *forwardedTake, t *backend.Take, o *backend.Outcome, denied bool, sent time.Time) {
	if o.Failed {
		if p.aside > 0 {
			p.shard.mu.Lock()
			defer p.shard.mu.Unlock()
			l.putBack(p)
		}
		l.counts.expired.Add(p.back) // they may have been returned
		return
	}
	if p.c != nil {
		p.shard.mu.Lock()
		defer p.shard.mu.Unlock()
		unused := p.unused
		switch counted := o.Allowed && !denied || !o.Allowed && t.CountDenied && t.Limit.Has(descriptor.SettingCountDenied); {
		case p.hits < 0 && o.Used == o.Before: // the refund was ignored: the permits are still charged
			p.aside = p.back
			l.putBack(p)
		case p.hits < 0:
			unused = 0
			l.counts.returned.Add(p.back)
		case counted:
			unused -= p.aside
			l.counts.used.Add(p.aside)
			if o.Allowed {
				p.c.count += p.hits
			}
		default:
			l.putBack(p)
		}
		if !o.Cached {
			l.counts.expired.Add(p.c.saw(o, sent))
		}
		o.Before, o.Used = max(0, o.Before-p.unused), max(0, o.Used-unused)
	}
	o.Before += int64(p.terms.gap)
	o.Used += int64(p.terms.gap)
}

// reply is the result of a call to the backend.
type reply struct {
	sent, now time.Time
	err       error // error for the takes that wait for this answer; if it is nil, they ask for themselves
}

// shared returns the error for waiting takes. It is nil if the deadline of this request is the cause: the backend gives
// up a moment before it.
func shared(ctx context.Context, err error) (waiting error) {
	d, bounded := ctx.Deadline()
	if err != nil && ctx.Err() == nil && (!bounded || time.Now().Before(d)) && !errors.Is(err, context.DeadlineExceeded) {
		waiting = fmt.Errorf("share the trip of another take: %w", err)
	}
	return waiting
}

// settleLease finishes an acquisition. It returns false if the take has no answer yet: then the take may use the
// permits that are set aside for it, and another call must ask for the rest.
func (l *Leases) settleLease(p *forwardedTake, t *backend.Take, o *backend.Outcome, call reply) (answered bool) {
	k := p.c
	p.shard.mu.Lock()
	defer p.shard.mu.Unlock()
	f := k.fetch
	k.fetch = nil
	defer close(f.done)
	defer func() {
		if k.gone { // a reset since then may have cleared the counts of the remaining permits
			l.counts.expired.Add(k.drop())
		}
	}()
	p.lead = false

	if o.Failed {
		// The lease may have been granted, but nobody knows. Its permits are not used, and no lease is requested for a while.
		l.counts.failed.Add(1)
		l.putBack(p)
		k.waiting = call.now.Add(k.terms.tau)
		f.err = call.err
		return true
	}

	if o.Cached && !p.live {
		// A cached denial tells nothing about the old permits: they stay as they are.
		l.putBack(p)
		p.unused = 0
		return false
	}
	old := p.aside + k.drop()
	if !o.Cached {
		k.saw(o, call.sent)
	}
	valid := k.valid(p, old, o, call)
	l.counts.expired.Add(old - valid)
	p.aside, p.unused = 0, 0

	if o.Allowed {
		l.counts.granted.Add(1)
		l.counts.leased.Add(t.Hits)
		k.hold(valid+t.Hits, call.sent)
	} else {
		l.counts.denied.Add(1)
		if !p.live && valid > 0 {
			k.hold(valid, call.sent)
		} else {
			k.pool = valid
		}
	}
	if k.pool >= p.hits {
		k.take(p.hits, call.now)
		l.counts.used.Add(p.hits)
		*o = k.answer(p.hits, call.now)
		return true
	}
	// This take uses the permits in the pool before any other take does, so that small takes do not starve a large one.
	p.aside, p.unused, p.generation, p.until = k.pool, k.pool, k.generation, k.live
	k.pool = 0
	return false
}

// valid returns how many permits of the old lease still counted when the store answered.
func (c *hotCounter) valid(p *forwardedTake, old int64, o *backend.Outcome, call reply) int64 {
	alive := int64(0)
	if p.live && before(call.now, c.live) {
		alive = p.aside
	}
	switch {
	case o.Cached:
		return alive
	case !c.same(call.sent):
		return 0
	default:
		return max(alive, c.worth(old, call.now))
	}
}
