package service

import (
	"slices"
	"sync"

	"github.com/ratelimitd/ratelimitd/internal/assembly"
	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/lending/regions"
	"github.com/ratelimitd/ratelimitd/internal/platform/metric/prom"
	"github.com/ratelimitd/ratelimitd/internal/server/regionrpc"
)

// across puts the store that counts across regions in front of another one.
func (s *Service) across(here backend.Store) (_ assembly.Regions, err error) {
	o := s.o.Regions
	s.regions, err = regions.New(regions.Options{
		Store: here, Peers: o.Peers, Region: o.Name, Regions: o.Names, Timeout: o.Timeout,
		Metrics: prom.With(s.o.Registry), Logger: s.o.Log,
	})
	if err != nil {
		return nil, err
	}
	s.o.Tasks.Add(s.regions.Run)
	return s.regions, nil
}

// elsewhere returns a function that reports whether another region counts a limit. It is nil if no region is set.
func (s *Service) elsewhere() func(key []byte, l *descriptor.Limit) bool {
	if s.regions == nil {
		return nil
	}
	return func(key []byte, l *descriptor.Limit) bool {
		_, elsewhere := s.regions.HomeElsewhere(key, l)
		return elsewhere
	}
}

// listenForRegions opens the region port, if there are other regions.
func (s *Service) listenForRegions() error {
	if s.regions == nil {
		return nil
	}
	o, shared := s.o.Regions, s.o.Server.Shared
	listener, err := shared.Listen("regions", o.Addr, 0)
	if err != nil {
		return err
	}
	s.o.Tasks.Closing(sync.OnceValue(func() error { // the server closes it too, if it runs
		_ = listener.Close()
		return nil
	}))
	server, err := regionrpc.NewServer(regionrpc.ServerOptions{
		Listener: listener, TLS: o.TLS, Region: o.Name, Regions: o.Names, Store: s.regions, Log: s.o.Log, Shared: shared,
	})
	if err != nil {
		return err
	}
	s.regionAddr = listener.Addr()
	s.regions.SetResolver(s.Limiter)
	s.o.Tasks.Add(server.Run)
	return nil
}

// warnOfRegions logs that limits of new rules cannot hold across regions: without regions, or with an unknown home.
func (s *Service) warnOfRegions(tree *descriptor.Tree) {
	across, first := 0, ""
	unknown, where := "", ""
	names := []string{}
	if s.o.Regions != nil {
		names = s.o.Regions.Names
	}
	for _, r := range tree.Rules {
		for i := range r.Limits {
			of := r.Limits[i].Regions
			if of == nil {
				continue
			}
			if across++; first == "" {
				first = r.Path
			}
			if of.Home != "" && unknown == "" && !slices.Contains(names, of.Home) {
				unknown, where = of.Home, r.Path
			}
		}
	}
	switch {
	case across == 0:
	case s.regions == nil:
		s.o.Log.Warn("limits with regions count only here: no region is set",
			"limits", across, "first", first, "hint", "set RATELIMITD_REGION and RATELIMITD_REGIONS")
	case unknown != "":
		s.o.Log.Error("a limit has a home that is no region: on_error decides its requests", "home", unknown, "rule", where,
			"regions", names)
	}
}
