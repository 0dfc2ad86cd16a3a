package service

import (
	"time"

	"github.com/ratelimitd/ratelimitd/internal/assembly"
	"github.com/ratelimitd/ratelimitd/internal/backend/redisconn"
	"github.com/ratelimitd/ratelimitd/internal/config/override"
	"github.com/ratelimitd/ratelimitd/internal/config/override/redissource"
	"github.com/ratelimitd/ratelimitd/internal/operator"
	"github.com/ratelimitd/ratelimitd/internal/platform/metric/prom"
)

// longestFirstRead is the longest time for which the first read of overrides may keep the service from answering. A
// million overrides take some ten seconds, and a Redis that does not answer takes two.
const longestFirstRead = 30 * time.Second

// followOverrides applies the overrides of their source to the limiter, if there is one.
func (s *Service) followOverrides() error {
	o := &s.o.Overrides
	switch {
	case o.File != nil:
		s.overrides = assembly.Follow(s.o.Tasks, s.Limiter, o.File)
	case o.Redis != nil:
		connections := new(redisconn.Connections)
		if len(s.counters.Redis) > 0 {
			connections = s.counters.Redis[0].Connections
		}
		source, err := o.Redis.Overrides(s.o.Tasks, connections, redissource.Options{
			Prefix: s.o.Counters.KeyPrefix, Copy: o.Copy, Log: s.o.Log, Metrics: prom.With(s.o.Registry),
		})
		if err != nil {
			return err
		}
		s.overrides = assembly.Follow(s.o.Tasks, s.Limiter, source)
		s.o.Tasks.Add((&override.Sweeper{Source: source, InForce: s.Limiter.Overrides, Log: s.o.Log}).Run)
	}
	return nil
}

// operatorsOverrides returns the overrides that operators see and change.
func (s *Service) operatorsOverrides() operator.Overrides {
	o := operator.Overrides{Name: s.o.Overrides.Name, InForce: s.Limiter.Overrides, Peek: s.Limiter.PeekWith}
	if s.overrides == nil {
		return o
	}
	o.Source = s.overrides.Source
	if source, ok := o.Source.(reachable); ok {
		o.Up = source.Up
	}
	return o
}

// reachable is a source on another machine.
type reachable interface{ Up() bool }

// overridesState returns the state of the overrides for operators, or nil if overrides are off.
func (s *Service) overridesState() *operator.OverrideState {
	if s.overrides == nil {
		return nil
	}
	state := new(operator.OverrideState)
	_, state.File = s.overrides.Source.(*override.File)
	if set := s.Limiter.Overrides(); set != nil {
		state.Count, state.Version = set.Len(), set.Version
	}
	if source, ok := s.overrides.Source.(reachable); ok && !source.Up() {
		state.Error = "the source of overrides does not answer"
	}
	return state
}
