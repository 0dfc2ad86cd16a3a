package operator

import (
	"context"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/config/override"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
	"github.com/ratelimitd/ratelimitd/internal/operator/overridepb"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

// preview shows the effects of the changes now, and of a reset after them. It fails where the changes would.
func (o *overrides) preview(ctx context.Context, now time.Time, edits []override.Edit,
	reset bool) ([]*adminv1.OverrideChange, error) {
	which := make([]override.Identity, len(edits))
	for i := range edits {
		which[i] = edits[i].Identity
	}
	records, err := o.Source.Get(ctx, which)
	if err != nil {
		return nil, overrideError(err)
	}
	for i := range edits {
		if err := edits[i].Check(records[i]); err != nil {
			return nil, overrideError(err)
		}
	}
	set := o.InForce()
	if set == nil {
		set = new(override.Set)
	}
	changed := make([]override.Change, len(edits))
	for i := range edits {
		changed[i].Identity = edits[i].Identity
		if !edits[i].Remove {
			changed[i].Numbers = edits[i].Numbers
		}
	}
	next := set.With(set.Version, changed)
	changes := make([]*adminv1.OverrideChange, len(edits))
	for i := range edits {
		e := &edits[i]
		d := &limiter.Descriptor{Entries: e.Entries}
		before, err := o.Peek(ctx, now, e.Domain, d, set)
		if err != nil {
			return nil, errorOf(err)
		}
		after, err := o.Peek(ctx, now, e.Domain, d, next)
		if err != nil {
			return nil, errorOf(err)
		}
		changes[i] = &adminv1.OverrideChange{Before: overridepb.Message(records[i]), Effects: effects(&before, &after)}
		if reset {
			for _, effect := range changes[i].Effects { // after a reset, only limits that let nothing pass still deny
				effect.DeniedAfter = effect.DeniedAfter && effect.CapacityAfter == 0
			}
		}
		if !e.Remove {
			changes[i].After = overridepb.Message(&e.Override)
		}
	}
	return changes, nil
}

// effects compares the counters of a customer before and after a change.
func effects(before, after *limiter.Counters) []*adminv1.OverrideEffect {
	all := make([]*adminv1.OverrideEffect, 0, len(before.List))
	for i := range min(len(before.List), len(after.List)) {
		b, a := &before.List[i], &after.List[i]
		e := &adminv1.OverrideEffect{Limit: validText(b.Limit.Name), CounterKey: []byte(b.Key), Used: uint64(max(b.Used, 0))}
		e.WordsBefore, e.CapacityBefore, e.DeniedBefore = verdict(before, b)
		e.WordsAfter, e.CapacityAfter, e.DeniedAfter = verdict(after, a)
		all = append(all, e)
	}
	return all
}

// verdict tells how a counter would decide the next hit.
func verdict(all *limiter.Counters, c *limiter.Counter) (words string, capacity uint64, denied bool) {
	switch {
	case all.Blocked:
		return "blocked", 0, true
	case c.Lifted:
		return "unlimited", 0, false
	default:
		return validText(c.Limit.Words()), c.Limit.Capacity(), c.Wait != 0
	}
}
