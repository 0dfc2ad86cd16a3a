package limiter

import (
	"slices"
	"strconv"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// described is the limit that a header of a rule file describes, and the outcome of its take.
type described struct {
	limit     *descriptor.Limit
	capacity  uint64
	remaining uint64
	outcome   *backend.Outcome
	reset     time.Duration
}

// ownHeaders adds the headers that the domain's rule file defines. best is the descriptor that headers describe, or -1.
func (w *work) ownHeaders(d *Decision, own []descriptor.OwnHeader, best int) {
	when := descriptor.HeaderPassed
	if d.Code == OverLimit && !w.snap.settings.Shadow {
		when = descriptor.HeaderDenied
	}
	var all described
	if best >= 0 {
		all = w.describe(w.subjects[best].deciding)
	}
	first := len(d.Headers)
	w.text.bytes, w.text.ends = w.text.bytes[:0], w.text.ends[:0]
	for i := range own {
		h := &own[i]
		if h.When != descriptor.HeaderAlways && h.When != when {
			continue
		}
		of := all
		if len(h.Of) > 0 {
			of = w.limitNamed(d, h.Of)
		}
		if of.limit != nil && w.appendHeader(d, h, of, when) {
			d.Headers = append(d.Headers, Header{Key: h.Name})
			w.text.ends = append(w.text.ends, len(w.text.bytes))
		}
	}
	text, begin := string(w.text.bytes), 0 // one allocation for all values
	for i, end := range w.text.ends {
		d.Headers[first+i].Value = text[begin:end]
		begin = end
	}
}

func (w *work) describe(j int) described {
	c := &w.charges[j]
	return described{c.limit, c.capacity(), w.remaining(c), w.outcome(c), w.span(j).reset}
}

// limitNamed returns the limit that has one of the names. Of several it is the one with the fewest remaining hits, or
// the first of these.
func (w *work) limitNamed(d *Decision, names []string) (best described) {
	for i := range d.Statuses {
		if !w.shows(d, i) {
			continue
		}
		for j, c := range w.binding(&w.subjects[i]) {
			if !slices.Contains(names, c.limit.Name) {
				continue
			}
			next := w.describe(j)
			if next.outcome.Failed && next.outcome.Allowed {
				continue // on_error let it pass, and nothing is known about it
			}
			if best.limit == nil || next.remaining < best.remaining {
				best = next
			}
		}
	}
	return best
}

// appendHeader appends a header's value to w.text.bytes. It returns false, and appends nothing, if a field has no
// value.
func (w *work) appendHeader(d *Decision, h *descriptor.OwnHeader, of described, when descriptor.HeaderWhen) bool {
	begin := len(w.text.bytes)
	for i := range h.Text {
		part := &h.Text[i]
		w.text.bytes = append(w.text.bytes, part.Text...)
		if part.Field == descriptor.FieldNone {
			continue
		}
		if !w.appendField(d, part.Field, of, when) {
			w.text.bytes = w.text.bytes[:begin]
			return false
		}
	}
	return true
}

// used returns the hits that are used, or their percentage. A limit of 0 is used up.
func (d described) used(f descriptor.HeaderField) uint64 {
	used := d.capacity - d.remaining
	if d.outcome.Kept > 0 { // hits reserved for other classes are not used hits
		used = min(uint64(max(d.outcome.Used, 0)), d.capacity)
	}
	switch {
	case f != descriptor.FieldUsedPercent:
		return used
	case d.capacity == 0:
		return 100
	default:
		return used * 100 / d.capacity // numbers are at most 2^53
	}
}

// appendField appends the value of a field to w.text.bytes. It returns false if the field has none.
func (w *work) appendField(d *Decision, f descriptor.HeaderField, of described, when descriptor.HeaderWhen) bool {
	switch f {
	case descriptor.FieldNone:
	case descriptor.FieldLimit:
		w.text.bytes = strconv.AppendUint(w.text.bytes, of.limit.Requests, 10)
	case descriptor.FieldCapacity:
		w.text.bytes = strconv.AppendUint(w.text.bytes, of.capacity, 10)
	case descriptor.FieldUsed, descriptor.FieldUsedPercent:
		w.text.bytes = strconv.AppendUint(w.text.bytes, of.used(f), 10)
	case descriptor.FieldRemaining:
		w.text.bytes = strconv.AppendUint(w.text.bytes, of.remaining, 10)
	case descriptor.FieldReset, descriptor.FieldResetUnix:
		if of.outcome.Failed {
			return false // unknown
		}
		n := int64(ceilSeconds(of.reset) / time.Second)
		if f == descriptor.FieldResetUnix {
			n = unixCeil(w.now.Add(of.reset))
		}
		w.text.bytes = strconv.AppendInt(w.text.bytes, n, 10)
	case descriptor.FieldWindow:
		if of.limit.Algorithm == descriptor.Concurrency {
			return false
		}
		w.text.bytes = strconv.AppendInt(w.text.bytes, int64(ceilSeconds(of.limit.Window.LengthAt(w.now))/time.Second), 10)
	case descriptor.FieldName:
		w.text.bytes = appendPrintable(w.text.bytes, of.limit.Name)
		return of.limit.Name != ""
	case descriptor.FieldRetryAfter:
		wait := d.retryAfter()
		if when != descriptor.HeaderDenied || wait <= 0 {
			return false
		}
		w.text.bytes = strconv.AppendInt(w.text.bytes, int64(ceilSeconds(wait)/time.Second), 10)
	}
	return true
}
