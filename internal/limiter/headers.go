package limiter

import (
	"iter"
	"math"
	"strconv"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// addHeaders adds the client headers that are set for the domain. Headers never show a shadow rule.
//
// Warnings are sent with every family: the rule asks for them.
//
// If a leaky bucket delays the request, the answer always has a header about it, with every family: the delay is part
// of the answer, and the protocol has no field for it. With envoy_delay, a header of the request tells Envoy's fault
// filter to hold it. The client then gets no such header, because it must not wait a second time. In shadow mode
// nothing is held.
func (w *work) addHeaders(d *Decision) {
	if d.Delay > 0 {
		ms := strconv.FormatInt(Millis(d.Delay), 10)
		if w.domain.EnvoyDelay && !w.snap.settings.Shadow {
			d.Upstream = append(d.Upstream, Header{Key: "x-envoy-fault-delay-request", Value: ms})
		} else {
			d.addHeader(descriptor.DelayHeader, ms)
		}
	}
	if warning, _ := w.warning(d); warning != "" {
		d.addHeader(descriptor.WarningHeader, warning)
	}
	if families, own := w.snap.settings.headers(w.domain); families != 0 || len(own) > 0 {
		w.addDegraded(d)
		if families&descriptor.HeadersRetryAfter != 0 && d.Code == OverLimit && !w.snap.settings.Shadow {
			if wait := d.retryAfter(); wait > 0 {
				d.addHeader("Retry-After", seconds(wait))
			}
		}
		best := w.tightest(d)
		if len(own) > 0 {
			w.ownHeaders(d, own, best)
		}
		if best >= 0 {
			w.addFamilies(d, families, best)
		}
	}
}

// addDegraded adds the header that tells that on_error has answered.
func (w *work) addDegraded(d *Decision) {
	for i := range d.Statuses {
		if how := d.Statuses[i].Degraded; how != descriptor.OnErrorDefault && !w.subjects[i].shadow() {
			d.addHeader(descriptor.DegradedHeader, descriptor.OnErrorNames[how])
			return
		}
	}
}

// addFamilies adds the headers of families that describe a descriptor.
func (w *work) addFamilies(d *Decision, families descriptor.HeaderFamilies, best int) {
	st := &d.Statuses[best]
	// envoyproxy/ratelimit sends no headers if nothing of its largest limit is used, which only a peek shows.
	if families&descriptor.HeadersReference != 0 && st.Remaining != math.MaxUint32 {
		names := &w.snap.settings.HeaderNames
		quota, _ := w.decidingLimit(best).Quota(w.now)
		d.addHeader(names.Limit, strconv.FormatUint(quota, 10))
		d.addHeader(names.Remaining, strconv.FormatUint(st.Remaining, 10))
		d.addHeader(names.Reset, seconds(st.Reset))
	}
	if families&descriptor.HeadersDraft03 != 0 {
		d.addHeader("X-RateLimit-Limit", w.draft03(d, best))
		d.addHeader("X-RateLimit-Remaining", strconv.FormatUint(st.Remaining, 10))
		d.addHeader("X-RateLimit-Reset", seconds(st.Reset))
	}
	if families&descriptor.HeadersIETF != 0 {
		policies, name := w.policies(d, w.subjects[best].deciding)
		d.addHeader("RateLimit-Policy", policies)
		d.addHeader("RateLimit", name+";r="+string(appendInteger(nil, st.Remaining))+";t="+
			seconds(w.span(w.subjects[best].deciding).more))
	}
}

func (d *Decision) addHeader(key, value string) {
	if key != "" {
		d.Headers = append(d.Headers, Header{Key: key, Value: value})
	}
}

// tightest returns the descriptor that headers describe, or -1 if no descriptor is limited. If descriptors outside
// quota mode are over their limits, it is the last of these. Otherwise it is the descriptor with the least remaining,
// or the first of several.
func (w *work) tightest(d *Decision) int {
	best, enforced := -1, false
	for i := range d.Statuses {
		st := &d.Statuses[i]
		switch {
		case !w.shows(d, i):
		case st.Code == OverLimit && !w.quota(&w.subjects[i]):
			best, enforced = i, true
		case enforced:
		case best < 0 || st.Remaining < d.Statuses[best].Remaining:
			best = i
		}
	}
	return best
}

// retryAfter returns the time until the denied request would pass, or 0 if it never will. The longest wait of the
// limits that denied it counts.
func (d *Decision) retryAfter() time.Duration {
	longest := time.Duration(0)
	for i := range d.Statuses {
		st := &d.Statuses[i]
		if st.Code != OverLimit {
			continue
		}
		if st.RetryAfter < 0 {
			return 0
		}
		longest = max(longest, st.RetryAfter)
	}
	return longest
}

// shown yields the charges of all limits that may appear in headers, with their descriptors, in the order of the
// descriptors.
func (w *work) shown(d *Decision) iter.Seq2[*subject, int] {
	return func(yield func(*subject, int) bool) {
		for i := range d.Statuses {
			if !w.shows(d, i) {
				continue
			}
			s := &w.subjects[i]
			for j := range w.binding(s) {
				if !yield(s, j) {
					return
				}
			}
		}
	}
}

// draft03 returns the limit that headers describe, followed by every limit with its window, as Envoy does.
func (w *work) draft03(d *Decision, best int) string {
	quota, _ := w.decidingLimit(best).Quota(w.now)
	b := strconv.AppendUint(nil, quota, 10)
	for _, j := range w.shown(d) {
		l := w.charges[j].limit
		quota, window := l.Quota(w.now)
		b = append(b, ", "...)
		b = strconv.AppendUint(b, quota, 10)
		if window > 0 {
			b = append(b, ";w="...)
			b = strconv.AppendInt(b, window, 10)
		}
		if l.Name != "" {
			b = append(b, ";name="...)
			b = appendQuoted(b, l.Name, 0)
		}
	}
	return string(b)
}

// policies returns all limits as a structured field of the IETF draft, and the name in it of the limit of charge
// deciding. No two names are equal, because clients could not tell then which limit the field RateLimit describes.
func (w *work) policies(d *Decision, deciding int) (field, name string) {
	var b []byte
	var used draftNames
	for s, j := range w.shown(d) {
		if len(b) > 0 {
			b = append(b, ", "...)
		}
		l := w.charges[j].limit
		own := used.next(l)
		if j == deciding {
			name = own
		}
		quota, window := l.Quota(w.now)
		b = append(b, own...)
		b = append(b, ";q="...)
		b = appendInteger(b, quota)
		if l.Algorithm == descriptor.Concurrency {
			b = append(b, `;qu="concurrent-requests"`...)
			continue
		}
		b = append(b, ";w="...)
		b = strconv.AppendInt(b, window, 10)
		if s.weighs() {
			b = append(b, `;qu="hits"`...)
		}
	}
	return string(b), name
}

// weighs reports whether the hits of a descriptor are not requests: clients would take them for requests.
func (s *subject) weighs() bool {
	return s.hits < 0 || s.hits > 1 || s.rule != nil && (s.rule.HitCost() != nil || len(s.rule.Cost()) > 0)
}

// decidingLimit returns the limit that the status of descriptor i describes.
func (w *work) decidingLimit(i int) *descriptor.Limit {
	return w.charges[w.subjects[i].deciding].limit
}
