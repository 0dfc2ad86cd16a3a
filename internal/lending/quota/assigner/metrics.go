package assigner

import (
	"github.com/prometheus/client_golang/prometheus"
)

// metrics are the metrics of the assigner.
type metrics struct {
	a *Assigner

	requests  *prometheus.CounterVec
	allowed   prometheus.Counter
	denied    prometheus.Counter
	rejected  *prometheus.CounterVec
	uncharged prometheus.Counter
	failures  prometheus.Counter
}

var boundDesc = prometheus.NewDesc("ratelimitd_quota_bound_ratio",
	"The most that RLQS clients may pass in a window, as a multiple of what ShouldRateLimit passes.", []string{"rule"},
	nil)

func newMetrics(a *Assigner) *metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	vec := func(name, help, label string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, []string{label})
	}
	m := &metrics{
		a: a,
		requests: vec("ratelimitd_quota_requests_total", "Requests that RLQS clients decided.",
			"decision"),
		rejected: vec("ratelimitd_quota_subscriptions_rejected_total",
			"Subscriptions to quota buckets without room.", "bound"),
		uncharged: counter("ratelimitd_quota_uncharged_total", "Requests that passed and could not be counted."),
		failures:  counter("ratelimitd_quota_share_failures_total", "Failed renewals of this replica's shares in Redis."),
	}
	m.allowed, m.denied = m.requests.WithLabelValues("allowed"), m.requests.WithLabelValues("denied")
	for _, bound := range []string{"stream", "all", "buckets", "bytes", "id", "displaced"} {
		m.rejected.WithLabelValues(bound)
	}
	return m
}

func (m *metrics) collectors() []prometheus.Collector {
	return []prometheus.Collector{m.requests, m.rejected, m.uncharged, m.failures}
}

// Describe implements prometheus.Collector.
func (m *metrics) Describe(all chan<- *prometheus.Desc) {
	all <- boundDesc
	for _, c := range m.collectors() {
		c.Describe(all)
	}
}

// Collect implements prometheus.Collector.
func (m *metrics) Collect(all chan<- prometheus.Metric) {
	m.a.mu.Lock()
	bounds := make(map[string]float64)
	for _, p := range m.a.pools {
		for _, t := range p.terms {
			if p.rated && t.rule != nil {
				bounds[t.rule.Path] = max(bounds[t.rule.Path], t.means.bound)
			}
		}
	}
	m.a.mu.Unlock()
	for rule, bound := range bounds {
		all <- prometheus.MustNewConstMetric(boundDesc, prometheus.GaugeValue, bound, rule)
	}
	for _, c := range m.collectors() {
		c.Collect(all)
	}
}
