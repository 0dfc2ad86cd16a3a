package limiter

import (
	"fmt"
	"hash/maphash"
	"io"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// Series counts the hits that were judged under one name: a rule's path, or one that a request's values gave
// (detailed_metric, value_to_metric, overrides).
type Series struct {
	Domain string
	Rule   string // the path below the domain

	Total, Over, Near, Within, Shadow, Cached atomic.Uint64 // hits
}

// metrics are the counters by rule and of decisions. Handles are resolved when a snapshot is made; only names that
// depend on a request's values are looked up while deciding, among at most maxSeries of them.
type metrics struct {
	maxSeries int64
	series    atomic.Int64 // how many names there are
	overflow  *Series      // takes the names that found no room
	seed      maphash.Seed
	shards    [16]seriesShard

	decisions [3]atomic.Uint64 // by Code
	shadowed  atomic.Uint64    // decisions that only the global shadow mode let through
	unknown   atomic.Uint64    // requests whose domain has no rules
	failures  atomic.Uint64    // requests that the backend could not answer
	degraded  [5]atomic.Uint64 // descriptors by descriptor.OnError, answered without the backend
	swallowed atomic.Uint64    // look-ups of a series that ended in overflow
}

type seriesShard struct {
	mu     sync.RWMutex
	byName map[string]*Series
}

func newMetrics(maxSeries int) *metrics {
	m := &metrics{maxSeries: int64(maxSeries), seed: maphash.MakeSeed(), overflow: &Series{Domain: "overflow", Rule: "overflow"}}
	for i := range m.shards {
		m.shards[i].byName = make(map[string]*Series)
	}
	return m
}

// named returns the series of a path "domain.rest", whose domain is domainLen bytes long.
func (m *metrics) named(path []byte, domainLen int) *Series {
	sh := &m.shards[maphash.Bytes(m.seed, path)%uint64(len(m.shards))]
	sh.mu.RLock()
	s := sh.byName[string(path)]
	sh.mu.RUnlock()
	if s != nil {
		return s
	}
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if s = sh.byName[string(path)]; s != nil {
		return s
	}
	if m.series.Add(1) > m.maxSeries {
		m.series.Add(-1)
		m.swallowed.Add(1)
		return m.overflow
	}
	name := string(path)
	s = &Series{Domain: name[:domainLen], Rule: name[min(domainLen+1, len(name)):]}
	sh.byName[name] = s
	return s
}

// ofRule resolves the handle of a rule whose metric does not depend on the request, nil for the others.
func (m *metrics) ofRule(domain string, r *descriptor.Rule) *Series {
	if r.DetailedMetric || r.MetricValues != nil {
		return nil
	}
	return m.named([]byte(r.Path), len(domain))
}

// appendMetricPath appends the name of the metric for a request's entries. rule is nil for an override.
func appendMetricPath(b []byte, domain string, entries []descriptor.Entry, rule *descriptor.Rule) []byte {
	b = append(b, domain...)
	for i, e := range entries {
		value := e.Value
		if rule != nil && !rule.DetailedMetric && (rule.MetricValues == nil || !rule.MetricValues[i] || rule.Shares(i)) {
			value = rule.Levels[i].Value
		}
		b = append(b, '.')
		b = append(b, e.Key...)
		if value != "" {
			b = append(b, '_')
			b = append(b, value...)
		}
	}
	return b
}

// count adds n hits of a take to its series, with the meaning that the reference's statistics have: hits that crossed a
// threshold are split at it.
func (s *Series) count(t *backend.Take, n int64, o *backend.Outcome, shadow bool, nearRatio float32) {
	if n < 0 {
		return // a refund is nobody's request
	}
	hits := uint64(n)
	s.Total.Add(hits)
	limit := int64(t.Limit.Capacity())
	near := int64(float32(limit) * nearRatio)
	if o.Allowed {
		s.Within.Add(hits)
		if o.Used > near {
			s.Near.Add(uint64(o.Used - max(near, min(o.Before, o.Used))))
		}
		return
	}
	if shadow {
		s.Shadow.Add(hits)
	}
	if o.Cached {
		s.Cached.Add(hits)
		s.Over.Add(hits)
		return
	}
	fits := min(max(limit-o.Before, 0), n) // hits that would still have passed, had they come alone
	s.Over.Add(hits - uint64(fits))
	if fits > 0 && limit > near {
		s.Near.Add(uint64(max(0, limit-max(near, o.Before))))
	}
}

// each calls f for every series, in no order.
func (m *metrics) each(f func(*Series)) {
	for i := range m.shards {
		sh := &m.shards[i]
		sh.mu.RLock()
		for _, s := range sh.byName {
			f(s)
		}
		sh.mu.RUnlock()
	}
	if m.swallowed.Load() > 0 {
		f(m.overflow)
	}
}

// Descriptions of the metrics by rule; the labels keep the whole path, however deep.
var (
	byRule = []string{"domain", "rule"}

	totalDesc     = prometheus.NewDesc("ratelimitd_rule_hits_total", "Hits judged under a rule.", byRule, nil)
	overDesc      = prometheus.NewDesc("ratelimitd_rule_over_limit_hits_total", "Hits over the limit of a rule, shadow rules included.", byRule, nil)
	nearDesc      = prometheus.NewDesc("ratelimitd_rule_near_limit_hits_total", "Hits admitted above the near-limit ratio of a rule.", byRule, nil)
	withinDesc    = prometheus.NewDesc("ratelimitd_rule_within_limit_hits_total", "Hits admitted by a rule.", byRule, nil)
	shadowDesc    = prometheus.NewDesc("ratelimitd_rule_shadow_mode_hits_total", "Hits over the limit of a rule that were let through because it is in shadow mode.", byRule, nil)
	cachedDesc    = prometheus.NewDesc("ratelimitd_rule_over_limit_cache_hits_total", "Hits that the over-limit cache refused without asking the backend.", byRule, nil)
	decisionsDesc = prometheus.NewDesc("ratelimitd_decisions_total", "Requests decided.", []string{"code"}, nil)
	shadowedDesc  = prometheus.NewDesc("ratelimitd_global_shadow_mode_total", "Requests over a limit that the global shadow mode let through.", nil, nil)
	unknownDesc   = prometheus.NewDesc("ratelimitd_unknown_domain_requests_total", "Requests for a domain without rules; they pass.", nil, nil)
	failuresDesc  = prometheus.NewDesc("ratelimitd_backend_errors_total", "Requests that the backend could not answer.", nil, nil)
	degradedDesc  = prometheus.NewDesc("ratelimitd_degraded_descriptors_total", "Descriptors that on_error answered because the backend could not.", []string{"on_error"}, nil)
	seriesDesc    = prometheus.NewDesc("ratelimitd_metric_series", "Names that metrics by rule are kept under.", nil, nil)
	swallowedDesc = prometheus.NewDesc("ratelimitd_metric_series_overflow_total", "Judgements counted under the overflow series because there are too many names.", nil, nil)
)

// Describe implements prometheus.Collector.
func (m *metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		totalDesc, overDesc, nearDesc, withinDesc, shadowDesc, cachedDesc,
		decisionsDesc, shadowedDesc, unknownDesc, failuresDesc, degradedDesc, seriesDesc, swallowedDesc,
	} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (m *metrics) Collect(ch chan<- prometheus.Metric) {
	counter := func(d *prometheus.Desc, v uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	}
	m.each(func(s *Series) {
		counter(totalDesc, s.Total.Load(), s.Domain, s.Rule)
		counter(overDesc, s.Over.Load(), s.Domain, s.Rule)
		counter(nearDesc, s.Near.Load(), s.Domain, s.Rule)
		counter(withinDesc, s.Within.Load(), s.Domain, s.Rule)
		counter(shadowDesc, s.Shadow.Load(), s.Domain, s.Rule)
		counter(cachedDesc, s.Cached.Load(), s.Domain, s.Rule)
	})
	counter(decisionsDesc, m.decisions[OK].Load(), OK.String())
	counter(decisionsDesc, m.decisions[OverLimit].Load(), OverLimit.String())
	counter(shadowedDesc, m.shadowed.Load())
	counter(unknownDesc, m.unknown.Load())
	counter(failuresDesc, m.failures.Load())
	for how := descriptor.OnErrorError; how <= descriptor.OnErrorLocal; how++ {
		counter(degradedDesc, m.degraded[how].Load(), descriptor.OnErrorNames[how])
	}
	counter(swallowedDesc, m.swallowed.Load())
	ch <- prometheus.MustNewConstMetric(seriesDesc, prometheus.GaugeValue, float64(m.series.Load()))
}

// WriteStats writes the counters by rule as lines of "name: value", under the names of the reference's statistics.
func (l *Limiter) WriteStats(w io.Writer) {
	var lines []string
	l.metrics.each(func(s *Series) {
		prefix := "ratelimit.service.rate_limit." + s.Domain + "." + s.Rule + "."
		for _, c := range [...]struct {
			name  string
			value *atomic.Uint64
		}{
			{"total_hits", &s.Total},
			{"over_limit", &s.Over},
			{"near_limit", &s.Near},
			{"over_limit_with_local_cache", &s.Cached},
			{"within_limit", &s.Within},
			{"shadow_mode", &s.Shadow},
		} {
			lines = append(lines, fmt.Sprintf("%s%s: %d\n", prefix, c.name, c.value.Load()))
		}
	})
	lines = append(lines,
		fmt.Sprintf("ratelimit.service.global_shadow_mode: %d\n", l.metrics.shadowed.Load()),
		fmt.Sprintf("ratelimit.service.call.should_rate_limit.redis_error: %d\n", l.metrics.failures.Load()))
	slices.Sort(lines)
	for _, line := range lines {
		_, _ = io.WriteString(w, line) // a reader who went away misses the rest
	}
}
