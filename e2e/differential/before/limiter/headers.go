package limiter

import (
	"iter"
	"strconv"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// headers adds the client headers that are set for the domain. Headers never show a shadow rule.
//
// Warnings are sent whatever the families: the rule asks for them.
//
// If a leaky bucket delays the request, the answer always says so, whatever the families: the delay is part of the answer, and
// the protocol has no field for it. With envoy_delay, a header of the request tells Envoy's fault filter to hold it. The client
// is not told then, because it must not wait a second time. In shadow mode nothing is held.
func (c *calculation) headers(d *Decision, now time.Time) {
	if d.Code == OK || c.settings.Shadow {
		if d.Delay = c.delay(d); d.Delay > 0 {
			ms := strconv.FormatInt(Millis(d.Delay), 10)
			if c.domain.EnvoyDelay && !c.settings.Shadow {
				d.Upstream = append(d.Upstream, Header{Key: "x-envoy-fault-delay-request", Value: ms})
			} else {
				d.addHeader(descriptor.DelayHeader, ms)
			}
		}
	}
	if warning, _ := c.warning(d); warning != "" {
		d.addHeader(descriptor.WarningHeader, warning)
	}
	families, own := c.settings.headers(c.domain)
	if families == 0 && len(own) == 0 {
		return
	}
	for i := range d.Statuses {
		if how := d.Statuses[i].Degraded; how != descriptor.OnErrorDefault && !c.resolved[i].shadow() {
			d.addHeader(descriptor.DegradedHeader, descriptor.OnErrorNames[how])
			break
		}
	}
	if families&descriptor.HeadersRetryAfter != 0 && d.Code == OverLimit && !c.settings.Shadow {
		if wait := c.retryAfter(d); wait > 0 {
			d.addHeader("Retry-After", seconds(wait))
		}
	}
	best := c.tightest(d)
	if len(own) > 0 {
		c.ownHeaders(d, own, best, now)
	}
	if best < 0 {
		return
	}
	st := &d.Statuses[best]
	if families&descriptor.HeadersReference != 0 {
		names := &c.settings.HeaderNames
		d.addHeader(names.Limit, strconv.FormatUint(st.Limit.Requests, 10))
		d.addHeader(names.Remaining, strconv.FormatUint(st.Remaining, 10))
		d.addHeader(names.Reset, seconds(st.Reset))
	}
	if families&descriptor.HeadersDraft03 != 0 {
		d.addHeader("X-RateLimit-Limit", c.draft03(d, best))
		d.addHeader("X-RateLimit-Remaining", strconv.FormatUint(st.Remaining, 10))
		d.addHeader("X-RateLimit-Reset", seconds(st.Reset))
	}
	if families&descriptor.HeadersIETF != 0 {
		d.addHeader("RateLimit-Policy", c.policies(d))
		d.addHeader("RateLimit", draftName(c.decidingLimit(best))+";r="+strconv.FormatUint(st.Remaining, 10)+";t="+seconds(st.Reset))
	}
}

func (d *Decision) addHeader(key, value string) {
	if key != "" {
		d.Headers = append(d.Headers, Header{Key: key, Value: value})
	}
}

// shows reports whether the limits of descriptor i may appear in headers.
func (c *calculation) shows(d *Decision, i int) bool {
	return d.Statuses[i].Limited && !c.resolved[i].shadow()
}

// tightest returns the descriptor that headers describe, or -1 if there is none. If descriptors outside quota mode are over
// their limits, it is the last of these. Otherwise it is the descriptor with the least remaining, or the first of several.
func (c *calculation) tightest(d *Decision) int {
	best, enforced := -1, false
	for i := range d.Statuses {
		st := &d.Statuses[i]
		switch {
		case !c.shows(d, i):
		case st.Code == OverLimit && !c.quota(i):
			best, enforced = i, true
		case enforced:
		case best < 0 || st.Remaining < d.Statuses[best].Remaining:
			best = i
		}
	}
	return best
}

// retryAfter returns the time until the refused request would pass, or 0 if it never will. The longest wait of the limits
// that refused it counts.
func (c *calculation) retryAfter(d *Decision) time.Duration {
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

func (c *calculation) delay(d *Decision) time.Duration {
	longest := time.Duration(0)
	for i := range d.Statuses {
		if c.shows(d, i) {
			longest = max(longest, d.Statuses[i].Delay)
		}
	}
	return longest
}

// shown yields all limits that may appear in headers, in the order of the descriptors.
func (c *calculation) shown(d *Decision) iter.Seq[*descriptor.Limit] {
	return func(yield func(*descriptor.Limit) bool) {
		for i := range d.Statuses {
			if !c.shows(d, i) {
				continue
			}
			for j := c.resolved[i].first; j < c.resolved[i].end; j++ {
				if !c.resolved[i].passes(j) && !yield(c.limit(i, j)) {
					return
				}
			}
		}
	}
}

// draft03 returns the limit that headers describe, followed by every limit with its window, as Envoy does.
func (c *calculation) draft03(d *Decision, best int) string {
	b := strconv.AppendUint(nil, d.Statuses[best].Limit.Requests, 10)
	for l := range c.shown(d) {
		b = append(b, ", "...)
		b = strconv.AppendUint(b, l.Requests, 10)
		if l.Algorithm != descriptor.Concurrency {
			b = append(b, ";w="...)
			b = strconv.AppendInt(b, int64(ceilSeconds(l.Window.Length())/time.Second), 10)
		}
		if l.Name != "" {
			b = append(b, ";name="...)
			b = appendQuoted(b, l.Name)
		}
	}
	return string(b)
}

// policies returns all limits as a structured field of the IETF draft.
func (c *calculation) policies(d *Decision) string {
	var b []byte
	for l := range c.shown(d) {
		if len(b) > 0 {
			b = append(b, ", "...)
		}
		b = append(b, draftName(l)...)
		b = append(b, ";q="...)
		b = strconv.AppendUint(b, l.Requests, 10)
		if l.Algorithm == descriptor.Concurrency {
			b = append(b, `;qu="concurrent-requests"`...)
			continue
		}
		b = append(b, ";w="...)
		b = strconv.AppendInt(b, int64(ceilSeconds(l.Window.Length())/time.Second), 10)
	}
	return string(b)
}

// draftName returns the quoted name of a limit, which the draft requires: the limit's own name, or one made from its window.
func draftName(l *descriptor.Limit) string {
	name := l.Name
	if name == "" {
		if name = l.Window.Unit.String(); l.Algorithm == descriptor.Concurrency {
			name = "in-flight"
		} else if l.Window.Multiplier > 1 {
			name = strconv.FormatUint(uint64(l.Window.Multiplier), 10) + "-" + name
		}
	}
	return string(appendQuoted(nil, name))
}

// decidingLimit returns the limit that the status of descriptor i describes.
func (c *calculation) decidingLimit(i int) *descriptor.Limit {
	return c.limit(i, c.resolved[i].deciding)
}

// appendQuoted appends a string in the syntax of structured fields: printable ASCII, with quotes and backslashes escaped.
// Other characters cannot be expressed and become question marks.
// It has the beginning of a name that is too long for a header.
func appendQuoted(b []byte, s string) []byte {
	b = append(b, '"')
	n := 0
	for _, r := range s {
		if n++; n > descriptor.MaxNameInHeader {
			break
		}
		switch {
		case r == '"' || r == '\\':
			b = append(b, '\\', byte(r))
		case r < ' ' || r > '~':
			b = append(b, '?')
		default:
			b = append(b, byte(r))
		}
	}
	return append(b, '"')
}

func seconds(d time.Duration) string {
	return strconv.FormatInt(int64(max(ceilSeconds(d), 0)/time.Second), 10)
}
