package main

import (
	"context"
	"io"
	"os"
	"strings"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend/fleet"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/operator/serviceclient"
)

// fleetCommand is the subcommand that lists the replicas that share a Redis.
type fleetCommand struct {
	Port   portOptions   `embed:""`
	Output outputOptions `embed:"" group:"Output"`
}

func (*fleetCommand) about() about {
	return about{
		examples: []example{
			{"all replicas that share the Redis of this one", "ratelimitd fleet"},
			{"as JSON, from another machine", "ratelimitd fleet -s 10.0.0.7:6070 --token-file token --json"},
		},
		exits: []exitCode{
			{0, "The replicas were shown."}, {1, "The server does not answer, or rejects the call."},
			{2, "The command line, a setting or a file is invalid or missing."},
		},
	}
}

// Run shows the replicas.
func (o *fleetCommand) Run(ctx context.Context, s streams) error {
	client, err := o.Port.client(s.err)
	if err != nil {
		return err
	}
	defer client.Close()
	found, err := client.Fleet(ctx)
	if err != nil {
		return err
	}
	return o.Output.write(s.out,
		func(w io.Writer) error { return serviceclient.WriteFleet(w, found, time.Now()) },
		func(w io.Writer) error { return serviceclient.WriteMessage(w, found) })
}

// joinFleet makes this replica known to the replicas that share its Redis, and shows those replicas to the operators
// of this one.
func (s *service) joinFleet() *fleet.Fleet {
	host, _ := os.Hostname() // empty where the system does not know
	started, version := time.Now(), thisBuild().Version
	return s.counters.Join(&s.tasks, fleet.Options{
		Changed: func(n int) {
			s.log.Info("replicas that share this Redis", "replicas", n)
			s.limiter.SetReplicas(n)
		},
		Self: func() fleet.Process {
			t := s.limiter.Totals()
			p := fleet.Process{
				Host: host, Version: version, Started: started, Rules: s.fleetRules(), Overrides: s.fleetOverrides(),
				Decisions: fleet.Decisions{Passed: t.Passed, Refused: t.Refused, Failed: t.Failed, OnError: t.OnError},
			}
			for _, c := range s.counters.Redis {
				p.Redis = append(p.Redis, fleet.Redis{Name: strings.ToLower(c.Settings), Open: c.Breakers.Open(), Connections: c.Connections.Open()})
			}
			for _, c := range s.counters.Caches {
				p.Caches = append(p.Caches, fleet.Cache{Name: c.Name, Entries: uint64(max(c.Len(), 0))})
			}
			return p
		},
	})
}

func (s *service) fleetRules() fleet.Rules {
	r := fleet.Rules{Since: s.rulesSince()}
	if tree := s.limiter.Tree(); tree != nil {
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

func (s *service) fleetOverrides() fleet.Overrides {
	state := s.overridesState()
	if state == nil {
		return fleet.Overrides{}
	}
	source := fleet.OverridesInFile
	if s.options.Overrides.From == overridesInRedis {
		source = fleet.OverridesInRedis
	}
	o := fleet.Overrides{Source: source, Version: state.Version, Count: state.Count, Error: state.Error}
	if !s.overrides.Read() {
		o.Error = ""
	}
	return o
}
