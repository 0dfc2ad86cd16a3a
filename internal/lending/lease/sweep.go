package lease

import (
	"context"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend"
)

// Run returns unused permits until ctx ends. Then it returns all permits that can be returned. After that, all takes go
// to the backend.
func (l *Leases) Run(ctx context.Context) error {
	tick := time.NewTicker(l.opts.SweepInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), l.opts.StopTimeout)
			defer cancel()
			l.Close(stop, time.Now())
			return nil
		case <-tick.C:
			l.Sweep(ctx, time.Now())
		}
	}
}

// Sweep returns the permits of leases that were not used for a lease's life, where that is right. It forgets counters
// that are no longer hot.
func (l *Leases) Sweep(ctx context.Context, now time.Time) { l.sweep(ctx, now, false) }

// Close returns all permits where that is right, and drops the others. After it, nothing is leased.
func (l *Leases) Close(ctx context.Context, now time.Time) {
	l.closed.Store(true)
	l.sweep(ctx, now, true)
	if l.opts.Far != nil { // permits that have arrived since
		l.asking.Wait()
		l.sweep(ctx, now, true)
	}
}

const (
	idleLives = 10  // lives of a lease without a take after which a counter is forgotten
	batch     = 128 // refunds in one call
)

func (l *Leases) sweep(ctx context.Context, now time.Time, all bool) {
	var r backend.Request
	for i := range l.shards {
		sh := &l.shards[i]
		sh.mu.Lock()
		for key, c := range sh.counters {
			l.counts.expired.Add(c.expire(now))
			idle := now.Sub(c.touched)
			returns, forgets := c.terms.tau, idleLives*c.terms.tau
			if l.opts.Far != nil {
				returns = l.farIdle(c)
				forgets = returns
			}
			if all || idle > returns {
				if n := c.returnable(now, l.opts.ReturnWithin); n > 0 {
					r.Takes = append(r.Takes, backend.Take{
						Key: []byte(key), Limit: &c.limit, Rule: c.from, Origin: c.origin, Hits: -n, Member: len(r.Takes),
					})
					l.counts.expired.Add(c.drop() - n)
				}
			}
			if all {
				l.counts.expired.Add(c.drop())
			}
			if c.fetch == nil && c.pool == 0 && (all || idle > forgets) {
				l.forget(sh, key, c)
			}
		}
		sh.mu.Unlock()
		if len(r.Takes) >= batch {
			l.giveBack(ctx, now, &r)
		}
	}
	l.giveBack(ctx, now, &r)
}

// giveBack sends refunds. A refund that fails may or may not have been carried out: both are safe.
func (l *Leases) giveBack(ctx context.Context, now time.Time, r *backend.Request) {
	if len(r.Takes) == 0 {
		return
	}
	r.Outcomes = make([]backend.Outcome, len(r.Takes))
	_ = backend.Await(ctx, l.opts.Store, now, r) // the outcomes show which refunds failed
	for i := range r.Takes {
		if r.Outcomes[i].Failed {
			l.counts.expired.Add(-r.Takes[i].Hits)
		} else {
			l.counts.returned.Add(-r.Takes[i].Hits)
		}
	}
	r.Takes = r.Takes[:0]
}
