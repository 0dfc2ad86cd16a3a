package assigner

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/ratelimitd/ratelimitd/internal/lending/quota"
)

// metrics are what the assigner counts.
type metrics struct {
	a *Assigner

	requests  *prometheus.CounterVec
	allowed   prometheus.Counter
	denied    prometheus.Counter
	assigned  [quota.Tokens + 1]prometheus.Counter
	given     *prometheus.CounterVec
	abandoned prometheus.Counter
	refused   *prometheus.CounterVec
	uncharged prometheus.Counter
	failures  prometheus.Counter
}

var (
	subscriptionsDesc = prometheus.NewDesc("ratelimitd_quota_subscriptions", "Buckets that RLQS clients use, counted once for each client.", nil, nil)
	boundDesc         = prometheus.NewDesc("ratelimitd_quota_bound_ratio",
		"The most that RLQS clients may pass in one window, as a multiple of what ShouldRateLimit passes.", []string{"rule"}, nil)
	bytesDesc   = prometheus.NewDesc("ratelimitd_quota_bytes", "Bytes kept for RLQS clients, approximately.", nil, nil)
	bucketsDesc = prometheus.NewDesc("ratelimitd_quota_buckets", "Different buckets that RLQS clients use.", nil, nil)
)

func newMetrics(a *Assigner) *metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	vec := func(name, help, label string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, []string{label})
	}
	m := &metrics{
		a:         a,
		requests:  vec("ratelimitd_quota_requests_total", "Requests that RLQS clients decided; decision: allowed or denied.", "decision"),
		given:     vec("ratelimitd_quota_assignments_total", "Assignments sent, including renewals; strategy: allow_all, deny_all or token_bucket.", "strategy"),
		abandoned: counter("ratelimitd_quota_abandoned_total", "Unused buckets that RLQS clients were told to forget."),
		refused:   vec("ratelimitd_quota_subscriptions_refused_total", "Subscriptions without room; bound: stream, all (streams), buckets (too many different ones), bytes, id (too long) or displaced (ended for a stream with fewer).", "bound"),
		uncharged: counter("ratelimitd_quota_uncharged_total", "Requests that passed and could not be counted."),
		failures:  counter("ratelimitd_quota_share_failures_total", "Failed renewals of this replica's shares in Redis."),
	}
	m.allowed, m.denied = m.requests.WithLabelValues("allowed"), m.requests.WithLabelValues("denied")
	for k, name := range map[quota.Kind]string{quota.AllowAll: "allow_all", quota.DenyAll: "deny_all", quota.Tokens: "token_bucket"} {
		m.assigned[k] = m.given.WithLabelValues(name)
	}
	for _, bound := range []string{"stream", "all", "buckets", "bytes", "id", "displaced"} {
		m.refused.WithLabelValues(bound)
	}
	return m
}

func (m *metrics) collectors() []prometheus.Collector {
	return []prometheus.Collector{m.requests, m.given, m.abandoned, m.refused, m.uncharged, m.failures}
}

// Describe implements prometheus.Collector.
func (m *metrics) Describe(all chan<- *prometheus.Desc) {
	all <- subscriptionsDesc
	all <- bucketsDesc
	all <- bytesDesc
	all <- boundDesc
	for _, c := range m.collectors() {
		c.Describe(all)
	}
}

// Collect implements prometheus.Collector.
func (m *metrics) Collect(all chan<- prometheus.Metric) {
	m.a.mu.Lock()
	subscriptions, buckets, bytes := m.a.subscriptions, len(m.a.buckets), m.a.bytes
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
	all <- prometheus.MustNewConstMetric(subscriptionsDesc, prometheus.GaugeValue, float64(subscriptions))
	all <- prometheus.MustNewConstMetric(bucketsDesc, prometheus.GaugeValue, float64(buckets))
	all <- prometheus.MustNewConstMetric(bytesDesc, prometheus.GaugeValue, float64(bytes))
	for _, c := range m.collectors() {
		c.Collect(all)
	}
}
