package xds

import (
	"fmt"
	"io"
	"sync/atomic"

	"github.com/ratelimitd/ratelimitd/internal/platform/metric"
)

// metrics are the metrics of a client, except the metrics of its resources.
type metrics struct {
	connected atomic.Bool
	streams   atomic.Uint64
	accepted  atomic.Uint64
	rejected  atomic.Uint64
}

func (m *metrics) families() []metric.Family {
	return []metric.Family{
		metric.Gauge("ratelimitd_xds_connected", "1 while a stream to the xDS server is open.", m.open),
	}
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
	fmt.Fprintf(w, "xds.responses_rejected: %d\n", m.rejected.Load())
	fmt.Fprintf(w, "xds.streams: %d\n", m.streams.Load())
}
