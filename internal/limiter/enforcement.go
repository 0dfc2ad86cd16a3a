package limiter

import (
	"cmp"
	"slices"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/limiter/events"
)

// A limit of a rule may be enforced for nobody (shadow, soft) or for a share of the customers. It is charged together
// with the rule's other limits but has no vote: it counts the hits that the others let pass, and hits over it pass. The
// status, the headers and the reservation of a descriptor come from its enforced limits. If no limit is enforced for
// this customer, the descriptor behaves as in shadow mode. A limit with `warn_at` warns customers before it denies
// them.

// enforce determines which limits are enforced for the customers of this request.
func (w *work) enforce() {
	for i := range w.subjects {
		s := &w.subjects[i]
		// a block is enforced even if its limit is not
		if s.rule == nil || !s.rule.Varies() || s.by == byBlock {
			continue
		}
		counted, loose := 0, 0
		cs := w.chargesOf(s)
		for j := range cs {
			c := &cs[j]
			if !c.brought() && !w.enforcedFor(s.rule, s.counted, c.index) {
				c.state |= unenforced
			}
			switch {
			case c.state.away():
			case c.state&unenforced != 0:
				loose++
				counted++
			default:
				counted++
			}
		}
		s.allUnenforced = counted > 0 && loose == counted
	}
}

// enforcedFor reports whether a limit of a rule is enforced for the customer with these entries. The entries have their
// grouped values.
func (w *work) enforcedFor(rule *descriptor.Rule, counted []descriptor.Entry, limit int) bool {
	l := &rule.Limits[limit]
	if l.Enforcement != descriptor.EnforcedForSome {
		return l.EnforcedFor(nil)
	}
	w.scratch = rule.AppendCaller(w.scratch[:0], rule.Domain, counted, limit)
	return l.EnforcedFor(w.scratch)
}

// notice adds the notices of the limits to the decision.
func (w *work) notice(d *Decision) {
	for i := range w.subjects {
		s := &w.subjects[i]
		if s.rule == nil || !s.rule.Varies() || s.hits < 0 || w.alreadyDecided(s) {
			continue
		}
		for _, c := range w.taken(s) {
			if c.brought() {
				continue
			}
			n := Notice{Descriptor: i, LimitIndex: c.index}
			if l := &s.rule.Limits[c.index]; n.fill(s.rule, l, c, w.outcome(c)) {
				n.Name = l.Name
				d.Notices = append(d.Notices, n)
			}
		}
	}
}

// fill sets the notice for an outcome, and reports whether there is one.
func (n *Notice) fill(rule *descriptor.Rule, l *descriptor.Limit, c *charge, o *backend.Outcome) bool {
	if o.Failed {
		return false
	}
	loose, capacity := c.state&unenforced != 0, c.capacity()
	if capacity > 0 {
		n.Percent = o.Used * 100 / int64(capacity)
	}
	silent := rule.Shadow || loose && l.Enforcement != descriptor.EnforcedSoftly
	switch {
	case !o.Allowed && loose && silent:
		n.Kind = NoticeShadow
		return true
	case !o.Allowed && loose:
		n.Kind = NoticeSoft
		return true
	default:
		n.Kind = NoticeWarn
		return o.Allowed && !silent && warns(l, o, capacity)
	}
}

// warns reports whether the usage of a limit has reached its rule's warn_at.
func warns(l *descriptor.Limit, o *backend.Outcome, capacity uint64) bool {
	return l.WarnAt > 0 && capacity > 0 && o.Used*100 >= int64(l.WarnAt)*int64(capacity)
}

// maxWarning is the longest warning header, in bytes. Clients and proxies reject answers with very large headers.
const maxWarning = 1024

// warning returns the notices for clients as a list in the syntax of structured fields: "daily";used=83,
// "monthly";exceeded. It is empty without notices. Exceeded limits come first, then the limits with the largest share
// in use. shown are the notices that fit.
func (w *work) warning(d *Decision) (header string, shown []*Notice) {
	var all []*Notice
	for i := range d.Notices {
		if n := &d.Notices[i]; n.Kind != NoticeShadow {
			all = append(all, n)
		}
	}
	slices.SortStableFunc(all, func(a, b *Notice) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(b.Percent, a.Percent))
	})
	var b []byte
	var used draftNames
	for i, n := range all {
		end := len(b)
		if i > 0 {
			b = append(b, ", "...)
		}
		b = append(b, used.next(w.noticed(n))...)
		if n.Kind == NoticeSoft {
			b = append(b, ";exceeded"...)
		} else {
			b = appendInteger(append(b, ";used="...), uint64(max(n.Percent, 0)))
		}
		if len(b) > maxWarning {
			return string(b[:end]), all[:i]
		}
	}
	return string(b), all
}

// warnings returns the notices that the header has for the dynamic metadata.
func (w *work) warnings(d *Decision) []any {
	var all []any
	_, shown := w.warning(d)
	for _, n := range shown {
		m := map[string]any{"rule": w.subjects[n.Descriptor].rule.Path, "descriptor": n.Descriptor, "used_percent": n.Percent}
		if n.Name != "" {
			m["name"] = n.Name
		}
		if n.Kind == NoticeSoft {
			m["exceeded"] = true
		}
		all = append(all, m)
	}
	return all
}

func (w *work) noticed(n *Notice) *descriptor.Limit {
	return &w.subjects[n.Descriptor].rule.Limits[n.LimitIndex]
}

// countLimits counts the hits of a descriptor under each limit of its rule. code is the request's. Hits over a limit
// that is not enforced count only if the request passes: these are the hits that enforcing the limit would deny.
func (w *work) countLimits(s *subject, code Code) {
	all := w.snap.limits[s.rule.Index]
	for _, c := range w.taken(s) {
		o, capacity := w.outcome(c), c.capacity()
		switch hits := uint64(deniedHits(s.admitted, int64(capacity))); {
		case o.Failed, c.brought():
		case !o.Allowed && c.state&unenforced == 0 && !s.rule.Shadow:
			add(&all[c.index].Denied, hits)
		case !o.Allowed && code == OK:
			add(&all[c.index].Passed, hits)
		case warns(&s.rule.Limits[c.index], o, capacity):
			add(&all[c.index].Warned, uint64(s.admitted))
		}
	}
}

// sendNotices sends events about limits that are exceeded and not enforced, or almost exceeded. A limit in shadow has
// no event.
func (w *work) sendNotices(d *Decision) {
	for n := range d.Notices {
		notice := &d.Notices[n]
		kind := events.Warning
		switch notice.Kind {
		case NoticeShadow:
			continue
		case NoticeSoft:
			kind = events.Exceeded
		case NoticeWarn:
		}
		j := w.subjects[notice.Descriptor].first + notice.LimitIndex // there is a charge for each limit
		w.send(kind, d, notice.Descriptor, j, w.outcome(&w.charges[j]).ResetAfter)
	}
}
