package main

import (
	"sync"
	"sync/atomic"
)

// health is what this service says of itself.
type health struct {
	mu        sync.Mutex // one report at a time: the last one counts
	listening atomic.Bool
	refused   atomic.Bool // an xDS server has sent rules, and none of them can be used
}

// reportHealth tells the server whether it wants requests. It is called whenever that may have changed.
func (s *service) reportHealth() {
	s.health.mu.Lock()
	defer s.health.mu.Unlock()
	if s.health.listening.Load() {
		s.server.SetServing(s.healthy())
	}
}

// healthy says whether the rules in force will do. Without FORCE_START_WITHOUT_INITIAL_CONFIG there must be some, even if
// they are empty. With it there need not be any yet, because a control plane without rules has nothing to send; but one
// that has sent only bad rules wants limits which are not in force. With HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED there must
// be a domain.
func (s *service) healthy() bool {
	o := &s.options.Rules
	tree := s.limiter.Tree()
	if tree == nil {
		return o.Force && !o.AtLeastOne && !s.health.refused.Load()
	}
	return tree.Domains() > 0 || !o.AtLeastOne
}
