package limiter

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/config/override"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// Peek returns the counters of one descriptor. It changes neither the counters nor the metrics by rule. Only the
// entries and the limit of d matter.
//
// The errors are the same as in Decide, but on_error is not used.
func (l *Limiter) Peek(ctx context.Context, now time.Time, domain string, d *Descriptor) (Counters, error) {
	return l.peek(ctx, now, l.snapshot.Load(), domain, d)
}

// PeekWith is Peek as it would be with other overrides.
func (l *Limiter) PeekWith(ctx context.Context, now time.Time, domain string, d *Descriptor,
	overrides *override.Set) (Counters, error) {
	snap := l.snapshot.Load()
	if snap == nil {
		return Counters{}, ErrNoRules
	}
	with := *snap
	with.overrides = overrides
	return l.peek(ctx, now, &with, domain, d)
}

func (l *Limiter) peek(ctx context.Context, now time.Time, snap *snapshot, domain string,
	d *Descriptor) (Counters, error) {
	w, err := l.inquire(now, snap, domain, d)
	if err != nil {
		return Counters{}, err
	}
	defer l.release(w)
	c := w.counters()
	return c, w.readCounters(ctx, &c)
}

// Reset clears the counters of one descriptor and returns their previous contents. Only the entries and the limit of d
// matter. backend.Store describes the guarantees. Counts of on_error: local in this replica are cleared too.
//
// The errors are the same as in Peek.
func (l *Limiter) Reset(ctx context.Context, now time.Time, domain string, d *Descriptor) (Counters, error) {
	w, err := l.inquire(now, l.snapshot.Load(), domain, d)
	if err != nil {
		return Counters{}, err
	}
	defer l.release(w)
	c := w.counters()
	if err := w.readCounters(ctx, &c); err != nil || len(c.List) == 0 {
		return c, err
	}
	var toClear []backend.Counter
	for i := range c.List {
		t := &w.request.Takes[i]
		toClear = append(toClear, backend.Counter{Key: t.Key, Limit: t.Limit, Rule: t.Rule})
		for n := 0; n < 2 && t.Limit.Penalty != nil; n++ { // enforced, and in shadow
			toClear = append(toClear, backend.Counter{Key: descriptor.AppendPenaltyKey(nil, t.Key, n > 0),
				Limit: t.Limit.Penalty, Rule: t.Rule})
		}
	}
	err = l.parts.Store.Reset(ctx, toClear)
	if l.parts.Local != nil {
		err = errors.Join(err, l.parts.Local.Reset(ctx, toClear))
	}
	if err != nil {
		return Counters{}, fmt.Errorf("clear counters: %w", err)
	}
	return c, nil
}

// QuotaBucket looks at a descriptor's counters like Peek.
func (l *Limiter) QuotaBucket(ctx context.Context, now time.Time, domain string,
	entries []descriptor.Entry) (QuotaBucket, error) {
	q := QuotaBucket{Counters: Counters{OnError: descriptor.OnErrorError}}
	w, err := l.inquire(now, l.snapshot.Load(), domain, &Descriptor{Entries: entries})
	if err != nil {
		return q, err
	}
	defer l.release(w)
	q.Counters, q.Domain = w.counters(), w.domain
	if q.Domain == nil {
		return q, nil
	}
	if s := &w.subjects[0]; !s.namesReservation { // an entry that names a reservation gets no bucket
		q.Rule = s.rule
	}
	if err := w.readCounters(ctx, &q.Counters); err != nil {
		return q, err
	}
	shadow := w.snap.settings.Shadow
	q.Blocked = q.Blocked && !shadow
	if q.Rule == nil || q.Rule.Unlimited || q.Rule.Shadow || shadow {
		return q, nil
	}
	q.enforce()
	return q, nil
}

// enforce sets the fields that tell which limits apply to requests now.
func (q *QuotaBucket) enforce() {
	for i := range q.List {
		k := &q.List[i]
		if !k.Lifted && !k.Unenforced && !k.Inactive {
			q.Enforced = append(q.Enforced, k)
			if k.Kept > 0 { // all classes share the remaining hits of a bucket
				k.Remaining = uint64(max(0, int64(k.Limit.Capacity())-k.Used))
			}
		}
	}
	if first := q.Rule.FirstTag(); first != "" {
		q.Key = strings.TrimSuffix(q.List[0].Key, q.Rule.Tag(&q.Rule.Limits[0])) + first
	}
}

// inquire matches one descriptor and applies the rules to it, as a decision does. snap is nil before the first Swap.
// Unless it returns an error, the caller must release the work.
func (l *Limiter) inquire(now time.Time, snap *snapshot, domain string, d *Descriptor) (*work, error) {
	req := &Request{Domain: domain, Descriptors: []Descriptor{{Entries: d.Entries, Limit: d.Limit, HasLimit: d.HasLimit}}}
	if err := validate(req); err != nil {
		return nil, err
	}
	if snap == nil {
		return nil, ErrNoRules
	}
	w := l.workOn(question{req: req, snap: snap, domain: snap.tree.Domain(domain), now: now, showsAll: true})
	if err := w.findCharges(context.Background()); err != nil {
		l.release(w)
		return nil, err
	}
	return w, nil
}

// counters lists the charges of an inquiry's descriptor.
func (w *work) counters() (c Counters) {
	s := &w.subjects[0]
	c.Explanation = w.domain.Explain(w.req.Descriptors[0].Entries, w.Keys)
	c.Blocked, c.FromRequest = s.by == byBlock, s.by == byRequest
	c.Shadow, c.OnError = s.shadow() || w.snap.settings.Shadow, descriptor.OnErrorError
	if w.domain != nil {
		c.OnError = cmp.Or(w.onError(s), descriptor.OnErrorError)
	}
	if s.rule != nil {
		c.HitCost = s.hitCost()
		if n := w.overrideInForce(s.rule, s.sent); n.Kind != 0 && !w.countedElsewhere(s) {
			c.Override = &n
		}
	}
	for _, ch := range w.chargesOf(s) {
		k := Counter{Limit: *ch.limit}
		if ch.brought() {
			k.Key = string(w.Keys.AppendKey(nil, w.req.Domain, s.sent, nil, ch.limit))
		} else {
			k.Key = c.Explanation.Keys[ch.index]
			k.Scale, k.Active, k.Classes = s.rule.ScaleOf(ch.index), s.rule.ActiveTimes(ch.index), s.rule.ClassesOf(ch.index)
			k.Lifted, k.Unenforced, k.Inactive = ch.state&lifted != 0, ch.state&unenforced != 0, ch.state&inactive != 0
			if c.Blocked { // the hits from before the block still count
				k.Limit, k.Lifted, k.Unenforced = s.rule.Limits[ch.index], false, false
			}
		}
		c.List = append(c.List, k)
	}
	return c
}

// readCounters fills in the counters' states.
func (w *work) readCounters(ctx context.Context, c *Counters) error {
	if len(c.List) == 0 {
		return nil
	}
	s := &w.subjects[0]
	w.request = backend.Request{Takes: w.request.Takes, Outcomes: w.request.Outcomes}
	r := &w.request
	for i := range c.List {
		k := &c.List[i]
		t := backend.Take{Key: []byte(k.Key), Limit: &k.Limit, Rule: s.rule, Hits: int64(max(c.HitCost, 1)), Member: i}
		if s.rule == nil || k.Limit.FromRequest {
			t.Rule, t.Hits = w.domain.RequestLimits, 1
		}
		if k.Limit.Regions != nil {
			t.Origin = &backend.Origin{Domain: w.req.Domain, Entries: s.sent}
		}
		r.Takes = append(r.Takes, t)
	}
	w.addPenalties(c, s.rule)
	r.Outcomes = append(r.Outcomes, make([]backend.Outcome, len(r.Takes))...)
	if err := w.Store.Peek(ctx, w.now, r); err != nil {
		return fmt.Errorf("look at counters: %w", err)
	}
	for i := range c.List {
		k, o := &c.List[i], &r.Outcomes[i]
		if o.Limit != nil { // another region has counted, under its own numbers
			k.Limit = *o.Limit
		}
		k.Kept = o.Kept
		k.Used, k.Remaining, k.Wait, k.Reset, k.Cached = o.Used, o.Remaining(k.Limit.Capacity()), o.RetryAfter, o.ResetAfter,
			o.Cached
	}
	c.readPenalties(r)
	for i := range c.List {
		k := &c.List[i]
		if k.Inactive {
			k.Wait = 0
			continue
		}
		t := span{wait: k.Wait, reset: k.Reset}
		t.shorten(k.Active, &k.Limit, w.now)
		k.Wait, k.Reset = t.wait, t.reset
	}
	return nil
}

// Explain returns which active rule a descriptor matches, and why. It counts nothing.
func (l *Limiter) Explain(domain string, entries []descriptor.Entry) descriptor.Explanation {
	tree := l.Tree()
	if tree == nil {
		return descriptor.Explanation{Reason: ErrNoRules.Error()}
	}
	return tree.Domain(domain).Explain(entries, l.parts.Keys)
}
