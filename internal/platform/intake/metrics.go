package intake

import "github.com/prometheus/client_golang/prometheus"

// Metrics are the metrics of all listeners and calls of a process.
type Metrics struct {
	open          *prometheus.GaugeVec
	closed        *prometheus.CounterVec
	callsRejected *prometheus.CounterVec
}

// NewMetrics returns metrics, registered unless the registry is nil.
func NewMetrics(registry prometheus.Registerer) (*Metrics, error) {
	m := &Metrics{
		open: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "ratelimitd_connections",
			Help: "Open connections.",
		}, []string{"listener"}),
		closed: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "ratelimitd_connections_closed_total",
			Help: "Connections closed for exceeding a bound.",
		}, []string{"listener", "reason"}),
		callsRejected: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "ratelimitd_calls_rejected_total",
			Help: "Calls rejected, because too many were in flight.",
		}, []string{"bound"}),
	}
	if registry == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{m.open, m.closed, m.callsRejected} {
		if err := registry.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// RegisterGauge registers a gauge of the calls in flight.
func RegisterGauge(registry prometheus.Registerer, calls *Calls) error {
	if registry == nil {
		return nil
	}
	return registry.Register(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "ratelimitd_calls_in_flight",
		Help: "Calls in flight, over gRPC and HTTP.",
	}, func() float64 { return float64(calls.InFlight()) }))
}

var heldDesc = prometheus.NewDesc("ratelimitd_client_bytes",
	"Bytes kept for clients, approximately, by class.",
	[]string{"class"}, nil)

// Describe implements prometheus.Collector.
func (b *Budget) Describe(all chan<- *prometheus.Desc) { all <- heldDesc }

// Collect implements prometheus.Collector.
func (b *Budget) Collect(all chan<- prometheus.Metric) {
	for _, c := range b.Classes() {
		all <- prometheus.MustNewConstMetric(heldDesc, prometheus.GaugeValue, float64(c.Held()), c.Name)
	}
}

// listenerMetrics are the metrics of one listener.
type listenerMetrics struct {
	open   prometheus.Gauge
	closed [len(reasons)]prometheus.Counter
}

func (m *Metrics) of(listener string) listenerMetrics {
	l := listenerMetrics{open: m.open.WithLabelValues(listener)}
	for why, name := range reasons {
		if name != "" {
			l.closed[why] = m.closed.WithLabelValues(listener, name)
		}
	}
	return l
}
