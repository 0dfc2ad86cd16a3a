package memory

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

// mostDomains is the maximum number of domains with a metric of their own.
const mostDomains = 100

// metrics are the metrics of a store.
type metrics struct {
	refused prometheus.Counter
	dropped prometheus.Counter
	taken   *prometheus.CounterVec
	domains atomic.Int64 // number of domains with a metric of their own
}

func (m *metrics) register(s *Store) {
	m.refused = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "ratelimitd_memory_refused_counters_total",
		Help: "Takes that failed because the memory backend had neither a counter nor a shared counter for them.",
	})
	m.dropped = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "ratelimitd_memory_dropped_refunds_total",
		Help: "Refunds and resets that were dropped because their hits are in a shared counter.",
	})
	m.taken = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "ratelimitd_memory_shared_takes_total",
		Help: "Takes answered by a counter that several callers share, because there was no room for one of their own.",
	}, []string{"domain"})
	if s.opts.Metrics == nil {
		return
	}
	s.opts.Metrics.MustRegister(m.refused, m.dropped, m.taken, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "ratelimitd_memory_counters",
		Help: "Counters and reservations that the memory backend holds.",
	}, func() float64 { return float64(s.live.Load()) }), prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "ratelimitd_memory_counters_max",
		Help: "Counters and reservations that the memory backend may hold.",
	}, func() float64 { return float64(s.opts.MaxCounters) }))
}

// domain returns the metric for the takes of a domain that shared counters answer.
func (m *metrics) domain(name string) prometheus.Counter {
	if m.domains.Add(1) > mostDomains {
		name = "overflow"
	}
	return m.taken.WithLabelValues(name)
}
