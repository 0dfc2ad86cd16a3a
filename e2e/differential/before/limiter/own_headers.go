package limiter

import (
	"slices"
	"strconv"
	"time"

	"github.com/ratelimitd/ratelimitd/e2e/differential/before/backend"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// described is the limit that a header of a rule file describes, and the outcome of its take.
type described struct {
	limit    *descriptor.Limit
	capacity uint64
	outcome  *backend.Outcome
	reset    time.Duration
}

// ownHeaders adds the headers that the domain's rule file defines. best is the descriptor that headers describe, or -1.
func (c *calculation) ownHeaders(d *Decision, own []descriptor.OwnHeader, best int, now time.Time) {
	when := descriptor.HeaderPassed
	if d.Code == OverLimit && !c.settings.Shadow {
		when = descriptor.HeaderRefused
	}
	var all described
	if best >= 0 {
		all = c.describe(best, c.resolved[best].deciding)
	}
	first := len(d.Headers)
	c.text, c.ends = c.text[:0], c.ends[:0]
	for i := range own {
		h := &own[i]
		if h.When != descriptor.HeaderAlways && h.When != when {
			continue
		}
		of := all
		if len(h.Of) > 0 {
			of = c.limitNamed(d, h.Of)
		}
		if of.limit != nil && c.appendHeader(d, h, of, when, now) {
			d.Headers = append(d.Headers, Header{Key: h.Name})
			c.ends = append(c.ends, len(c.text))
		}
	}
	text, begin := string(c.text), 0 // one allocation for all values
	for i, end := range c.ends {
		d.Headers[first+i].Value = text[begin:end]
		begin = end
	}
}

func (c *calculation) describe(i, j int) described {
	return described{c.limit(i, j), c.capacity(i, j), &c.request.Outcomes[c.index[j]], c.reset(j)}
}

// limitNamed returns the limit that has one of the names. Of several it is the one with the least remaining, or the first of these.
func (c *calculation) limitNamed(d *Decision, names []string) (best described) {
	for i := range d.Statuses {
		if !c.shows(d, i) {
			continue
		}
		for j := c.resolved[i].first; j < c.resolved[i].end; j++ {
			if c.resolved[i].passes(j) {
				continue
			}
			if !slices.Contains(names, c.limit(i, j).Name) {
				continue
			}
			next := c.describe(i, j)
			if next.outcome.Failed && next.outcome.Allowed {
				continue // on_error let it pass, and nothing is known about it
			}
			if best.limit == nil || next.remaining() < best.remaining() {
				best = next
			}
		}
	}
	return best
}

// remaining is that of the outcome. Nothing is left of what could not be read, or during a penalty.
func (l *described) remaining() uint64 {
	if l.outcome.Failed || l.outcome.Penalty > 0 {
		return 0
	}
	return l.outcome.Remaining(l.capacity)
}

// appendHeader appends a header's value to c.text. It returns false, and appends nothing, if a field has no value.
func (c *calculation) appendHeader(d *Decision, h *descriptor.OwnHeader, of described, when descriptor.HeaderWhen, now time.Time) bool {
	begin := len(c.text)
	for i := range h.Text {
		part := &h.Text[i]
		c.text = append(c.text, part.Text...)
		if part.Field == descriptor.FieldNone {
			continue
		}
		if !c.appendField(d, part.Field, of, when, now) {
			c.text = c.text[:begin]
			return false
		}
	}
	return true
}

// appendField appends the value of a field to c.text. It returns false if the field has none.
func (c *calculation) appendField(d *Decision, f descriptor.HeaderField, of described, when descriptor.HeaderWhen, now time.Time) bool {
	switch f {
	case descriptor.FieldNone:
	case descriptor.FieldLimit:
		c.text = strconv.AppendUint(c.text, of.limit.Requests, 10)
	case descriptor.FieldCapacity:
		c.text = strconv.AppendUint(c.text, of.capacity, 10)
	case descriptor.FieldUsed:
		c.text = strconv.AppendUint(c.text, of.capacity-of.remaining(), 10)
	case descriptor.FieldRemaining:
		c.text = strconv.AppendUint(c.text, of.remaining(), 10)
	case descriptor.FieldReset, descriptor.FieldResetUnix:
		if of.outcome.Failed {
			return false // nobody knows it
		}
		n := int64(ceilSeconds(of.reset) / time.Second)
		if f == descriptor.FieldResetUnix {
			n = unixCeil(now.Add(of.reset))
		}
		c.text = strconv.AppendInt(c.text, n, 10)
	case descriptor.FieldWindow:
		if of.limit.Algorithm == descriptor.Concurrency {
			return false
		}
		c.text = strconv.AppendInt(c.text, int64(ceilSeconds(of.limit.Window.Length())/time.Second), 10)
	case descriptor.FieldName:
		c.text = appendPrintable(c.text, of.limit.Name)
		return of.limit.Name != ""
	case descriptor.FieldRetryAfter:
		wait := c.retryAfter(d)
		if when != descriptor.HeaderRefused || wait <= 0 {
			return false
		}
		c.text = strconv.AppendInt(c.text, int64(ceilSeconds(wait)/time.Second), 10)
	}
	return true
}

// appendPrintable appends a name, or the beginning of a long one. Characters that no header may have become question marks.
func appendPrintable(b []byte, name string) []byte {
	most := len(b) + descriptor.MaxNameInHeader
	for _, r := range name {
		if len(b) == most {
			break
		}
		if r < ' ' || r > '~' {
			r = '?'
		}
		b = append(b, byte(r))
	}
	return b
}

// unixCeil returns a time in whole seconds since 1970, rounded up: a client that comes then does not come too early.
func unixCeil(t time.Time) int64 {
	s := t.Unix()
	if t.Nanosecond() > 0 {
		s++
	}
	return s
}
