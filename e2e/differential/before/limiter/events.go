package limiter

import (
	"strings"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/limiter/events"
)

// report sends events about the limits of this request: those that refuse it, and those with a notice for clients. A new kind of
// event has its place here. Peeks and later steps of a reservation have no events, and neither have answers without a counter.
func (c *calculation) report(s *events.Sink, d *Decision, now time.Time) {
	if d.Code == OverLimit && c.req.Purpose != Charge {
		for i := range d.Statuses {
			if r := &c.resolved[i]; d.Statuses[i].Code == OverLimit && r.first < r.end && !c.request.Outcomes[c.index[r.deciding]].Allowed {
				c.send(s, events.Refusal, d, i, r.deciding, c.windowEnds(r.deciding), now)
			}
		}
	}
	for n := range d.Notices {
		notice := &d.Notices[n]
		switch notice.Kind {
		case NoticeSoft:
			j := c.noticedTake(notice)
			c.send(s, events.Exceeded, d, notice.Descriptor, j, c.windowEnds(j), now)
		case NoticeWarn:
			j := c.noticedTake(notice)
			c.send(s, events.Warning, d, notice.Descriptor, j, c.windowEnds(j), now)
		case NoticeShadow: // nobody is refused or warned
		}
	}
	if c.guarded {
		c.reportPenalties(s, d, now)
	}
}

// reportPenalties sends events about the enforced penalties that this request has begun.
func (c *calculation) reportPenalties(s *events.Sink, d *Decision, now time.Time) {
	for i := range c.resolved {
		r := &c.resolved[i]
		for j := r.first; j < r.end; j++ {
			t := c.index[j]
			if t == 0 || !c.request.Takes[t-1].Guards || c.settings.Shadow || r.shadow() || r.passes(j) {
				continue
			}
			if o := &c.request.Outcomes[t-1]; !o.Failed && o.Used > o.Before {
				c.send(s, events.Penalty, d, i, j, c.request.Outcomes[t].Penalty, now)
			}
		}
	}
}

// noticedTake returns the position in index of the take that a notice is about.
func (c *calculation) noticedTake(n *Notice) int {
	r := &c.resolved[n.Descriptor]
	j := r.first
	for r.limitAt(j-r.first) != n.LimitIndex {
		j++
	}
	return j
}

// windowEnds returns the time until the window of the take at position j of index ends.
func (c *calculation) windowEnds(j int) time.Duration {
	return c.request.Outcomes[c.index[j]].ResetAfter
}

// send sends an event about the take at position j of index, which is descriptor i's, if one is due. ends is the time until what it
// reports ends.
func (c *calculation) send(s *events.Sink, kind events.Kind, d *Decision, i, j int, ends time.Duration, now time.Time) {
	take, o := &c.request.Takes[c.index[j]], &c.request.Outcomes[c.index[j]]
	if take.Hits <= 0 || o.Failed || !c.counted(take) {
		return
	}
	if due, ok := s.Due(now, kind, take.Key, take.Limit, ends); ok {
		s.Send(due, c.event(d, i, j, now))
	}
}

// event describes the limit of the take at position j of index, which is descriptor i's. It shares no memory with the decision.
func (c *calculation) event(d *Decision, i, j int, now time.Time) *events.Event {
	r, st, t := &c.resolved[i], &d.Statuses[i], c.index[j]
	e := &events.Event{
		Time:       now,
		Domain:     strings.Clone(c.req.Domain),
		Rule:       ofRequest,
		Entries:    c.countedCopy(i),
		Limit:      *c.limit(i, j),
		Capacity:   c.capacity(i, j),
		Hits:       c.request.Takes[t].Hits,
		Used:       c.request.Outcomes[t].Used,
		RetryAfter: c.wait(j),
		Override:   st.Overridden,
		Blocked:    r.own.blocked,
	}
	if r.rule != nil {
		e.Rule = r.rule.Path
	}
	if r.degraded != descriptor.OnErrorDefault {
		e.Degraded = descriptor.OnErrorNames[r.degraded]
	}
	return e
}

// countedCopy returns a copy of the entries of descriptor i as its counter has them: with the pattern where values share a counter, and
// with the value that counts where values are grouped. It returns nil, and copies no more, where an event has no room for the entries.
func (c *calculation) countedCopy(i int) []descriptor.Entry {
	rule, entries := c.resolved[i].rule, c.entries(i)
	all := make([]descriptor.Entry, 0, min(len(entries), events.MaxEntryBytes/events.EntryBytes("", "")))
	size := 0
	for n, e := range entries {
		value := e.Value
		switch {
		case rule == nil:
		case rule.Shares(n):
			value = rule.Levels[n].PatternFor(e.Key)
		default:
			value = rule.Counted(n, value)
		}
		if size += events.EntryBytes(e.Key, value); size > events.MaxEntryBytes {
			return nil
		}
		all = append(all, descriptor.Entry{Key: strings.Clone(e.Key), Value: strings.Clone(value)})
	}
	return all
}
