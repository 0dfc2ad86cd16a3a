package limiter

import (
	"context"
	"crypto/rand"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// QuotaBucket is what the rules say about a descriptor whose requests a client decides itself.
type QuotaBucket struct {
	Counters

	Rule    *descriptor.Rule // nil: no rule matches
	Domain  *descriptor.Domain
	OnError descriptor.OnError // what to do while the store cannot answer

	// Enforced are the counters that limit the requests now: those in List that no shadow mode, override or schedule takes
	// away. None: every request passes, unless Blocked.
	Enforced []*Counter
}

// QuotaBucket looks at a descriptor's counters like Peek.
func (l *Limiter) QuotaBucket(ctx context.Context, now time.Time, domain string, entries []descriptor.Entry) (QuotaBucket, error) {
	snap := l.snapshot.Load()
	c, err := l.peek(ctx, now, snap, domain, &Descriptor{Entries: entries})
	q := QuotaBucket{OnError: descriptor.OnErrorError}
	if snap == nil {
		return q, err
	}
	calc := calculation{snapshot: snap, settings: &snap.settings, domain: snap.tree.Domain(domain)}
	q.Domain = calc.domain
	if q.Domain == nil {
		return q, err
	}
	q.Rule = q.Domain.Match(entries)
	calc.resolved = []resolved{{rule: q.Rule}}
	if choice := calc.onError(0); choice != descriptor.OnErrorDefault {
		q.OnError = choice
	}
	if err != nil {
		return q, err
	}
	q.Counters = c
	lenient := q.Rule == nil || q.Rule.Unlimited || q.Rule.Shadow || snap.settings.Shadow
	if c.Blocked && snap.settings.Shadow {
		q.Blocked = false
	}
	if lenient {
		return q, nil
	}
	for i := range q.List {
		k := &q.List[i]
		if !k.Lifted && !k.Passes && !k.Inactive {
			q.Enforced = append(q.Enforced, k)
		}
	}
	return q, nil
}

// ChargeRequest returns a request that counts hits of one descriptor that have passed already, whether or not they fit.
func ChargeRequest(domain string, entries []descriptor.Entry, hits uint64) *Request {
	hold := &Hold{Op: Commit, Final: true, ChargeUnknown: true}
	_, _ = rand.Read(hold.ID[:]) // it never fails
	return &Request{
		Domain:      domain,
		Descriptors: []Descriptor{{Entries: entries, Hits: hits, HasHits: true}},
		Purpose:     Charge,
		Hold:        hold,
	}
}

// ClosedFor returns for how long a counter lets nothing pass, although its limit has a rate: a penalty is in force, or its window is
// used up and will be for longer than clients need to report what they pass.
func (c *Counter) ClosedFor(report time.Duration) time.Duration {
	switch {
	case c.Penalty > 0:
		return c.Penalty
	case c.Limit.Window.Length() < 3*report || c.Remaining > 0 || c.Wait < report:
		return 0
	default:
		return c.Wait
	}
}
