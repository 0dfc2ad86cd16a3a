package memory

import (
	"sync/atomic"

	"github.com/ratelimitd/ratelimitd/internal/platform/metric"
)

// mostDomains is the maximum number of domains with a separate metric.
const mostDomains = 100

// metrics are the metrics of a store.
type metrics struct {
	taken *metric.Names[domainTakes]
}

// domainTakes are the takes of a domain that shared counters have answered.
type domainTakes struct {
	domain string
	atomic.Uint64
}

func newMetrics() metrics {
	const others = "overflow"
	return metrics{taken: metric.NewNames(mostDomains, others, &domainTakes{domain: others})}
}

func (s *Store) families() []metric.Family {
	m := &s.metrics
	return []metric.Family{
		{
			Name: "ratelimitd_memory_shared_takes_total", Help: "Attempts answered by a shared counter, because memory is full.",
			Labels: []string{"domain"}, Counts: m.emitTaken,
		},
		metric.Gauge("ratelimitd_memory_counters", "Counters and reservations in memory.", s.live.Load),
		metric.Gauge("ratelimitd_memory_counters_max", "Most counters and reservations in memory.",
			func() int { return s.opts.MaxCounters }),
	}
}

func (m *metrics) emitTaken(emit metric.Emit) {
	for _, d := range m.taken.All() {
		if n := d.Load(); n > 0 || d != m.taken.Other || m.taken.Count() == mostDomains {
			emit(float64(n), d.domain)
		}
	}
}

// ofDomain returns the metrics of a domain's takes.
func (m *metrics) ofDomain(name string) *domainTakes {
	if d := m.taken.Add(name, 1, func(name string) *domainTakes { return &domainTakes{domain: name} }); d != nil {
		return d
	}
	return m.taken.Other
}
