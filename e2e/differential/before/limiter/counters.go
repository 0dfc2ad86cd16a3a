package limiter

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/ratelimitd/ratelimitd/e2e/differential/before/backend"
	"github.com/ratelimitd/ratelimitd/internal/config/override"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// Counters are the counters of one descriptor, for operators.
type Counters struct {
	// Explanation shows which rule the descriptor matches, or why none does. FromRequest: the limit is the request's, not the rule's.
	Explanation descriptor.Explanation
	FromRequest bool
	Blocked     bool              // an override refuses every request
	Override    *override.Numbers // in force for all limits of the rule, or for its first one with an override; nil: none

	HitCost uint64 // what one hit counts for under the rule; 0 without a rule

	List []Counter // in the order of the rule's limits; empty if nothing limits the descriptor
}

// Counter is one limit and its state, as a request to this process would see it.
type Counter struct {
	Limit descriptor.Limit
	Key   string

	Scale    *descriptor.Scale  // what multiplied the numbers of Limit; nil: nothing
	Active   *descriptor.Active // when the limit applies; nil: always
	Inactive bool               // it does not apply at the time of the request

	Lifted    bool          // an override lets every request pass this limit
	Passes    bool          // the limit is not enforced for this caller: what it refuses passes
	Used      int64         // hits; more than the capacity where refused hits were counted
	Penalty   time.Duration // for how long the limit's penalty refuses everything; 0: none is in force
	Remaining uint64
	Wait      time.Duration // until a request of one hit would pass; backend.Never if none ever will
	Reset     time.Duration // until no hits are in use, or the window ends
	Cached    bool          // the state comes from the over-limit cache, not from the backend
}

// Words describes the limit for people, with the time when it applies.
func (c *Counter) Words() string {
	words := c.Limit.Words()
	if c.Scale != nil {
		words += ", by the number of " + strconv.Quote(c.Scale.Key) + fmt.Sprintf(", which counts up to %d", c.Scale.Max)
	}
	if c.Active != nil {
		words += ", only " + c.Active.Words()
	}
	switch {
	case c.Inactive:
		words += " (not now)"
	case c.Active != nil:
		words += " (now)"
	}
	return words
}

// Peek returns the counters of one descriptor. It changes neither the counters nor the metrics by rule. Only the entries
// and the limit of d matter.
//
// The errors are those of Decide, but on_error is not used.
func (l *Limiter) Peek(ctx context.Context, now time.Time, domain string, d *Descriptor) (Counters, error) {
	return l.peek(ctx, now, l.snapshot.Load(), domain, d)
}

// PeekWith is Peek as it would be with other overrides.
func (l *Limiter) PeekWith(ctx context.Context, now time.Time, domain string, d *Descriptor, overrides *override.Set) (Counters, error) {
	snap := l.snapshot.Load()
	if snap == nil {
		return Counters{}, ErrNoRules
	}
	with := *snap
	with.overrides = overrides
	return l.peek(ctx, now, &with, domain, d)
}

func (l *Limiter) peek(ctx context.Context, now time.Time, snap *snapshot, domain string, d *Descriptor) (Counters, error) {
	c, takes, err := l.counters(now, snap, domain, d)
	if err != nil {
		return Counters{}, err
	}
	if err := l.read(ctx, now, &c, takes); err != nil {
		return Counters{}, err
	}
	return c, nil
}

// Reset clears the counters of one descriptor and returns their previous contents. Only the entries and the limit of d
// matter. backend.Store describes the guarantees. Counts of on_error: local in this process are cleared too.
//
// The errors are those of Peek.
func (l *Limiter) Reset(ctx context.Context, now time.Time, domain string, d *Descriptor) (Counters, error) {
	c, takes, err := l.counters(now, l.snapshot.Load(), domain, d)
	if err != nil || len(takes) == 0 {
		return c, err
	}
	if err := l.read(ctx, now, &c, takes); err != nil {
		return Counters{}, err
	}
	var named []backend.Counter
	for i := range takes[:len(c.List)] {
		t := &takes[i]
		named = append(named, backend.Counter{Key: t.Key, Limit: t.Limit, Rule: t.Rule})
		for n := 0; n < 2 && t.Limit.Penalty != nil; n++ { // enforced, and in shadow
			named = append(named, backend.Counter{Key: descriptor.AppendPenaltyKey(nil, t.Key, n > 0), Limit: t.Limit.Penalty, Rule: t.Rule})
		}
	}
	err = l.store.Reset(ctx, named)
	if l.local != nil {
		err = errors.Join(err, l.local.Reset(ctx, named))
	}
	if err != nil {
		return Counters{}, fmt.Errorf("clear counters: %w", err)
	}
	return c, nil
}

// counters finds a descriptor's counters, and makes a take of one hit for each of them. snap is nil before the first Swap.
func (l *Limiter) counters(now time.Time, snap *snapshot, domain string, d *Descriptor) (c Counters, takes []backend.Take, err error) {
	if err := validate(&Request{Domain: domain, Descriptors: []Descriptor{*d}}); err != nil {
		return Counters{}, nil, err
	}
	if snap == nil {
		return Counters{}, nil, ErrNoRules
	}
	rules := snap.tree.Domain(domain)
	entries := d.Entries
	if rules != nil && rules.MatchNamed(entries) != nil {
		entries = entries[:len(entries)-1]
	}
	c.Explanation = rules.Explain(d.Entries, l.keys)
	rule := c.Explanation.Rule
	calc := calculation{snapshot: snap, settings: &snap.settings, domain: rules}
	r := resolved{rule: rule}
	if rule != nil && rule.Scheduled() {
		calc.leaveOutInactive(&r, now)
	}
	switch {
	case d.HasLimit && rules != nil && calc.prefersRequest(r.rule, d, entries, now):
		limit := d.Limit.limit(&snap.settings) // the same limit as in a decision
		key := l.keys.AppendKey(nil, domain, entries, nil, &limit)
		rule, c.FromRequest, c.List = rules.RequestLimits, true, []Counter{{Limit: limit, Key: string(key)}}
	case rule != nil:
		c.HitCost = rule.HitCostOf(entries)
		if r.rule == nil {
			r.rule, r.kept = rule, []int{}
		}
		who := callerOf(rule, entries)
		if n := calc.overrideInForce(rule, entries, now); n.Kind != 0 {
			c.Override = &n
			calc.overrideRule(&r, who, now.Unix())
		}
		if rule.Scales() != nil {
			calc.scale(&r, entries)
		}
		for i := range rule.Limits {
			limit := &rule.Limits[i] // a caller that is blocked still has what it used before
			if !r.own.blocked {
				limit = calc.ruleLimit(&r, i)
			}
			lifted := !r.own.blocked && r.own.lifted>>i&1 != 0
			c.List = append(c.List, Counter{
				Limit: *limit, Key: c.Explanation.Keys[i], Lifted: lifted, Passes: !r.own.blocked && !calc.enforcedFor(rule, who.counted, i),
				Scale: rule.ScaleOf(i), Active: rule.ActiveTimes(i), Inactive: !rule.ActiveAt(i, now),
			})
		}
		c.Blocked = r.own.blocked
	}
	for i := range c.List {
		hits := int64(max(c.HitCost, 1))
		takes = append(takes, backend.Take{Key: []byte(c.List[i].Key), Limit: &c.List[i].Limit, Rule: rule, Hits: hits, Member: i})
	}
	return c, append(takes, c.penaltyTakes(&snap.settings, rule)...), nil
}

// read fills in the counters' states.
func (l *Limiter) read(ctx context.Context, now time.Time, c *Counters, takes []backend.Take) error {
	if len(takes) == 0 {
		return nil
	}
	r := backend.Request{Takes: takes, Outcomes: make([]backend.Outcome, len(takes))}
	if err := l.store.Peek(ctx, now, &r); err != nil {
		return fmt.Errorf("look at counters: %w", err)
	}
	for i := range c.List {
		k, o := &c.List[i], &r.Outcomes[i]
		k.Used, k.Remaining, k.Wait, k.Reset, k.Cached = o.Used, o.Remaining(k.Limit.Capacity()), o.RetryAfter, o.ResetAfter, o.Cached
	}
	c.readPenalties(&r)
	for i := range c.List {
		k := &c.List[i]
		if k.Inactive {
			k.Wait = 0
			continue
		}
		s := spans{k.Wait, k.Reset}
		s.shorten(k.Active, &k.Limit, now)
		k.Wait, k.Reset = s.wait, s.reset
	}
	return nil
}
