package redis

import (
	"context"
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

// place is where a limit's counters live.
func (p *Pair) place(l *descriptor.Limit) *Store {
	if l.Window.Length() == time.Second {
		return p.PerSecond
	}
	return p.Other
}
