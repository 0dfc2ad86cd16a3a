package main

import (
	"sync"
	"sync/atomic"
)

// health is the state behind the health of this service.
type health struct {
	mu        sync.Mutex // one report at a time, so that the last one wins
	listening atomic.Bool
	refused   atomic.Bool // an xDS server has sent only rules that cannot be used
}

// reportHealth updates the server's health. It is called whenever the health may have changed.
func (s *service) reportHealth() {
	s.health.mu.Lock()
	defer s.health.mu.Unlock()
	if s.health.listening.Load() {
		s.server.SetMissing(noRules, !s.healthy())
		s.server.SetServing(true)
	}
}

// noRules is what /healthcheck answers while the active rules do not suffice.
const noRules = "no usable rules are loaded; the log and /rlconfig on the admin port say why"

// healthy reports whether the active rules suffice. Without FORCE_START_WITHOUT_INITIAL_CONFIG rules must have been loaded,
// even if they are empty. With it no rules need to have been loaded yet, because a control plane without rules sends nothing.
// If only bad rules have arrived, the replica is unhealthy, because nothing enforces the limits in them. With
// HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED there must be a domain.
func (s *service) healthy() bool {
	o := &s.options.Rules
	tree := s.limiter.Tree()
	if tree == nil {
		return o.Force && !o.AtLeastOne && !s.health.refused.Load()
	}
	return tree.Domains() > 0 || !o.AtLeastOne
}
