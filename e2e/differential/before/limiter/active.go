package limiter

import (
	"slices"
	"time"

	"github.com/ratelimitd/ratelimitd/e2e/differential/before/backend"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// A limit with `active` refuses nothing after its active time. A store does not know this time. So the wait and the reset of
// its counter are shortened here, for everything that callers see. What counters keep (events, usage) is by the counter's own window.

// spans are the times of one take for its caller.
type spans struct{ wait, reset time.Duration }

// wait returns the time until the take at position j of index would pass: backend.Never, or 0 if it passes.
func (c *calculation) wait(j int) time.Duration {
	if len(c.shortened) > 0 {
		return c.shortened[j].wait
	}
	return c.request.Outcomes[c.index[j]].RetryAfter
}

// reset returns the time until nothing is in use any more under the limit of the take at position j of index, its window ends, or it
// no longer applies.
func (c *calculation) reset(j int) time.Duration {
	if len(c.shortened) > 0 {
		return c.shortened[j].reset
	}
	return resetOf(&c.request.Outcomes[c.index[j]])
}

// resetOf returns the reset that callers see: nothing is free before a penalty ends. ResetAfter stays the time of the limit itself, which events
// and usage need.
func resetOf(o *backend.Outcome) time.Duration { return max(o.ResetAfter, o.Penalty) }

// shorten computes wait and reset of all takes. It is called only if a rule has limits with `active`.
func (c *calculation) shorten(now time.Time) {
	for i := range c.resolved {
		r := &c.resolved[i]
		for j := r.first; j < r.end; j++ {
			o := &c.request.Outcomes[c.index[j]]
			s := spans{o.RetryAfter, resetOf(o)}
			if !r.ownLimit && r.rule.Scheduled() && !o.Failed && (!r.own.blocked || len(r.rule.Limits) == 1) {
				s.shorten(r.rule.ActiveTimes(r.limitAt(j-r.first)), c.limit(i, j), now)
				if !o.Allowed && s.wait != backend.Never {
					s.wait = c.untilNoneRefuses(i, now, s.wait)
				}
			}
			c.shortened = append(c.shortened, s)
		}
	}
}

// shorten shortens the times of a limit that applies now. A limit of 0 has no other end than that of its active time.
func (s *spans) shorten(a *descriptor.Active, l *descriptor.Limit, now time.Time) {
	if a == nil {
		return
	}
	wait, reset := s.wait, s.reset
	if wait == backend.Never {
		wait = descriptor.Forever
	}
	if l.Capacity() == 0 {
		reset = descriptor.Forever
	}
	left := a.Left(now, max(wait, reset))
	if left == descriptor.Forever {
		return
	}
	s.wait, s.reset = min(wait, left), min(reset, left)
}

// untilNoneRefuses lengthens a wait if a limit of 0 of the same rule applies when it is over, such as a Sunday after the quiet hours of
// a Saturday.
func (c *calculation) untilNoneRefuses(i int, now time.Time, wait time.Duration) time.Duration {
	r := &c.resolved[i]
	if r.own.some {
		return wait
	}
	for range 2 * len(r.rule.Limits) * len(descriptor.WeekdayNames) { // a week; if they follow each other without end, there is no such time
		at := now.Add(wait)
		next := wait
		for j := range r.rule.Limits {
			l, a := c.ruleLimit(r, j), r.rule.ActiveTimes(j)
			if a == nil || l.Capacity() > 0 || !c.enforced(i, j) || slices.Contains(c.replaced, l.Name) || !a.At(at) {
				continue
			}
			left := a.Left(at, descriptor.Forever)
			if left == descriptor.Forever {
				return backend.Never
			}
			next = max(next, wait+left)
		}
		if next == wait {
			return wait
		}
		wait = next
	}
	return backend.Never
}
