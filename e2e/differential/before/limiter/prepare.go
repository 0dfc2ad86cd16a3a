package limiter

import (
	"bytes"
	"hash/maphash"
	"math/bits"
	"slices"

	"github.com/ratelimitd/ratelimitd/e2e/differential/before/backend"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// prepare makes takes from the resolved descriptors.
func (c *calculation) prepare(keys descriptor.KeyBuilder) {
	if c.domain == nil {
		return
	}
	atomic := c.settings.allOrNothing(c.domain)
	if c.holding {
		c.makeHolds()
	}
	if c.req.Purpose == Charge {
		atomic = false
	} else if c.req.Hold != nil {
		atomic = true
	}
	c.request.Together = atomic || c.settings.StopWhenOver
	c.request.PeekWhenKnown = !atomic && c.settings.StopWhenOver
	quotaPassed := atomic && c.quotaPassed()
	c.table = c.table[:0]
	for i := range c.resolved {
		r := &c.resolved[i]
		r.first = len(c.index)
		vote := c.vote(i, atomic, quotaPassed)
		switch {
		case r.ownLimit:
			c.take(keys, i, &r.limit, &r.limit, vote, atomic)
		case r.own.unlimited:
		case r.rule != nil:
			for j := range r.rule.Limits {
				if r.kept != nil && !slices.Contains(r.kept, j) {
					continue
				}
				vote := vote
				if r.unenforced>>j&1 != 0 {
					vote = backend.VoteNone
				}
				c.take(keys, i, c.keyLimit(r, j), c.ruleLimit(r, j), vote, atomic)
			}
		}
		r.end = len(c.index)
	}
	c.grantEqually()
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
		if c.quota(i) && (r.shadow() || !r.ownLimit && (r.rule == nil || len(r.rule.Limits) == 0)) {
			return true
		}
	}
	return false
}

// take adds a take for a descriptor. If the request is one atomic step, descriptors with the same counter and vote share
// one take: the sum of their hits, under the smaller of their limits. keyed is the limit that the counter's key depends on.
func (c *calculation) take(keys descriptor.KeyBuilder, member int, keyed, limit *descriptor.Limit, vote backend.Vote, atomic bool) {
	r := &c.resolved[member]
	start := len(c.keys)
	c.keys = keys.AppendKey(c.keys, c.req.Domain, c.entries(member), r.rule, keyed)
	t := backend.Take{
		Key:         c.keys[start:len(c.keys):len(c.keys)],
		Limit:       limit,
		Rule:        r.rule,
		Hits:        r.hits,
		Member:      member,
		Vote:        vote,
		CountDenied: countsDenied(limit, atomic),
	}
	if r.ownLimit {
		t.Rule = c.domain.RequestLimits
	}
	switch {
	case r.hold != nil && (limit.Reservable() || c.req.Purpose == Charge):
		if limit.Algorithm == descriptor.Concurrency {
			t.Hits = places(r.hold.Op)
		}
		t.Hold = c.newHold(r.hold, member, t.Hits, !r.shadow() && !r.passes(len(c.index)))
		t.CountDenied = false
	case r.settlesEarlier():
		t.Hits = 0 // this limit counted them before
	case c.req.Purpose == Charge:
		t.CountDenied = true
	}
	if atomic && shareable(&t) {
		if j := c.shared(&t); j >= 0 {
			same := &c.request.Takes[j]
			same.Hits = min(same.Hits+t.Hits, backend.MaxHits)
			if same.Hold != nil && t.Hold != nil {
				same.Hold.Least = min(same.Hold.Least+t.Hold.Least, backend.MaxHits)
			}
			if t.Limit.Capacity() < same.Limit.Capacity() {
				same.Limit = t.Limit
			}
			c.countSharer(j)
			c.index = append(c.index, j)
			return
		}
	}
	if limit.Penalty != nil {
		c.guard(&t)
	}
	c.countSharer(len(c.request.Takes))
	c.index = append(c.index, len(c.request.Takes))
	c.request.Takes = append(c.request.Takes, t)
}

// fewTakes is how many takes are compared one by one. More are found by the hashes of their keys, so that the cost of a
// request does not grow with the square of its size.
const fewTakes = 16

// shared returns the index of the take that t can share, or -1 if there is none.
func (c *calculation) shared(t *backend.Take) int {
	takes := c.request.Takes
	if len(takes) <= fewTakes {
		for i := range takes {
			if c.canShare(&takes[i], t) {
				return i
			}
		}
		return -1
	}
	if 2*len(takes) > len(c.table) {
		size := 4 << bits.Len(uint(len(takes)))
		c.table, c.hashed = slices.Grow(c.table[:0], size)[:size], 0
		clear(c.table)
	}
	for ; c.hashed < len(takes); c.hashed++ {
		if o := &takes[c.hashed]; shareable(o) {
			*c.slot(o) = int32(c.hashed + 1)
		}
	}
	return int(*c.slot(t)) - 1
}

// slot returns the element of the table for the take that t can share, or the free one for t.
func (c *calculation) slot(t *backend.Take) *int32 {
	last := uint64(len(c.table) - 1)
	for i := maphash.Bytes(c.seed, t.Key) & last; ; i = (i + 1) & last {
		if n := c.table[i]; n == 0 || c.canShare(&c.request.Takes[n-1], t) {
			return &c.table[i]
		}
	}
}

// shareable reports whether the hits of a take can be added to those of another one. Whether its reservation was shared must not
// depend on the number of hits.
func shareable(t *backend.Take) bool { return t.Hits > 0 || t.Hold != nil }

func (c *calculation) canShare(a, b *backend.Take) bool {
	return shareable(a) && a.Vote == b.Vote && (a.Hold == nil) == (b.Hold == nil) && bytes.Equal(a.Key, b.Key) &&
		(a.Hold == nil || c.sameHold(a.Member, b.Member))
}

// countsDenied reports whether refused hits count. If the limit does not set it, they count only in a fixed window, and only
// if each descriptor counts for itself, as in the reference.
func countsDenied(l *descriptor.Limit, atomic bool) bool {
	if l.CountDenied == descriptor.DeniedDefault {
		return l.Algorithm == descriptor.FixedWindow && !atomic
	}
	return l.CountDenied == descriptor.DeniedCount
}
