package limiter

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// Counters are what one descriptor is counted in, for operators.
type Counters struct {
	// Explanation says which rule the descriptor matches, or why none. An override stands in for the rule.
	Explanation descriptor.Explanation
	Override    bool

	rule *descriptor.Rule // in whose share they are

	List []Counter // in the order of the rule's limits; empty if nothing limits the descriptor
}

// Counter is one limit and its state, as a request to this process would find it.
type Counter struct {
	Limit descriptor.Limit
	Key   string

	Used      int64 // hits; more than the capacity where refused hits were counted
	Remaining uint32
	Wait      time.Duration // until one more hit would pass; backend.Never if none ever will
	Reset     time.Duration // until nothing is in use any more, or the window ends
	Cached    bool          // the over-limit cache said so; the backend was not asked
}

// Peek looks at the counters of one descriptor. It changes nothing in them, and counts in no metric by rule. Only the
// entries and the override of d matter.
//
// The errors are those of Decide; on_error has no say.
func (l *Limiter) Peek(ctx context.Context, now time.Time, domain string, d *Descriptor) (Counters, error) {
	c, err := l.counters(domain, d)
	for i := 0; err == nil && i < len(c.List); i++ {
		err = l.peek(ctx, now, c.rule, &c.List[i])
	}
	if err != nil {
		return Counters{}, err
	}
	return c, nil
}

// Reset clears the counters of one descriptor and answers with what they held before. Only the entries and the override
// of d matter. backend.Resetter says what is promised; what on_error: local has counted here is cleared, too.
//
// The errors are those of Peek, and backend.ErrNoReset.
func (l *Limiter) Reset(ctx context.Context, now time.Time, domain string, d *Descriptor) (Counters, error) {
	c, err := l.Peek(ctx, now, domain, d)
	if err != nil || len(c.List) == 0 {
		return c, err
	}
	named := make([]backend.Counter, len(c.List))
	for i := range c.List {
		named[i] = backend.Counter{Key: []byte(c.List[i].Key), Limit: &c.List[i].Limit, Rule: c.rule}
	}
	err = backend.Reset(ctx, l.backend, named)
	if l.local != nil {
		err = errors.Join(err, backend.Reset(ctx, l.local, named))
	}
	if err != nil {
		return Counters{}, fmt.Errorf("clear counters: %w", err)
	}
	return c, nil
}

// counters finds what a descriptor is counted in.
func (l *Limiter) counters(domain string, d *Descriptor) (Counters, error) {
	if err := validate(&Request{Domain: domain, Descriptors: []Descriptor{*d}}); err != nil {
		return Counters{}, err
	}
	tree := l.Tree()
	if tree == nil {
		return Counters{}, ErrNoRules
	}
	rules := tree.Domain(domain)
	c := Counters{Explanation: rules.Explain(d.Entries, l.keys)}
	if d.HasOverride && rules != nil {
		limit := d.Override.limit(&l.snapshot.Load().settings) // as a decision would take it
		key := l.keys.AppendKey(nil, domain, d.Entries, nil, &limit)
		c.rule, c.Override, c.List = rules.Overrides, true, []Counter{{Limit: limit, Key: string(key)}}
		return c, nil
	}
	if r := c.Explanation.Rule; r != nil {
		c.rule = r
		for i := range r.Limits {
			c.List = append(c.List, Counter{Limit: r.Limits[i], Key: c.Explanation.Keys[i]})
		}
	}
	return c, nil
}

func (l *Limiter) peek(ctx context.Context, now time.Time, rule *descriptor.Rule, c *Counter) error {
	look := backend.Take{Key: []byte(c.Key), Limit: &c.Limit, Rule: rule}
	outcomes, err := l.look(ctx, now, look)
	if err != nil {
		return err
	}
	o := &outcomes[0]
	c.Used, c.Remaining, c.Reset, c.Cached = o.Used, o.Remaining(c.Limit.Capacity()), o.ResetAfter, o.Cached
	if c.Remaining > 0 {
		return nil
	}
	// How long one more hit would have to wait is asked with one that does not count: beside it stands one so heavy that
	// the two are always refused together.
	one, heavy := look, look
	one.Hits, heavy.Hits, heavy.Member = 1, backend.MaxHits, 1
	if outcomes, err = l.look(ctx, now, one, heavy); err != nil {
		return err
	}
	c.Wait = outcomes[0].RetryAfter
	return nil
}

func (l *Limiter) look(ctx context.Context, now time.Time, takes ...backend.Take) ([]backend.Outcome, error) {
	r := backend.Request{Takes: takes, Outcomes: make([]backend.Outcome, len(takes)), Together: true}
	if err := l.backend.Take(ctx, now, &r); err != nil {
		return nil, fmt.Errorf("look at counters: %w", err)
	}
	return r.Outcomes, nil
}
