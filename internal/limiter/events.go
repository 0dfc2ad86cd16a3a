package limiter

import (
	"strings"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/limiter/events"
)

// send sends an event about charge j, which is descriptor i's, if one is due. ends is the time until the reported
// denial or penalty ends.
func (w *work) send(kind events.Kind, d *Decision, i, j int, ends time.Duration) {
	c := &w.charges[j]
	take := &w.request.Takes[c.take]
	if take.Hits <= 0 || w.outcome(c).Failed || !w.counts(take) {
		return
	}
	var due events.Due
	var ok bool
	if rule := w.subjects[i].rule; rule != nil && rule.CountedWith() == "" && c.limit == &rule.Limits[c.index] {
		due, ok = w.Events.Due(w.now, kind, take.Key, take.Limit, ends)
	} else {
		due, ok = w.Events.DueFor(w.now, kind, take.Key, take.Limit, ends)
	}
	if ok {
		w.Events.Send(due, w.event(d, i, j))
	}
}

// event describes the limit of charge j, which is descriptor i's. It shares no memory with the decision.
func (w *work) event(d *Decision, i, j int) *events.Event {
	s, c := &w.subjects[i], &w.charges[j]
	e := &events.Event{
		Time:       w.now,
		Domain:     strings.Clone(w.req.Domain),
		Rule:       ofRequest,
		Entries:    copied(s),
		Limit:      *c.limit,
		Capacity:   c.capacity(),
		Hits:       w.request.Takes[c.take].Hits,
		Used:       w.outcome(c).Used,
		RetryAfter: w.span(j).wait,
		Override:   d.Statuses[i].Overridden,
		Blocked:    s.by == byBlock,
	}
	if s.rule != nil && !c.brought() {
		e.Rule = s.rule.Path
	}
	if s.degraded != descriptor.OnErrorDefault {
		e.Degraded = descriptor.OnErrorNames[s.degraded]
	}
	return e
}

// copied returns a copy of the entries of a descriptor as its counter has them: with the pattern where values share a
// counter, and with grouped values. It returns nil, and copies no more, where an event has no room for the entries.
func copied(s *subject) []descriptor.Entry {
	all := make([]descriptor.Entry, 0, min(len(s.counted), events.MaxEntryBytes/events.EntryBytes("", "")))
	size := 0
	for n, e := range s.counted {
		value := e.Value
		switch {
		case s.rule == nil:
		case s.rule.Shares(n):
			value = s.rule.Levels[n].PatternFor(e.Key)
		default:
			value = s.rule.Counted(n, value)
		}
		if size += events.EntryBytes(e.Key, value); size > events.MaxEntryBytes {
			return nil
		}
		all = append(all, descriptor.Entry{Key: strings.Clone(e.Key), Value: strings.Clone(value)})
	}
	return all
}
