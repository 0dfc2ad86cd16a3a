package xds

import (
	"fmt"
	"io"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are the metrics of a client, except those of its resources.
type metrics struct {
	connected atomic.Bool
	streams   atomic.Uint64
	accepted  atomic.Uint64
	refused   atomic.Uint64
}

var (
	connectedDesc = prometheus.NewDesc("ratelimitd_xds_connected", "Whether a stream to the xDS server is open: 1 or 0. Rules stay in force without one.", nil, nil)
	streamsDesc   = prometheus.NewDesc("ratelimitd_xds_streams_total", "Streams opened to the xDS server.", nil, nil)
	responsesDesc = prometheus.NewDesc("ratelimitd_xds_responses_total", "Sets of rules from the xDS server: accepted (ACK) or refused (NACK), including repeated ones.", []string{"result"}, nil)
)

// Describe implements prometheus.Collector.
func (m *metrics) Describe(ch chan<- *prometheus.Desc) {
	ch <- connectedDesc
	ch <- streamsDesc
	ch <- responsesDesc
}

// Collect implements prometheus.Collector.
func (m *metrics) Collect(ch chan<- prometheus.Metric) {
	ch <- prometheus.MustNewConstMetric(connectedDesc, prometheus.GaugeValue, float64(m.open()))
	ch <- prometheus.MustNewConstMetric(streamsDesc, prometheus.CounterValue, float64(m.streams.Load()))
	ch <- prometheus.MustNewConstMetric(responsesDesc, prometheus.CounterValue, float64(m.accepted.Load()), "accepted")
	ch <- prometheus.MustNewConstMetric(responsesDesc, prometheus.CounterValue, float64(m.refused.Load()), "refused")
}

func (m *metrics) open() int {
	if m.connected.Load() {
		return 1
	}
	return 0
}

func (m *metrics) writeStats(w io.Writer) {
	fmt.Fprintf(w, "xds.connected: %d\n", m.open())
	fmt.Fprintf(w, "xds.responses_accepted: %d\n", m.accepted.Load())
	fmt.Fprintf(w, "xds.responses_refused: %d\n", m.refused.Load())
	fmt.Fprintf(w, "xds.streams: %d\n", m.streams.Load())
}
