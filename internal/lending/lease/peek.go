package lease

import (
	"context"
	"slices"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// Peek asks the backend for the used hits. It reports unused permits of this replica as unused, because requests to
// this replica can still use them.
func (l *Leases) Peek(ctx context.Context, now time.Time, r *backend.Request) error {
	store := l.opts.Store
	if l.opts.Far != nil { // the denial cache in front may be out of date
		store = l.opts.Far.Store
	}
	if !concerns(r) {
		return store.Peek(ctx, now, r)
	}
	asked := backend.Request{Takes: slices.Clone(r.Takes), Outcomes: r.Outcomes}
	limits := make([]descriptor.Limit, len(r.Takes)) // tightened
	unused := make([]int64, len(r.Takes))
	gaps := make([]int64, len(r.Takes))
	for i := range asked.Takes {
		t := &asked.Takes[i]
		m := l.terms(t)
		if m.Kind == backend.NoPermits {
			continue
		}
		unused[i], gaps[i] = l.unused(t, now), int64(m.gap)
		limits[i] = m.tighten(t.Limit)
		t.Limit = &limits[i]
	}
	err := store.Peek(ctx, now, &asked)
	for i := range r.Outcomes {
		o := &r.Outcomes[i]
		if o.Failed {
			continue
		}
		o.Before, o.Used = max(0, o.Before-unused[i])+gaps[i], max(0, o.Used-unused[i])+gaps[i]
		if unused[i] > 0 && int64(o.Remaining(r.Takes[i].Limit.Capacity())) >= r.Takes[i].Hits {
			o.Allowed, o.RetryAfter = true, 0
		}
	}
	return err
}

// unused returns how many permits of a take's counter this replica holds.
func (l *Leases) unused(t *backend.Take, now time.Time) int64 {
	sh, _ := l.shard(t.Key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if c := sh.counters[string(t.Key)]; c != nil && c.of(t.Limit) {
		return c.unused(now)
	}
	return 0
}
