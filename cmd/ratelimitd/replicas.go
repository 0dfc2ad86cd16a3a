package main

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

// replicas is the number of replicas that share the limits, and its source.
type replicas struct {
	set     int          // RATELIMITD_REPLICAS; 0: unset
	counted atomic.Int64 // in Redis; 0: not yet
}

var replicasDesc = prometheus.NewDesc("ratelimitd_replicas",
	"Replicas that share the limits; source: set (RATELIMITD_REPLICAS), counted (in Redis) or assumed (1, not known yet).",
	[]string{"source"}, nil)

// Describe implements prometheus.Collector.
func (r *replicas) Describe(all chan<- *prometheus.Desc) { all <- replicasDesc }

// Collect implements prometheus.Collector.
func (r *replicas) Collect(all chan<- prometheus.Metric) {
	n, source := r.set, "set"
	if n == 0 {
		n, source = int(r.counted.Load()), "counted"
	}
	if n == 0 {
		n, source = 1, "assumed"
	}
	all <- prometheus.MustNewConstMetric(replicasDesc, prometheus.GaugeValue, float64(n), source)
}

// replicasChanged uses another number of replicas, unless it is set.
func (s *service) replicasChanged(n int) {
	if s.replicas.set > 0 {
		return
	}
	s.log.Info("replicas that share this Redis", "replicas", n)
	s.replicas.counted.Store(int64(n))
	s.leases.SetReplicas(n)
	s.limiter.SetReplicas(n)
}
