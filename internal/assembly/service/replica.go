package service

import (
	"context"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/assembly"
	"github.com/ratelimitd/ratelimitd/internal/operator"
)

// consolePing bounds how long the console waits for a Redis: it asks once a second.
const consolePing = 700 * time.Millisecond

// process returns the function that describes this replica for the console.
func (s *Service) process() func(context.Context) *operator.Replica {
	host, _ := os.Hostname() // empty where the system does not know
	started := time.Now()
	return func(ctx context.Context) *operator.Replica {
		p := &operator.Replica{
			Host: host, Version: s.o.Version, Started: started, Backend: "memory", Overrides: s.overridesState(),
			Redis: make([]operator.Redis, len(s.counters.Redis)), Caches: []operator.Cache{},
		}
		if len(s.counters.Redis) > 0 {
			p.Backend = "Redis"
		}
		var pings sync.WaitGroup
		for i, c := range s.counters.Redis {
			pings.Go(func() { p.Redis[i] = redisState(ctx, c) })
		}
		for _, c := range s.counters.Caches {
			p.Caches = append(p.Caches, operator.Cache{Name: c.Name, Entries: uint64(max(c.Len(), 0))})
		}
		pings.Wait()
		return p
	}
}

// redisState asks a Redis whether it answers.
func redisState(ctx context.Context, c *assembly.Connected) operator.Redis {
	ctx, cancel := context.WithTimeout(ctx, consolePing)
	defer cancel()
	start := time.Now()
	err := c.Ping(ctx)
	took := float64(time.Since(start).Microseconds()) / 1000
	r := operator.Redis{Name: strings.ToLower(c.Settings), Millis: took, Connections: c.Connections.Open()}
	if err != nil {
		r.Error = err.Error()
	}
	return r
}
