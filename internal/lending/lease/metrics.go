package lease

import (
	"sync/atomic"

	"github.com/ratelimitd/ratelimitd/internal/platform/metric"
)

// counts are totals since the start. Every leased permit finally counts as used, returned or expired. Until then it is
// in the pool, or set aside for a pending take.
type counts struct {
	leased, used, returned, expired atomic.Int64

	local                   atomic.Int64 // takes answered without the backend
	granted, denied, failed atomic.Int64 // acquisitions
}

func (l *Leases) families() []metric.Family {
	c := &l.counts
	return []metric.Family{
		{
			Name: "ratelimitd_lease_permits_total", Help: "Leased permits, by state.",
			Labels: []string{"state"},
			Counts: func(emit metric.Emit) {
				emit(float64(c.leased.Load()), "leased")
				emit(float64(c.used.Load()), "used")
				emit(float64(c.returned.Load()), "returned")
				emit(float64(c.expired.Load()), "expired")
			},
		},
		{
			Name: "ratelimitd_lease_acquisitions_total", Help: "Requests for a lease, by result.",
			Labels: []string{"result"},
			Counts: func(emit metric.Emit) {
				emit(float64(c.granted.Load()), "granted")
				emit(float64(c.denied.Load()), "denied")
				emit(float64(c.failed.Load()), "failed")
			},
		},
		metric.Counter("ratelimitd_lease_local_takes_total", "Attempts answered from a lease.",
			c.local.Load),
	}
}
