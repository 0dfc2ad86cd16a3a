package intake

import "github.com/prometheus/client_golang/prometheus"

// Metrics are the metrics of all listeners and calls of a process.
type Metrics struct {
	open         *prometheus.GaugeVec
	refused      *prometheus.CounterVec
	closed       *prometheus.CounterVec
	callsRefused *prometheus.CounterVec
}

// NewMetrics returns metrics, registered unless the registry is nil.
func NewMetrics(registry prometheus.Registerer) (*Metrics, error) {
	m := &Metrics{
		open: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "ratelimitd_connections",
			Help: "Open connections; listener: grpc or http.",
		}, []string{"listener"}),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "ratelimitd_connections_refused_total",
			Help: "Connections closed at once, because there were too many.",
		}, []string{"listener"}),
		closed: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "ratelimitd_connections_closed_total",
			Help: "Connections closed for exceeding a bound.",
		}, []string{"listener", "reason"}),
		callsRefused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "ratelimitd_calls_refused_total",
			Help: "Calls rejected, because too many were in flight; bound: all, peer or connection.",
		}, []string{"bound"}),
	}
	if registry == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{m.open, m.refused, m.closed, m.callsRefused} {
		if err := registry.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// RegisterGauges registers gauges of the calls in flight and of the bytes that are held for clients. more are the bytes that are kept for
// them elsewhere.
func RegisterGauges(registry prometheus.Registerer, calls *Calls, held, more func() int64) error {
	if registry == nil {
		return nil
	}
	gauges := []prometheus.Collector{
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "ratelimitd_calls_in_flight",
			Help: "Calls in flight, over gRPC and HTTP.",
		}, func() float64 { return float64(calls.InFlight()) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "ratelimitd_unfinished_message_bytes",
			Help: "Bytes of unfinished messages and of headers over HTTP/1 and, on the built-in HTTP/2 server, of headers and unread answers.",
		}, func() float64 { return float64(held()) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "ratelimitd_client_bytes",
			Help: "Bytes kept for clients: ratelimitd_unfinished_message_bytes and ratelimitd_quota_bytes.",
		}, func() float64 { return float64(held() + more()) }),
	}
	for _, g := range gauges {
		if err := registry.Register(g); err != nil {
			return err
		}
	}
	return nil
}

// listenerMetrics are the metrics of one listener.
type listenerMetrics struct {
	open    prometheus.Gauge
	refused prometheus.Counter
	closed  [len(reasons)]prometheus.Counter
}

func (m *Metrics) of(listener string) listenerMetrics {
	l := listenerMetrics{open: m.open.WithLabelValues(listener), refused: m.refused.WithLabelValues(listener)}
	for why, name := range reasons {
		if name != "" {
			l.closed[why] = m.closed.WithLabelValues(listener, name)
		}
	}
	return l
}
