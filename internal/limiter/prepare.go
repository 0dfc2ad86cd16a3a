package limiter

import (
	"bytes"
	"slices"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// prepare turns resolved descriptors into takes.
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

// vote is how the refusal of a descriptor weighs on the request. What is not enforced has no say. In quota mode one
// that passes is enough, where the request is one step; where each descriptor counts for itself, votes only matter
// among the limits of one descriptor and for StopWhenOver, which knows no quota.
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

// quotaPassed says whether a descriptor in quota mode passes whatever is counted: then the others cannot be all over.
func (c *calculation) quotaPassed() bool {
	for i := range c.resolved {
		r := &c.resolved[i]
		if c.quota(i) && (r.shadow() || !r.override && (r.rule == nil || len(r.rule.Limits) == 0)) {
			return true
		}
	}
	return false
}

// take adds a take for a descriptor. Where the request is one step, descriptors that reach one counter are one take: the
// sum of their hits, under the smaller of their limits.
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

// countsDenied says whether refused hits count: unless the rule says so itself, only in a fixed window, and only where
// each descriptor counts for itself, which is what the reference does.
func countsDenied(l *descriptor.Limit, atomic bool) bool {
	if l.CountDenied == descriptor.DeniedDefault {
		return l.Algorithm == descriptor.FixedWindow && !atomic
	}
	return l.CountDenied == descriptor.DeniedCount
}
