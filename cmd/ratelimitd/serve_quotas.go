package main

import (
	"crypto/rand"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ratelimitd/ratelimitd/internal/lending/quota/assigner"
	"github.com/ratelimitd/ratelimitd/internal/lending/quota/redisshares"
	"github.com/ratelimitd/ratelimitd/internal/platform/intake"
	"github.com/ratelimitd/ratelimitd/internal/server"
)

// shareKeys is what the keys of replicas' shares in Redis begin with, after CACHE_KEY_PREFIX.
const shareKeys = "ratelimitd-shares:"

// assignQuotas makes what shares limits among the clients of the rate limit quota service.
func (s *service) assignQuotas(registry prometheus.Registerer, budget *intake.Budget) *assigner.Assigner {
	o := assigner.Options{Limiter: s.limiter, Metrics: registry, Log: s.log, Room: budget.Class("quota", budget.Total()/8)}
	if s.counters.Shared != nil {
		o.Store = redisshares.New(redisshares.Options{Client: s.counters.Shared, Prefix: s.options.Backend.KeyPrefix + shareKeys, Process: rand.Text()})
	}
	a := assigner.New(o)
	s.tasks.Add(a.Run)
	return a
}

// quotaStreams are the streams of an assigner, as the server needs them.
type quotaStreams struct{ *assigner.Assigner }

// Open implements server.QuotaStreams.
func (q quotaStreams) Open(client string) server.QuotaStream { return q.Assigner.Open(client) }
