package override

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics are the metrics of a source.
type Metrics struct {
	set         atomic.Pointer[Set]
	up          atomic.Bool
	regressions prometheus.Counter
}

// NewMetrics returns the metrics of a source, and registers them unless registry is nil.
func NewMetrics(registry prometheus.Registerer) *Metrics {
	m := &Metrics{regressions: prometheus.NewCounter(prometheus.CounterOpts{
		Name: "ratelimitd_overrides_version_regressions_total",
		Help: "How often Redis had overrides that are older than those in force.",
	})}
	if registry == nil {
		return m
	}
	registry.MustRegister(m.regressions,
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "ratelimitd_overrides",
			Help: "Overrides that this process holds, also those that have expired or have not begun.",
		}, func() float64 { return float64(m.set.Load().Len()) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "ratelimitd_overrides_version",
			Help: "Version of these overrides.",
		}, func() float64 {
			if s := m.set.Load(); s != nil {
				return float64(s.Version)
			}
			return 0
		}),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "ratelimitd_overrides_source_up",
			Help: "1 while the source of overrides can be read; 0: the last ones that were read stay in force.",
		}, func() float64 {
			if m.up.Load() {
				return 1
			}
			return 0
		}))
	return m
}

// Hold says which overrides are in force.
func (m *Metrics) Hold(s *Set) { m.set.Store(s) }

// SetUp says whether the source can be read. It returns whether that is news.
func (m *Metrics) SetUp(up bool) (changed bool) { return m.up.Swap(up) != up }

// Up reports whether the source can be read.
func (m *Metrics) Up() bool { return m.up.Load() }

// Regressed counts that the source had older overrides than those in force.
func (m *Metrics) Regressed() { m.regressions.Inc() }
