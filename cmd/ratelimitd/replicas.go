package main

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ratelimitd/ratelimitd/internal/backend/lease"
	"github.com/ratelimitd/ratelimitd/internal/backend/redis"
)

// replicas is the number of processes that share the limits, and its source.
type replicas struct {
	set     int          // RATELIMITD_REPLICAS; 0: unset
	counted atomic.Int64 // in Redis; 0: not yet
}

var replicasDesc = prometheus.NewDesc("ratelimitd_replicas",
	"Processes that share the limits. The source is RATELIMITD_REPLICAS (set), a count in Redis (counted), or 1 until one of these is known (assumed).",
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

// countReplicas counts the processes that share a Redis, unless their number is set.
func (s *service) countReplicas(store *redis.Store, leases *lease.Leases, registry prometheus.Registerer) {
	known := &replicas{set: s.options.Answers.Replicas}
	registry.MustRegister(known)
	if known.set > 0 {
		return
	}
	counter := redis.NewReplicaCounter(redis.ReplicaCounterOptions{
		Store: store, Key: s.options.Backend.KeyPrefix + redis.ReplicasKey, Logger: s.log,
		Changed: func(n int) {
			s.log.Info("processes that share this Redis", "replicas", n)
			known.counted.Store(int64(n))
			leases.SetReplicas(n)
			s.limiter.SetReplicas(n)
		},
	})
	s.workers = append(s.workers, counter.Run)
}
