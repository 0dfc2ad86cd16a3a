package redis

import (
	"context"
	"errors"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// Pair keeps the counters of limits per second in a Redis of their own (REDIS_PERSECOND): they are many short-lived
// ones, and one that is lost is soon made up for.
type Pair struct {
	PerSecond *Store // windows of one second
	Other     *Store
}

// Take settles the takes of one request, in both where it needs both.
func (p *Pair) Take(ctx context.Context, now time.Time, r *backend.Request) error {
	return backend.Split(ctx, r,
		func(t *backend.Take) *Store { return p.place(t.Limit) },
		func(ctx context.Context, s *Store, part *backend.Request) error { return s.Take(ctx, now, part) })
}

// Peek judges takes, in both where it needs both.
func (p *Pair) Peek(ctx context.Context, now time.Time, r *backend.Request) error {
	return backend.Split(ctx, r,
		func(t *backend.Take) *Store { return p.place(t.Limit) },
		func(ctx context.Context, s *Store, part *backend.Request) error { return s.Peek(ctx, now, part) })
}

// Reset clears counters, in both where there are counters in both.
func (p *Pair) Reset(ctx context.Context, counters []backend.Counter) error {
	var perSecond, other []backend.Counter
	for _, c := range counters {
		if p.place(c.Limit) == p.PerSecond {
			perSecond = append(perSecond, c)
		} else {
			other = append(other, c)
		}
	}
	return errors.Join(p.PerSecond.Reset(ctx, perSecond), p.Other.Reset(ctx, other))
}

// place is where a limit's counters live.
func (p *Pair) place(l *descriptor.Limit) *Store {
	if l.Window.Length() == time.Second {
		return p.PerSecond
	}
	return p.Other
}
