package ratelimit

import (
	"context"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/config/override"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
	"github.com/ratelimitd/ratelimitd/limits"
)

// call holds the buffers of one decision. It is reused.
type call struct {
	request  limiter.Request
	decision limiter.Decision
	entries  []descriptor.Entry
}

const maxKept = 256 // entries that a call keeps for its next use

func (l *Limiter) release(c *call) {
	if cap(c.entries) > maxKept || cap(c.request.Descriptors) > maxKept {
		return
	}
	clear(c.entries)
	clear(c.request.Descriptors)
	c.request = limiter.Request{Descriptors: c.request.Descriptors[:0]}
	c.entries = c.entries[:0]
	l.calls.Put(c)
}

// Decide decides one request. The hits of an allowed request are counted; the hits of a denied one are counted if the
// rules count them. The error is limits.ErrInvalid if the request cannot be decided. If Redis fails, it is Redis'
// error, unless on_error decides.
func (l *Limiter) Decide(ctx context.Context, r *Request) (Decision, error) {
	return l.observed(ctx, r, nil)
}

// observed decides, and shows the decision to the observer. numbers replace those of the rule, unless they are nil.
func (l *Limiter) observed(ctx context.Context, r *Request, numbers *override.Numbers) (Decision, error) {
	if l.observer == nil {
		return l.decide(ctx, r, numbers)
	}
	start := time.Now()
	d, err := l.decide(ctx, r, numbers)
	l.observer.Decided(ctx, r, &d, err, time.Since(start))
	return d, err
}

func (l *Limiter) decide(ctx context.Context, r *Request, numbers *override.Numbers) (d Decision, err error) {
	if err := l.check(r); err != nil {
		return d, err
	}
	c := l.calls.Get().(*call)
	c.read(r, numbers)
	d, err = l.ask(ctx, c, r.MaxDelay)
	l.release(c) // not after a panic
	return d, err
}

// ask decides the request of a call.
func (l *Limiter) ask(ctx context.Context, c *call, maxDelay time.Duration) (d Decision, err error) {
	f := l.facts()
	if err := f.checkDecide(c.request.Domain, c.request.Descriptors); err != nil {
		return d, err
	}
	if maxDelay > 0 && f.delays {
		c.request.Purpose = limiter.Look
		if err := l.engine.Decide(ctx, time.Now(), &c.request, &c.decision); err != nil {
			return d, failed(err)
		}
		if c.decision.Delay > maxDelay {
			d = c.answer()
			d.Allowed, d.RetryAfter = false, d.Delay-maxDelay
			return d, nil
		}
		c.request.Purpose = limiter.Count
	}
	if err := l.engine.Decide(ctx, time.Now(), &c.request, &c.decision); err != nil {
		return d, failed(err)
	}
	if err := l.checkMatched(c); err != nil {
		return d, err
	}
	return c.answer(), nil
}

// Allow decides a request of one hit under one descriptor, given as pairs of key and value. If the rule is a leaky
// bucket that delays requests, Allow returns after the delay.
func (l *Limiter) Allow(ctx context.Context, domain string, pairs ...string) (bool, error) {
	if f := l.facts(); l.observer != nil || f.concurrency || f.delays {
		return limits.Allow(ctx, l, limits.NewRequest(domain, pairs...))
	}
	if err := l.checkPairs(domain, pairs); err != nil {
		return false, err
	}
	allowed, delay, plain, err := l.engine.AllowPlain(ctx, time.Now(), domain, pairs)
	if !plain {
		return l.allow(ctx, domain, pairs)
	}
	if err != nil {
		return false, failed(err)
	}
	if allowed && delay > 0 {
		err = limits.Sleep(ctx, delay) // rules that have become active since facts was read may delay
	}
	return allowed && err == nil, err
}

// allow is the slow path of Allow, for a decision that needs all steps. The rules delay nothing.
func (l *Limiter) allow(ctx context.Context, domain string, pairs []string) (allowed bool, err error) {
	c := l.calls.Get().(*call)
	c.entries = descriptor.AppendPairs(c.entries, pairs)
	c.request.Domain = domain
	c.request.Descriptors = append(c.request.Descriptors, limiter.Descriptor{Entries: c.entries})
	if err = l.engine.Decide(ctx, time.Now(), &c.request, &c.decision); err != nil {
		err = failed(err)
	} else if err = l.checkMatched(c); err == nil {
		allowed = c.decision.Code == limiter.OK
	}
	l.release(c)
	return allowed, err
}

// Wait waits until a request may pass. Goroutines that wait for the same limit wait in line: see limits.Wait.
func (l *Limiter) Wait(ctx context.Context, r *Request) (Decision, error) {
	return limits.Wait(ctx, l, r)
}

// read fills a call from a request. numbers replace those of the rules, unless they are nil.
func (c *call) read(r *Request, numbers *override.Numbers) {
	c.request.Domain = r.Domain
	n := 0
	for i := range r.Descriptors {
		n += len(r.Descriptors[i].Entries)
	}
	if cap(c.entries) < n { // descriptors point into entries, so it must not move
		c.entries = make([]descriptor.Entry, 0, n)
	}
	for i := range r.Descriptors {
		from := &r.Descriptors[i]
		first := len(c.entries)
		for _, e := range from.Entries {
			c.entries = append(c.entries, descriptor.Entry{Key: e.Key, Value: e.Value})
		}
		d := limiter.Descriptor{Entries: c.entries[first:len(c.entries):len(c.entries)], Numbers: numbers}
		amount := &r.Amount
		if from.Amount != nil {
			amount = from.Amount
		}
		n := amount.OrOneHit()
		exact(&d, &n)
		c.request.Descriptors = append(c.request.Descriptors, d)
	}
}

// exact sets the hits and units of a descriptor to those of an amount.
func exact(d *limiter.Descriptor, a *Amount) {
	d.Hits, d.HasHits = a.Hits, true
	for name, n := range a.Units {
		d.Amounts = append(d.Amounts, descriptor.Amount{Name: name, Units: n})
	}
}

// answer copies the decision, whose slices are used again.
func (c *call) answer() Decision {
	from := &c.decision
	all := make([]Status, len(from.Statuses))
	next := time.Duration(0)
	for i := range from.Statuses {
		s, to := &from.Statuses[i], &all[i]
		to.Allowed = s.Code == limiter.OK
		if s.Rule != nil {
			to.Rule = s.Rule.Path
		}
		to.Limit, to.Remaining, to.ResetAfter = s.Limit.Requests, s.Remaining, s.Reset
		to.Degraded, to.Penalty = s.Degraded != descriptor.OnErrorDefault, s.Penalised
		next = max(next, s.MoreAfter)
		if !to.Allowed {
			if to.RetryAfter = s.RetryAfter; s.RetryAfter < 0 {
				to.RetryAfter = Never
			}
		}
	}
	d := limits.NewDecision(from.Code == limiter.OK, all)
	d.Delay = from.Delay
	if d.Allowed {
		d.NextAfter = next
	}
	for _, h := range from.Headers {
		d.Headers = append(d.Headers, limits.Header{Name: h.Key, Value: h.Value})
	}
	return d
}
