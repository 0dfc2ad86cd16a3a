package limiter

import (
	"strings"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/events"
)

// reportRefusal sends an event for each descriptor whose limit refuses this request. The limit is the one that the status describes. What is
// not enforced refuses nothing. Neither do peeks, steps of a reservation after the first, and answers without a counter.
func (c *calculation) reportRefusal(s *events.Sink, d *Decision, now time.Time) {
	for i := range c.resolved {
		r := &c.resolved[i]
		if d.Statuses[i].Code != OverLimit || r.first == r.end {
			continue
		}
		t := c.index[r.deciding]
		take, o := &c.request.Takes[t], &c.request.Outcomes[t]
		if take.Hits <= 0 || o.Failed || o.Allowed || !c.counted(take) || c.req.Purpose == Charge {
			continue
		}
		if due, ok := s.Due(now, events.Refusal, take.Key, take.Limit, o.ResetAfter); ok {
			s.Send(due, c.event(d, i, r.deciding, now))
		}
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
		RetryAfter: c.request.Outcomes[t].RetryAfter,
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
// with the value that counts where values are grouped.
func (c *calculation) countedCopy(i int) []descriptor.Entry {
	rule, entries := c.resolved[i].rule, c.entries(i)
	all := make([]descriptor.Entry, len(entries))
	for n, e := range entries {
		value := e.Value
		switch {
		case rule == nil:
		case rule.Shares(n):
			value = rule.Levels[n].PatternFor(e.Key)
		default:
			value = rule.Counted(n, value)
		}
		all[n] = descriptor.Entry{Key: strings.Clone(e.Key), Value: strings.Clone(value)}
	}
	return all
}
