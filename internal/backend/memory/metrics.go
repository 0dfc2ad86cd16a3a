package memory

import (
	"sync"
	"sync/atomic"

	"github.com/ratelimitd/ratelimitd/internal/metric"
)

// mostDomains is the maximum number of domains with a metric of their own.
const mostDomains = 100

// metrics are the metrics of a store.
type metrics struct {
	refused, dropped atomic.Uint64

	mu    sync.Mutex
	taken map[string]*atomic.Uint64 // by domain; overflow is for all domains without a metric of their own
}

func (s *Store) families() []metric.Family {
	m := &s.metrics
	return []metric.Family{
		metric.Counter("ratelimitd_memory_refused_counters_total", "Takes that failed because the memory backend had neither a counter nor a shared counter for them.", m.refused.Load),
		metric.Counter("ratelimitd_memory_dropped_refunds_total", "Refunds and resets that were dropped because their hits are in a shared counter.", m.dropped.Load),
		{
			Name: "ratelimitd_memory_shared_takes_total", Help: "Takes answered by a counter that several callers share, because there was no room for one of their own.",
			Labels: []string{"domain"}, Counts: m.emitTaken,
		},
		metric.Gauge("ratelimitd_memory_counters", "Counters and reservations that the memory backend holds.", s.live.Load),
		metric.Gauge("ratelimitd_memory_counters_max", "Counters and reservations that the memory backend may hold.", func() int { return s.opts.MaxCounters }),
	}
}

func (m *metrics) emitTaken(emit metric.Emit) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for domain, n := range m.taken {
		emit(float64(n.Load()), domain)
	}
}

// domain returns what counts the takes of a domain that shared counters answer. It is called once for each domain.
func (m *metrics) domain(name string) *atomic.Uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.taken) >= mostDomains {
		name = "overflow"
	}
	n := m.taken[name]
	if n == nil {
		n = new(atomic.Uint64)
		m.taken[name] = n
	}
	return n
}
