package limiter

import (
	"context"
	"fmt"
	"time"

	"github.com/ratelimitd/ratelimitd/e2e/differential/before/backend"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// fallback answers the takes that the backend could not answer, according to on_error. It returns an error based on cause,
// the backend's error, if on_error gives no answer.
func (l *Limiter) fallback(ctx context.Context, now time.Time, c *calculation, cause error) error {
	l.metrics.failures.Add(1)
	cause = fmt.Errorf("count hits: %w", cause)
	if err := ctx.Err(); err != nil {
		return cause // the caller has left
	}
	local, degraded := &c.local, false
	for i := range c.resolved {
		choice := c.onError(i)
		if !c.failed(i) {
			continue
		}
		if c.resolved[i].settlesEarlier() {
			if c.req.Hold != nil {
				return cause // its caller can repeat it
			}
			choice = descriptor.OnErrorAllow // what has passed has passed
		}
		switch choice {
		case descriptor.OnErrorAllow, descriptor.OnErrorDeny:
			for _, t := range c.index[c.resolved[i].first:c.resolved[i].end] {
				if c.request.Outcomes[t].Failed {
					c.request.Outcomes[t] = backend.Outcome{Failed: true, Allowed: choice == descriptor.OnErrorAllow}
				}
			}
		case descriptor.OnErrorLocal:
			if l.local == nil {
				return cause
			}
			c.countLocally(i)
		default:
			l.metrics.degraded[descriptor.OnErrorError].Add(1)
			return cause
		}
		c.resolved[i].degraded, degraded = choice, true
	}
	if len(local.Takes) > 0 {
		local.Together = c.request.Together
		local.Prepare()
		if err := l.local.Take(ctx, now, &local.Request); err != nil {
			return fmt.Errorf("%w; count locally: %w", cause, err)
		}
		local.Answer(&c.request)
	}
	if !degraded {
		return nil
	}
	l.metrics.onError.Add(1)
	for i := range c.resolved {
		l.metrics.degraded[c.resolved[i].degraded].Add(1)
	}
	return nil
}

// failed reports whether a take of descriptor i has no answer. One of a limit that is not enforced needs none.
func (c *calculation) failed(i int) bool {
	r := &c.resolved[i]
	for j := r.first; j < r.end; j++ {
		if c.request.Outcomes[c.index[j]].Failed && !r.passes(j) {
			return true
		}
	}
	return false
}

// onError returns the choice for descriptor i: its rule's, its domain's, or the server's. A descriptor that is not enforced
// passes.
func (c *calculation) onError(i int) descriptor.OnError {
	r := &c.resolved[i]
	switch {
	case r.shadow() || c.settings.Shadow:
		return descriptor.OnErrorAllow
	case r.rule != nil && r.rule.OnError != descriptor.OnErrorDefault:
		return r.rule.OnError
	case c.domain.OnError != descriptor.OnErrorDefault:
		return c.domain.OnError
	default:
		return c.settings.OnError
	}
}

// countLocally adds the failed takes of descriptor i to those that this process counts, under its share of the limit.
func (c *calculation) countLocally(i int) {
	r := &c.resolved[i]
	for j := r.first; j < r.end; j++ {
		t := c.index[j]
		if !c.request.Outcomes[t].Failed || c.local.Has(t) {
			continue
		}
		if t > 0 && c.request.Takes[t-1].Guards {
			c.local.Add(t-1, c.request.Takes[t-1])
		}
		take := c.local.Add(t, c.request.Takes[t])
		take.Hold = nil // the answer has no id, so nobody could commit it
		if c.settings.Replicas > 1 {
			take.Limit = c.share(i, j)
		}
	}
}

// share returns this process' share of descriptor i's limit for the take at position j of index.
func (c *calculation) share(i, j int) *descriptor.Limit {
	r := &c.resolved[i]
	if r.ownLimit {
		r.share = share(&r.limit, c.settings.Replicas, 1)
		return &r.share
	}
	if r.own.copied || r.rule.HitCost() != nil {
		s := share(c.limit(i, j), c.settings.Replicas, c.hitCost(i))
		return &s
	}
	return &c.shares[r.rule.Index][r.limitAt(j-r.first)]
}

// share divides a limit by the number of replicas. Each replica gets at least one request per window, and has room for one hit of this
// cost, unless the whole limit has not.
func share(l *descriptor.Limit, replicas int, cost uint64) descriptor.Limit {
	n := uint64(max(replicas, 1))
	s := *l
	if s.Requests > 0 {
		s.Requests = max(s.Requests/n, 1)
	}
	if s.Burst > 0 {
		s.Burst = max(s.Burst/n, 1)
	}
	if has := s.Capacity(); has < cost && s.Has(descriptor.SettingBurst) {
		s.Burst = min(s.Burst+cost-has, l.Burst)
	} else if has < cost {
		s.Requests = min(cost, l.Requests)
	}
	if l.Arithmetic.Length != 0 && s.Compile() != nil {
		return *l // the smaller limit cannot be counted exactly; the whole limit can
	}
	return s
}

// shares divides the limits of all rules. It returns nil if there is only one replica.
func shares(tree *descriptor.Tree, replicas int) [][]descriptor.Limit {
	if replicas <= 1 {
		return nil
	}
	all := make([][]descriptor.Limit, len(tree.Rules))
	for i, r := range tree.Rules {
		all[i] = make([]descriptor.Limit, len(r.Limits))
		for j := range r.Limits {
			all[i][j] = share(&r.Limits[j], replicas, 1)
		}
	}
	return all
}
