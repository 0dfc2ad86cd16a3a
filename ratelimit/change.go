package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ratelimitd/ratelimitd/limits"
)

// Reset clears the counters of one descriptor, given as pairs of key and value. With Redis it clears them for all
// processes.
func (l *Limiter) Reset(ctx context.Context, domain string, pairs ...string) error {
	r := limits.NewRequest(domain, pairs...)
	if err := l.check(r); err != nil {
		return err
	}
	c := l.calls.Get().(*call)
	c.read(r, nil)
	_, err := l.engine.Reset(ctx, time.Now(), domain, &c.request.Descriptors[0])
	l.release(c)
	return failed(err)
}

// Refund gives hits back that an earlier request has counted, under all its descriptors. A limit never holds less than
// nothing.
func (l *Limiter) Refund(ctx context.Context, r *Request) error {
	if err := l.check(r); err != nil {
		return err
	}
	c := l.calls.Get().(*call)
	c.read(r, nil)
	for i := range c.request.Descriptors {
		c.request.Descriptors[i].Refund = true
	}
	err := l.engine.Decide(ctx, time.Now(), &c.request, &c.decision)
	if err == nil {
		err = l.checkMatched(c)
	}
	l.release(c)
	return failed(err)
}

// SetRules replaces the rules in code. Counters of rules that stay are kept, and so are the rules of Options.Files. It
// is an error if the rules come from Options.Dir.
func (l *Limiter) SetRules(domains ...Domain) error {
	if l.options.Dir != nil {
		return errors.New("ratelimit: SetRules: the rules come from Options.Dir: change its files")
	}
	o := l.options
	o.Domains = domains
	_, tree, err := o.fixedRules()
	if err != nil {
		return fmt.Errorf("ratelimit: %w", err)
	}
	l.engine.Swap(tree, l.settings)
	return nil
}
