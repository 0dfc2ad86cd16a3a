package limiter

import (
	"context"
	"errors"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/platform/async"
)

// Most requests of a program ask for one hit under one descriptor, most rules have one limit without further settings,
// and the program only wants to know whether the request passes. Most steps of the decision then do nothing. We call
// this decision plain, and reach the same answer with fewer steps.

// plainRules reports by Rule.Index which decisions are plain. It is nil if none is.
func (l *Limiter) plainRules(s *snapshot) []bool {
	if !l.parts.NoMetrics || s.settings.Shadow || s.hot != nil || l.parts.Usage != nil || l.parts.Events != nil {
		return nil
	}
	all := make([]bool, len(s.tree.Rules))
	for i, r := range s.tree.Rules {
		d := s.tree.Domain(r.Domain)
		named := d.Reservable && len(r.Levels) > 1 // a second entry may name a reservation
		all[i] = isPlain(r) && !named && (!d.Overridable || s.overrides.Len() == 0)
	}
	return all
}

// isPlain reports whether a rule has one limit that is the same for every customer and at all times, and does nothing
// but deny.
func isPlain(r *descriptor.Rule) bool {
	return r.Needs == 0 && len(r.Limits) == 1 && r.Limits[0].Penalty == nil && r.Limits[0].Regions == nil &&
		!r.Unlimited && !r.Shadow
}

// AllowPlain decides a request of one hit under one descriptor, whose entries are pairs of key and value. If its
// decision is not plain, it does nothing and plain is false: Decide decides such a request. The delay is how long a
// request that passes must wait. The errors are the same as in Decide.
func (l *Limiter) AllowPlain(ctx context.Context, now time.Time, domain string,
	pairs []string) (allowed bool, delay time.Duration, plain bool, err error) {
	snap := l.snapshot.Load()
	if snap == nil || snap.plain == nil {
		return false, 0, false, nil
	}
	d := snap.tree.Domain(domain)
	if d == nil {
		return false, 0, false, nil
	}
	w := l.works.Get().(*work)
	w.entries = descriptor.AppendPairs(w.entries, pairs)
	rule := d.Match(w.entries)
	if rule == nil || !snap.plain[rule.Index] {
		empty(&w.entries, maxKept)
		l.works.Put(w)
		return false, 0, false, nil
	}
	w.chargePlain(&snap.settings, d, rule)
	if err = backend.Await(ctx, l.parts.Store, now, &w.request); err != nil {
		if p, ok := errors.AsType[*async.PanicError](err); ok {
			panic(p) // w is not used again
		}
		allowed, delay, err = w.finishPlain(ctx, question{snap: snap, domain: d, now: now}, rule, err)
		l.release(w)
		return allowed, delay, true, err
	}
	o := &w.request.Outcomes[0]
	allowed, delay = o.Allowed, o.Delay
	empty(&w.entries, maxKept)
	empty(&w.keyBytes, maxKeptBytes)
	empty(&w.request.Takes, maxKept)
	w.request.Outcomes = w.request.Outcomes[:0]
	l.works.Put(w)
	return allowed, delay, true, nil
}

// chargePlain fills in the only take of a plain decision.
func (w *work) chargePlain(s *Settings, d *descriptor.Domain, rule *descriptor.Rule) {
	limit, atomic := &rule.Limits[0], s.allOrNothing(d)
	w.keyBytes = w.Keys.AppendKey(w.keyBytes, d.Name, w.entries, rule, limit)
	vote := backend.VoteAll
	if atomic && (s.Quota || rule.Quota) {
		vote = backend.VoteAny
	}
	w.request.Together, w.request.PeekWhenKnown = atomic || s.StopWhenOver, !atomic && s.StopWhenOver
	w.request.Takes = append(w.request.Takes, backend.Take{Key: w.keyBytes, Limit: limit, Rule: rule, Hits: 1, Vote: vote,
		CountDenied: countsDenied(limit, atomic)})
	w.request.Outcomes = append(w.request.Outcomes, backend.Outcome{})
}

// finishPlain answers a plain request whose take has failed, as Decide does: on_error may allow it, deny it, or count
// it in this replica.
func (w *work) finishPlain(ctx context.Context, q question, rule *descriptor.Rule,
	err error) (bool, time.Duration, error) {
	q.req = &Request{Domain: q.domain.Name, Descriptors: []Descriptor{{Entries: w.entries}}}
	w.question = q
	w.subjects = append(w.subjects, subject{matched: rule, rule: rule, sent: w.entries, counted: w.entries, hits: 1,
		end: 1})
	w.charges = append(w.charges, charge{limit: &rule.Limits[0], guard: none})
	var d Decision
	err = w.finish(ctx, &d, err)
	return d.Code == OK, d.Delay, err
}
