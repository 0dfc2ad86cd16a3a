package limiter

import (
	"math"
	"sync/atomic"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// seriesOf returns the series that a descriptor is counted in: its rule's, or one by a name from the request.
func (w *work) seriesOf(s *subject) *series {
	var found *series
	if s.rule != nil {
		found = w.snap.series[s.rule.Index]
	}
	if found == nil {
		w.scratch = appendMetricPath(w.scratch[:0], w.req.Domain, s.counted, s.rule, false)
		found = w.metrics.named.Find(w.scratch, func(name string) *series {
			made := newSeries(name, len(w.req.Domain))
			if w.metrics.noDots {
				made.dotless = string(appendMetricPath(nil, w.req.Domain, s.counted, s.rule, true))
			}
			return made
		})
	}
	if found == w.metrics.named.Other {
		w.metrics.swallowed.Add(1)
	}
	return found
}

// appendMetricPath appends the metric's name for a request's entries, in envoyproxy/ratelimit's form. rule is nil for a
// request's own limit. Values that share a counter also share a name, which has the pattern: clients can invent values,
// but not patterns. With noDots, the only dots are those between the parts.
func appendMetricPath(b []byte, domain string, entries []descriptor.Entry, rule *descriptor.Rule, noDots bool) []byte {
	part := func(from int) {
		for i := from; noDots && i < len(b); i++ {
			if b[i] == '.' {
				b[i] = '_'
			}
		}
	}
	b = append(b, domain...)
	part(0)
	if len(entries) == 0 { // a request's own limit
		return append(b, '.')
	}
	// envoyproxy/ratelimit keeps the underscore before an empty value only in names that consist of the request's keys and
	// values.
	verbatim := rule != nil && rule.DetailedMetric
	for i := range entries {
		verbatim = verbatim && !rule.Shares(i)
	}
	for i, e := range entries {
		value := e.Value
		if rule != nil && (rule.Shares(i) || !rule.DetailedMetric && !rule.MetricValues.Has(i)) {
			value = rule.Levels[i].PatternFor(e.Key)
		}
		b = append(b, '.')
		from := len(b)
		b = append(b, e.Key...)
		if value != "" || verbatim {
			b = append(b, '_')
			b = append(b, value...)
		}
		part(from)
	}
	return b
}

// count adds n hits of a take to the series. The counters mean the same as envoyproxy/ratelimit's statistics: hits that
// cross a threshold are split at it.
func (s *series) count(t *backend.Take, n int64, o *backend.Outcome, penalised, shadow bool, nearRatio float32) {
	limit := int64(t.Limit.Capacity())
	if !o.Allowed {
		n = deniedHits(n, limit)
	}
	hits := uint64(n)
	add(&s.Total, hits)
	near := int64(float32(limit) * nearRatio)
	if o.Allowed {
		add(&s.Within, hits)
		before := o.Before
		// held back under the STOP flag: envoyproxy/ratelimit counts the hits as the last ones that the counter holds
		if before == o.Used {
			before -= n
		}
		if o.Used > near {
			add(&s.Near, uint64(o.Used-max(near, min(before, o.Used))))
		}
		return
	}
	var fits int64 // hits that would have passed if they had come alone
	switch {
	case o.Cached:
		add(&s.Cached, hits)
	case !penalised: // else none would have passed
		fits = min(max(limit-o.Before-o.Kept, 0), n)
	}
	add(&s.Over, hits-uint64(fits))
	if shadow {
		add(&s.Shadow, hits-uint64(fits))
	}
	if fits > 0 && limit > near {
		add(&s.Near, uint64(max(0, limit-max(near, o.Before))))
	}
}

// deniedHits returns how many hits of a denied take count: at most 2^32 - 1, or one more than the limit if that is
// larger. Without the cap one huge request would outweigh all others.
func deniedHits(n, limit int64) int64 { return min(n, max(limit+1, math.MaxUint32)) }

// mostCounted is the cap of a sum of hits. It is low enough that several such sums and concurrent additions do not
// overflow.
const mostCounted = 1 << 60

// add adds hits to a sum and caps it at mostCounted: a sum that wraps around to 0 would look like a restart.
func add(sum *atomic.Uint64, hits uint64) {
	if sum.Add(hits) > mostCounted {
		sum.Store(mostCounted)
	}
}
