package lease

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

// counts has the totals of what has happened. Every leased permit is used, returned or expired in the end. Until then it is
// held, or set aside for a take that is on its way.
type counts struct {
	leased, used, returned, expired atomic.Int64

	local                    atomic.Int64 // takes that were answered without the backend
	granted, refused, failed atomic.Int64 // acquisitions
}

func (l *Leases) register(metrics prometheus.Registerer) {
	counter := func(name, help string, labels prometheus.Labels, n *atomic.Int64) {
		metrics.MustRegister(prometheus.NewCounterFunc(
			prometheus.CounterOpts{Name: name, Help: help, ConstLabels: labels},
			func() float64 { return float64(n.Load()) }))
	}
	gauge := func(name, help string, f func() int64) {
		metrics.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, func() float64 { return float64(f()) }))
	}
	gauge("ratelimitd_lease_counters", "Counters of which this process holds leased permits.", l.held.Load)
	gauge("ratelimitd_lease_permits_held", "Permits that were taken from the backend and not used yet.", l.permits)

	const permits = "Leased permits, by state: leased (all), used, returned or expired."
	counter("ratelimitd_lease_permits_total", permits, prometheus.Labels{"state": "leased"}, &l.counts.leased)
	counter("ratelimitd_lease_permits_total", permits, prometheus.Labels{"state": "used"}, &l.counts.used)
	counter("ratelimitd_lease_permits_total", permits, prometheus.Labels{"state": "returned"}, &l.counts.returned)
	counter("ratelimitd_lease_permits_total", permits, prometheus.Labels{"state": "expired"}, &l.counts.expired)

	const acquired = "Attempts to take a lease from the backend, by result: granted, refused or failed."
	counter("ratelimitd_lease_acquisitions_total", acquired, prometheus.Labels{"result": "granted"}, &l.counts.granted)
	counter("ratelimitd_lease_acquisitions_total", acquired, prometheus.Labels{"result": "refused"}, &l.counts.refused)
	counter("ratelimitd_lease_acquisitions_total", acquired, prometheus.Labels{"result": "failed"}, &l.counts.failed)

	counter("ratelimitd_lease_local_takes_total", "Takes that were answered from a lease, without a trip to the backend.", nil, &l.counts.local)
}
