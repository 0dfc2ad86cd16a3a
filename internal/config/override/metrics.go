package override

import (
	"sync/atomic"

	"github.com/ratelimitd/ratelimitd/internal/platform/metric"
)

// Metrics are the metrics of a source.
type Metrics struct {
	set         atomic.Pointer[Set]
	up          atomic.Bool
	regressions atomic.Uint64
}

// NewMetrics returns the metrics of a source, and registers them unless registry is nil.
func NewMetrics(registry metric.Registry) *Metrics {
	m := new(Metrics)
	metric.Register(registry,
		metric.Counter("ratelimitd_overrides_version_regressions_total",
			"Times that Redis held older overrides than this replica.", m.regressions.Load),
		metric.Gauge("ratelimitd_overrides", "Overrides in this replica, including expired and future ones.",
			func() int { return m.set.Load().Len() }),
		metric.Gauge("ratelimitd_overrides_version", "Version of these overrides.", func() float64 {
			if s := m.set.Load(); s != nil {
				return float64(s.Version)
			}
			return 0
		}),
		metric.Gauge("ratelimitd_overrides_source_up", "1 while overrides can be read.",
			func() float64 { return metric.Bool(m.up.Load()) }))
	return m
}

// Hold sets the active overrides.
func (m *Metrics) Hold(s *Set) { m.set.Store(s) }

// SetUp sets whether the source can be read. It returns whether that is a change.
func (m *Metrics) SetUp(up bool) (changed bool) { return m.up.Swap(up) != up }

// Up reports whether the source can be read.
func (m *Metrics) Up() bool { return m.up.Load() }

// Regressed counts that the source had older overrides than the active ones.
func (m *Metrics) Regressed() { m.regressions.Add(1) }
