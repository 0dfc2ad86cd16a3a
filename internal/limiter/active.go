package limiter

import (
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// A limit with `active` counts and denies only at some times. Apply leaves out a limit that is inactive now. For an
// active one, Judge cuts the wait and reset times at the end of its active time, because the store is independent of
// schedules. Clients see these shorter times; events and usage report the counter's own window.

// leaveOutInactive marks the limits that do not apply now. A rule without any other limit does not apply.
func (w *work) leaveOutInactive(s *subject) {
	cs := w.chargesOf(s)
	for i := range cs {
		c := &cs[i]
		if !s.rule.ActiveAt(c.index, w.now) {
			c.state |= inactive
		}
	}
	if !w.showsAll {
		w.dropUnused(s)
	}
}

// shorten computes the times of all takes.
func (w *work) shorten() {
	for i := range w.subjects {
		s := &w.subjects[i]
		for j := s.first; j < s.end; j++ {
			c := &w.charges[j]
			if c.take == none {
				w.spans = append(w.spans, span{})
				continue
			}
			o := w.outcome(c)
			t := w.spanOf(c)
			if s.rule != nil && s.rule.Scheduled() && !c.brought() && !o.Failed && (s.by != byBlock || len(s.rule.Limits) == 1) {
				t.shorten(s.rule.ActiveTimes(c.index), c.limit, w.now)
				if !o.Allowed && t.wait != backend.Never {
					t.wait = w.untilNoneDenies(s, t.wait)
				}
			}
			w.spans = append(w.spans, t)
		}
	}
}

// shorten shortens the times of a limit that applies now. A limit of 0 denies until its active time ends.
func (t *span) shorten(a *descriptor.Active, l *descriptor.Limit, now time.Time) {
	if a == nil {
		return
	}
	wait, reset := t.wait, t.reset
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
	t.wait, t.more, t.reset = min(wait, left), min(t.more, left), min(reset, left)
}

// untilNoneDenies lengthens a wait if a limit of 0 of the same rule applies when it is over, such as a Sunday after the
// quiet hours of a Saturday.
func (w *work) untilNoneDenies(s *subject, wait time.Duration) time.Duration {
	if s.overridden() {
		return wait
	}
	// a week; if active times follow each other without a gap, the limit always denies
	for range 2 * len(s.rule.Limits) * len(descriptor.WeekdayNames) {
		next := wait
		cs := w.ruleCharges(s)
		for i := range cs {
			left := cs[i].deniesAllAt(s.rule, w.now.Add(wait))
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

// deniesAllAt returns for how long an enforced limit of 0 still applies at a time, or 0 if it does not.
func (c *charge) deniesAllAt(rule *descriptor.Rule, at time.Time) time.Duration {
	a := rule.ActiveTimes(c.index)
	if a == nil || c.limit.Capacity() > 0 || c.state&(unenforced|replaced) != 0 || !a.At(at) {
		return 0
	}
	return a.Left(at, descriptor.Forever)
}
