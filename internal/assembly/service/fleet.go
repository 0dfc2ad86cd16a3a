package service

import (
	"os"
	"strings"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend/fleet"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// joinFleet announces this replica to the replicas that share its Redis, and shows those replicas to the operators of
// this one.
func (s *Service) joinFleet() *fleet.Fleet {
	host, _ := os.Hostname() // empty where the system does not know
	started := time.Now()
	return s.counters.Join(s.o.Tasks, fleet.Options{
		Changed: func(n int) {
			s.o.Log.Info("replicas that share this Redis", "replicas", n)
			s.Limiter.SetReplicas(n)
		},
		Self: func() fleet.Replica {
			t := s.Limiter.Totals()
			p := fleet.Replica{
				Host: host, Version: s.o.Version, Started: started, Rules: s.fleetRules(), Overrides: s.fleetOverrides(),
				Decisions: fleet.Decisions{Passed: t.Passed, Denied: t.Denied, Failed: t.Failed, OnError: t.OnError},
			}
			for _, c := range s.counters.Redis {
				p.Redis = append(p.Redis, fleet.Redis{Name: strings.ToLower(c.Settings), Open: c.Breakers.Open(),
					Connections: c.Connections.Open()})
			}
			for _, c := range s.counters.Caches {
				p.Caches = append(p.Caches, fleet.Cache{Name: c.Name, Entries: uint64(max(c.Len(), 0))})
			}
			return p
		},
	})
}

func (s *Service) fleetRules() fleet.Rules {
	r := fleet.Rules{Since: s.rulesSince()}
	if tree := s.Limiter.Tree(); tree != nil {
		r.Checksum, r.Count = tree.Checksum, len(tree.Rules)
	}
	for _, file := range s.files() {
		r.Files++
		switch file.State {
		case descriptor.FileStale:
			r.Stale++
		case descriptor.FileRejected:
			r.Rejected++
		}
	}
	return r
}

func (s *Service) fleetOverrides() fleet.Overrides {
	state := s.overridesState()
	if state == nil {
		return fleet.Overrides{}
	}
	source := fleet.OverridesInRedis
	if state.File {
		source = fleet.OverridesInFile
	}
	o := fleet.Overrides{Source: source, Version: state.Version, Count: state.Count, Error: state.Error}
	if !s.overrides.Read() {
		o.Error = ""
	}
	return o
}
