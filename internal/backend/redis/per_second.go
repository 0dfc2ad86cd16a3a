package redis

import (
	"context"
	"errors"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/platform/async"
)

// Pair keeps the counters of limits per second, or shorter, in a separate Redis (REDIS_PERSECOND). These counters are
// many and short-lived, and the loss of one matters only for a second. A penalty lasts longer, and its limit is counted
// next to it.
type Pair struct {
	PerSecond *Store // windows of at most one second, without a penalty
	Other     *Store

	GaveBack func(*backend.Take, *backend.Outcome) // see Options.GaveBack; for requests with counters in both stores
}

// Start implements backend.Store. A request that has counters in both stores gets a goroutine.
func (p *Pair) Start(ctx context.Context, now time.Time, b *backend.Batch, r *backend.Request,
	done func(error)) (settled bool, err error) {
	if len(r.Takes) == 0 {
		return true, nil
	}
	first := p.storeOf(r.Takes[0].Limit)
	for i := range r.Takes[1:] {
		if p.storeOf(r.Takes[1+i].Limit) != first {
			async.Go(func() error { return p.split(ctx, now, r) }, done)
			return false, nil
		}
	}
	return first.Start(ctx, now, b, r, done)
}

// split settles the takes of a request that has counters in both stores.
func (p *Pair) split(ctx context.Context, now time.Time, r *backend.Request) error {
	return backend.Split(ctx, r,
		func(t *backend.Take) *Store { return p.storeOf(t.Limit) },
		func(ctx context.Context, s *Store, part *backend.Request) error {
			return backend.Await(ctx, s, now, part)
		}, p.GaveBack)
}

// Peek decides takes without changing anything, in both stores if the request has counters in both.
func (p *Pair) Peek(ctx context.Context, now time.Time, r *backend.Request) error {
	return backend.Split(ctx, r,
		func(t *backend.Take) *Store { return p.storeOf(t.Limit) },
		func(ctx context.Context, s *Store, part *backend.Request) error { return s.Peek(ctx, now, part) }, nil)
}

// Reset clears counters, in both stores if both have some.
func (p *Pair) Reset(ctx context.Context, counters []backend.Counter) error {
	var perSecond, other []backend.Counter
	for _, c := range counters {
		if p.storeOf(c.Limit) == p.PerSecond {
			perSecond = append(perSecond, c)
		} else {
			other = append(other, c)
		}
	}
	return errors.Join(p.PerSecond.Reset(ctx, perSecond), p.Other.Reset(ctx, other))
}

// storeOf returns the store of a limit's counters.
func (p *Pair) storeOf(l *descriptor.Limit) *Store {
	if l.Window.Length() <= time.Second && l.Penalty == nil && l.Algorithm != descriptor.Penalties {
		return p.PerSecond
	}
	return p.Other
}
