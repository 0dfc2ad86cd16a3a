package service

import (
	"crypto/rand"

	"github.com/ratelimitd/ratelimitd/internal/lending/quota/assigner"
	"github.com/ratelimitd/ratelimitd/internal/lending/quota/redisshares"
	"github.com/ratelimitd/ratelimitd/internal/server"
)

// shareKeys is the prefix of the keys of replicas' shares in Redis, after CACHE_KEY_PREFIX.
const shareKeys = "ratelimitd-shares:"

// assignQuotas creates the assigner, which divides limits among the clients of the rate limit quota service.
func (s *Service) assignQuotas() *assigner.Assigner {
	o := assigner.Options{Limiter: s.Limiter, Metrics: s.o.Registry, Log: s.o.Log,
		Room: s.o.Budget.Class("quota", s.o.Budget.Total()/8)}
	if s.counters.Shared != nil {
		prefix := s.o.Counters.KeyPrefix + shareKeys
		o.Store = redisshares.New(redisshares.Options{Client: s.counters.Shared, Prefix: prefix, Replica: rand.Text()})
	}
	a := assigner.New(o)
	s.o.Tasks.Add(a.Run)
	return a
}

// quotaStreams are the streams of an assigner, as the server needs them.
type quotaStreams struct{ *assigner.Assigner }

// Open implements server.QuotaStreams.
func (q quotaStreams) Open(client string) server.QuotaStream { return q.Assigner.Open(client) }
