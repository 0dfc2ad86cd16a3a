package limiter

import (
	"context"
	"time"

	"github.com/ratelimitd/ratelimitd/e2e/differential/before/backend"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// Most requests of a program ask for one hit under one descriptor, most rules have one limit without further settings, and the
// program only wants to know whether the request passes. Then most steps of a decision have nothing to do. Such a decision is plain:
// it takes a shorter way to the same answer.

// plainRules reports by Rule.Index which decisions are plain. It is nil if none is.
func (l *Limiter) plainRules(s *snapshot) []bool {
	if !l.unmeasured || s.settings.Shadow || s.hot != nil || l.usage != nil || l.events != nil {
		return nil
	}
	all := make([]bool, len(s.tree.Rules))
	for i, r := range s.tree.Rules {
		d := s.tree.Domain(r.Domain)
		all[i] = isPlain(r) && !d.Reservable && (!d.Overridable || s.overrides.Len() == 0)
	}
	return all
}

// isPlain reports whether a rule has one limit that is the same for all callers and at all times, and does nothing but refuse.
func isPlain(r *descriptor.Rule) bool {
	return len(r.Limits) == 1 && r.Limits[0].Penalty == nil &&
		!r.Unlimited && !r.Shadow && !r.Varies && !r.Scheduled() && !r.Grouped() && r.ByEntry == nil && len(r.Replaces) == 0
}

// AllowPlain decides a request of one hit under one descriptor, whose entries are pairs of key and value. If its decision is not
// plain, it does nothing and plain is false: Decide decides such a request. The delay is that of a request that passes. The errors
// are those of Decide.
func (l *Limiter) AllowPlain(ctx context.Context, now time.Time, domain string, pairs []string) (allowed bool, delay time.Duration, plain bool, err error) {
	snap := l.snapshot.Load()
	if snap == nil || snap.plain == nil {
		return false, 0, false, nil
	}
	d := snap.tree.Domain(domain)
	if d == nil {
		return false, 0, false, nil
	}
	c := l.calls.Get().(*calculation)
	c.caller = descriptor.AppendPairs(c.caller[:0], pairs)
	rule := d.Match(c.caller)
	if rule == nil || !snap.plain[rule.Index] {
		clear(c.caller)
		l.calls.Put(c)
		return false, 0, false, nil
	}
	c.preparePlain(l.keys, &snap.settings, d, rule)
	if err = l.store.Take(ctx, now, &c.request); err == nil {
		o := &c.request.Outcomes[0]
		allowed, delay = o.Allowed, o.Delay
	} else {
		allowed, delay, err = l.judgePlain(ctx, now, c, snap, d, err)
	}
	l.releasePlain(c)
	return allowed, delay, true, err
}

// preparePlain is prepare for a plain decision.
func (c *calculation) preparePlain(keys descriptor.KeyBuilder, s *Settings, d *descriptor.Domain, rule *descriptor.Rule) {
	limit, atomic := &rule.Limits[0], s.allOrNothing(d)
	c.keys = keys.AppendKey(c.keys, d.Name, c.caller, rule, limit)
	vote := backend.VoteAll
	if atomic && (s.Quota || rule.Quota) {
		vote = backend.VoteAny
	}
	c.request.Together, c.request.PeekWhenKnown = atomic || s.StopWhenOver, !atomic && s.StopWhenOver
	c.request.Takes = append(c.request.Takes, backend.Take{Key: c.keys, Limit: limit, Rule: rule, Hits: 1, Vote: vote, CountDenied: countsDenied(limit, atomic)})
	c.request.Outcomes = append(c.request.Outcomes, backend.Outcome{})
}

// judgePlain answers a request whose take the store could not answer as Decide does: on_error may allow it, refuse it, or count it
// in this process.
func (l *Limiter) judgePlain(ctx context.Context, now time.Time, c *calculation, snap *snapshot, domain *descriptor.Domain, err error) (bool, time.Duration, error) {
	req, d := Request{Domain: domain.Name, Descriptors: []Descriptor{{Entries: c.caller}}}, Decision{}
	c.snapshot, c.settings, c.shares, c.req, c.domain = snap, &snap.settings, snap.shares, &req, domain
	c.resolved, c.index = append(c.resolved, resolved{rule: c.request.Takes[0].Rule, hits: 1, end: 1}), append(c.index, 0)
	err = l.finish(ctx, now, c, &d, err)
	return d.Code == OK, d.Delay, err
}

// releasePlain is release for a plain decision.
func (l *Limiter) releasePlain(c *calculation) {
	clear(c.caller) // so that texts of callers can be collected
	if len(c.resolved) > 0 || cap(c.keys) > maxKept || cap(c.caller) > 1024 {
		l.release(c)
		return
	}
	clear(c.request.Takes)
	c.request.Takes, c.request.Outcomes, c.keys = c.request.Takes[:0], c.request.Outcomes[:0], c.keys[:0]
	l.calls.Put(c)
}
