package main

import (
	"context"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/config/override"
	"github.com/ratelimitd/ratelimitd/internal/operator"
)

// consolePing bounds how long the console waits for a Redis: it asks once a second.
const consolePing = 700 * time.Millisecond

// process returns what the console shows of this replica.
func (s *service) process() func(context.Context) *operator.Process {
	host, _ := os.Hostname() // empty where the system does not know
	started, version := time.Now(), thisBuild().Version
	return func(ctx context.Context) *operator.Process {
		p := &operator.Process{Host: host, Version: version, Started: started, Backend: "memory", Redis: make([]operator.Redis, len(s.redis)), Caches: []operator.Cache{}}
		if len(s.redis) > 0 {
			p.Backend = "Redis"
		}
		var pings sync.WaitGroup
		for i, c := range s.redis {
			pings.Go(func() { p.Redis[i] = c.state(ctx) })
		}
		for _, c := range s.caches {
			p.Caches = append(p.Caches, c())
		}
		p.Overrides = s.overridesState()
		pings.Wait()
		return p
	}
}

// overridesState is what this replica knows of the overrides; nil: they are off.
func (s *service) overridesState() *operator.OverrideState {
	if s.overrides == nil {
		return nil
	}
	state := new(operator.OverrideState)
	_, state.File = s.overrides.(*override.File)
	if set := s.limiter.Overrides(); set != nil {
		state.Count, state.Version = set.Len(), set.Version
	}
	if source, ok := s.overrides.(interface{ Up() bool }); ok && !source.Up() {
		state.Error = "the source of overrides does not answer"
	}
	return state
}

// showCache adds the size of a cache to what the console shows.
func (s *service) showCache(name string, entries func() int) {
	s.caches = append(s.caches, func() operator.Cache { return operator.Cache{Name: name, Entries: uint64(max(entries(), 0))} })
}

// state asks a Redis whether it answers.
func (c *redisStore) state(ctx context.Context) operator.Redis {
	ctx, cancel := context.WithTimeout(ctx, consolePing)
	defer cancel()
	start := time.Now()
	err := c.store.Ping(ctx)
	r := operator.Redis{Name: strings.ToLower(c.settings), Millis: float64(time.Since(start).Microseconds()) / 1000, Connections: c.conns.Open()}
	if err != nil {
		r.Error = err.Error()
	}
	return r
}
