package limiter

import (
	"bytes"
	"slices"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// prepare makes takes from the resolved descriptors.
func (c *calculation) prepare(keys descriptor.KeyBuilder) {
	if c.domain == nil {
		return
	}
	atomic := c.settings.allOrNothing(c.domain)
	c.request.Together = atomic || c.settings.StopWhenOver
	c.request.PeekWhenKnown = !atomic && c.settings.StopWhenOver
	quotaPassed := atomic && c.quotaPassed()
	for i := range c.resolved {
		r := &c.resolved[i]
		r.first = len(c.index)
		vote := c.vote(i, atomic, quotaPassed)
		switch {
		case r.override:
			c.take(keys, i, &r.limit, vote, atomic)
		case r.rule != nil:
			for j := range r.rule.Limits {
				if r.kept != nil && !slices.Contains(r.kept, j) {
					continue
				}
				c.take(keys, i, &r.rule.Limits[j], vote, atomic)
			}
		}
		r.end = len(c.index)
	}
	c.request.Outcomes = append(c.request.Outcomes, make([]backend.Outcome, len(c.request.Takes))...)
}

// vote returns how a refusal of descriptor i affects the request. A descriptor that is not enforced has no vote. In quota
// mode, if the request is one atomic step, one passing descriptor is enough. If each descriptor counts for itself, votes
// matter only among the limits of one descriptor, and for StopWhenOver, which does not consider quota mode.
func (c *calculation) vote(i int, atomic, quotaPassed bool) backend.Vote {
	switch {
	case c.resolved[i].shadow():
		return backend.VoteNone
	case !atomic:
		return backend.VoteAll
	case c.settings.Shadow, quotaPassed && c.quota(i):
		return backend.VoteNone
	case c.quota(i):
		return backend.VoteAny
	default:
		return backend.VoteAll
	}
}

// quotaPassed reports whether a descriptor in quota mode always passes, whatever is counted. Then the descriptors in quota
// mode cannot all be over.
func (c *calculation) quotaPassed() bool {
	for i := range c.resolved {
		r := &c.resolved[i]
		if c.quota(i) && (r.shadow() || !r.override && (r.rule == nil || len(r.rule.Limits) == 0)) {
			return true
		}
	}
	return false
}

// take adds a take for a descriptor. If the request is one atomic step, descriptors with the same counter and vote share
// one take: the sum of their hits, under the smaller of their limits.
func (c *calculation) take(keys descriptor.KeyBuilder, member int, limit *descriptor.Limit, vote backend.Vote, atomic bool) {
	r := &c.resolved[member]
	start := len(c.keys)
	c.keys = keys.AppendKey(c.keys, c.req.Domain, c.req.Descriptors[member].Entries, r.rule, limit)
	t := backend.Take{
		Key:         c.keys[start:len(c.keys):len(c.keys)],
		Limit:       limit,
		Rule:        r.rule,
		Hits:        r.hits,
		Member:      member,
		Vote:        vote,
		CountDenied: countsDenied(limit, atomic),
	}
	if r.override {
		t.Rule = c.domain.Overrides
	}
	if atomic && t.Hits > 0 {
		for j := range c.request.Takes {
			same := &c.request.Takes[j]
			if same.Hits > 0 && same.Vote == t.Vote && bytes.Equal(same.Key, t.Key) {
				same.Hits = min(same.Hits+t.Hits, backend.MaxHits)
				if t.Limit.Capacity() < same.Limit.Capacity() {
					same.Limit = t.Limit
				}
				c.index = append(c.index, j)
				return
			}
		}
	}
	c.index = append(c.index, len(c.request.Takes))
	c.request.Takes = append(c.request.Takes, t)
}

// countsDenied reports whether refused hits count. If the limit does not set it, they count only in a fixed window, and only
// if each descriptor counts for itself, as in the reference.
func countsDenied(l *descriptor.Limit, atomic bool) bool {
	if l.CountDenied == descriptor.DeniedDefault {
		return l.Algorithm == descriptor.FixedWindow && !atomic
	}
	return l.CountDenied == descriptor.DeniedCount
}
