package server

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ratelimitd/ratelimitd/internal/platform/intake"
)

// overBytes is why a stream is rejected for which there is no memory.
const overBytes intake.Refusal = "bytes"

// quotaMetrics are the metrics of the rate limit quota service.
type quotaMetrics struct {
	reports, usages, skipped, actions prometheus.Counter
	refused                           map[intake.Refusal]prometheus.Counter
}

func newQuotaMetrics(registry prometheus.Registerer, open *intake.Streams) (*quotaMetrics, error) {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	m := &quotaMetrics{
		reports: counter("ratelimitd_quota_reports_total", "Reports from RLQS clients."),
		usages:  counter("ratelimitd_quota_usages_total", "Usages in these reports, one for each bucket."),
		skipped: counter("ratelimitd_quota_usages_skipped_total", "Usages skipped, because the bucket's ID is too long."),
		actions: counter("ratelimitd_quota_actions_total", "Assignments and abandoned buckets sent to RLQS clients."),
		refused: make(map[intake.Refusal]prometheus.Counter),
	}
	err := registerStreams(registry, open, m.refused, "ratelimitd_quota_streams", "Open RLQS streams.",
		"RLQS streams rejected, because too many were open; reason: all (of the replica), peer (of one address), connection or bytes.", overBytes)
	if registry == nil || err != nil {
		return m, err
	}
	for _, c := range []prometheus.Collector{m.reports, m.usages, m.skipped, m.actions} {
		if err := registry.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// registerStreams fills in the counters of rejected streams, and registers them with the gauge of open ones. more
// lists the caller's reasons to reject a stream, in addition to the reasons of package intake.
func registerStreams(registry prometheus.Registerer, open *intake.Streams, refused map[intake.Refusal]prometheus.Counter, name, help, refusedHelp string, more ...intake.Refusal) error {
	reasons := append([]intake.Refusal{intake.OverAll, intake.OverPeer, intake.OverConnection}, more...)
	counters := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: name + "_refused_total",
		Help: refusedHelp,
	}, []string{"reason"})
	for _, why := range reasons {
		refused[why] = counters.WithLabelValues(string(why))
	}
	if registry == nil {
		return nil
	}
	gauge := prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, func() float64 { return float64(open.Open()) })
	return errors.Join(registry.Register(gauge), registry.Register(counters))
}
