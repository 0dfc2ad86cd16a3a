package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ratelimitd/ratelimitd/internal/assembly"
	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/lending/regions"
	"github.com/ratelimitd/ratelimitd/internal/platform/endpoint"
	"github.com/ratelimitd/ratelimitd/internal/platform/metric/prom"
	"github.com/ratelimitd/ratelimitd/internal/platform/tlsfiles"
	"github.com/ratelimitd/ratelimitd/internal/server/regionrpc"
)

// regionOptions are the settings of limits across regions.
type regionOptions struct {
	Region  string   `env:"RATELIMITD_REGION" placeholder:"NAME" help:"Region of this replica, one of RATELIMITD_REGIONS. Unset: limits with regions count like all others."`
	Regions []string `env:"RATELIMITD_REGIONS" placeholder:"NAME=HOST:PORT,..." help:"All regions with the address of their region port; the same list in all regions."`

	Host string `name:"regions-host" env:"RATELIMITD_REGIONS_HOST" default:"0.0.0.0" help:"Address of the region port."`
	Port int    `name:"regions-port" env:"RATELIMITD_REGIONS_PORT" range:"0..65535" default:"8083" help:"Port on which other regions ask; 0: a free one. It is open only with RATELIMITD_REGION."`

	Cert string `name:"regions-tls-cert" env:"RATELIMITD_REGIONS_TLS_CERT" placeholder:"FILE" help:"Certificate, with the URI spiffe://TRUST-DOMAIN/region/NAME."`
	Key  string `name:"regions-tls-key" env:"RATELIMITD_REGIONS_TLS_KEY" placeholder:"FILE" help:"Private key."`
	CA   string `name:"regions-tls-cacert" env:"RATELIMITD_REGIONS_TLS_CACERT" placeholder:"FILE" help:"Authorities for all regions' certificates. No others are trusted."`
}

// regionList is a list of regions that was read and checked.
type regionList struct {
	names     []string          // all, in the order of the setting
	addresses map[string]string // of the others
}

// list reads and checks the settings. It returns nil if none of them is set. Its errors name the setting to change.
func (o *regionOptions) list() (*regionList, error) {
	switch {
	case o.Region == "" && len(o.Regions) == 0:
		if set := given("RATELIMITD_REGIONS_TLS_CERT", o.Cert, "RATELIMITD_REGIONS_TLS_KEY", o.Key, "RATELIMITD_REGIONS_TLS_CACERT", o.CA); set != "" {
			return nil, fmt.Errorf("%s without RATELIMITD_REGION: set RATELIMITD_REGION and RATELIMITD_REGIONS too, or unset it", set)
		}
		return nil, nil
	case o.Region == "":
		return nil, errors.New("RATELIMITD_REGIONS without RATELIMITD_REGION: set the name of the region that this replica is in")
	case !descriptor.ValidRegion(o.Region):
		return nil, fmt.Errorf("RATELIMITD_REGION=%s: a name has at most %d letters from a to z, digits and hyphens, such as eu or us-west-2", o.Region, descriptor.MaxRegionName)
	case len(o.Regions) == 0:
		return nil, fmt.Errorf("RATELIMITD_REGION=%s without RATELIMITD_REGIONS: list all regions, such as eu=limits.eu.example:8083,us=limits.us.example:8083", o.Region)
	}
	l := &regionList{addresses: make(map[string]string)}
	for _, entry := range o.Regions {
		name, address, _ := strings.Cut(entry, "=")
		switch {
		case !descriptor.ValidRegion(name):
			return nil, fmt.Errorf("RATELIMITD_REGIONS: %q is no region: write NAME=HOST:PORT, with a name of at most %d letters from a to z, digits and hyphens", entry, descriptor.MaxRegionName)
		case slices.Contains(l.names, name):
			return nil, fmt.Errorf("RATELIMITD_REGIONS: region %s twice: each region has a name of its own", name)
		case name != o.Region && !strings.Contains(address, ":"):
			return nil, fmt.Errorf("RATELIMITD_REGIONS: region %s has no address: write %[1]s=HOST:PORT", name)
		case name != o.Region:
			l.addresses[name] = address
		}
		l.names = append(l.names, name)
	}
	switch {
	case !slices.Contains(l.names, o.Region):
		return nil, fmt.Errorf("RATELIMITD_REGION=%s is not in RATELIMITD_REGIONS, which has %s: add it, or correct the name", o.Region, strings.Join(l.names, ", "))
	case len(l.names) == 1:
		return nil, fmt.Errorf("RATELIMITD_REGIONS has only %s: list the other regions too, or unset RATELIMITD_REGION", o.Region)
	}
	for _, file := range [][2]string{{"RATELIMITD_REGIONS_TLS_CERT", o.Cert}, {"RATELIMITD_REGIONS_TLS_KEY", o.Key}, {"RATELIMITD_REGIONS_TLS_CACERT", o.CA}} {
		if file[1] == "" {
			return nil, fmt.Errorf("%s is not set: regions know each other by their certificates; set RATELIMITD_REGIONS_TLS_CERT, _KEY and _CACERT", file[0])
		}
	}
	return l, nil
}

// regionLayer returns what puts the store that counts across regions in front of another one; nil if no region is set.
func (s *service) regionLayer(inRedis bool, registry prometheus.Registerer) (func(here backend.Store) (assembly.Regions, error), error) {
	o := &s.options.Regions
	list, err := o.list()
	if err != nil || list == nil {
		return nil, err
	}
	if s.options.Backend.KeyFormat == keysLyft {
		return nil, errors.New("RATELIMITD_REGION and REDIS_KEY_FORMAT=lyft: envoyproxy/ratelimit, which shares these counters, knows no regions; use one of them")
	}
	if s.regionFiles, err = tlsfiles.Load(tlsfiles.Options{
		Use: "regions", Cert: o.Cert, Key: o.Key, CA: o.CA, OnlyCA: true, SkipName: true, Log: s.log, Metrics: prom.With(registry),
	}); err != nil {
		return nil, fmt.Errorf("RATELIMITD_REGIONS_TLS_CERT, RATELIMITD_REGIONS_TLS_KEY, RATELIMITD_REGIONS_TLS_CACERT: %w", err)
	}
	of, err := regionrpc.OwnRegion(s.regionFiles)
	switch {
	case err != nil:
		return nil, fmt.Errorf("RATELIMITD_REGIONS_TLS_CERT=%s: %w", o.Cert, err)
	case of != o.Region:
		return nil, fmt.Errorf("RATELIMITD_REGIONS_TLS_CERT=%s: the certificate is of region %s, and RATELIMITD_REGION=%s", o.Cert, of, o.Region)
	}
	s.tasks.Add(s.regionFiles.Run)
	peers, err := regionrpc.NewPeers(regionrpc.Options{Addresses: list.addresses, TLS: s.regionFiles, Metrics: prom.With(registry), Log: s.log})
	if err != nil {
		return nil, fmt.Errorf("RATELIMITD_REGIONS: %w", err)
	}
	s.tasks.Closing(peers.Close)
	if !inRedis {
		s.log.Warn("limits that this region counts for all are in the memory of each replica: run one replica, or set REDIS_URL", "region", o.Region)
	}
	s.log.Info("limits with regions hold in all regions", "region", o.Region, "regions", list.names)
	return func(here backend.Store) (_ assembly.Regions, err error) {
		s.regions, err = regions.New(regions.Options{
			Store: here, Peers: peers, Region: o.Region, Regions: list.names,
			Timeout: s.options.Backend.longestAnswer(), Metrics: prom.With(registry), Logger: s.log,
		})
		s.tasks.Add(func(ctx context.Context) error { return s.regions.Run(ctx) })
		return s.regions, err
	}, nil
}

// elsewhere tells whether another region counts a limit. It is nil if no region is set.
func (s *service) elsewhere() func(key []byte, l *descriptor.Limit) bool {
	if s.regions == nil {
		return nil
	}
	return func(key []byte, l *descriptor.Limit) bool {
		_, elsewhere := s.regions.HomeElsewhere(key, l)
		return elsewhere
	}
}

// listenForRegions opens the region port, if a region is set.
func (s *service) listenForRegions(shared *endpoint.Shared) error {
	if s.regions == nil {
		return nil
	}
	o := &s.options.Regions
	listener, err := shared.Listen("regions", address(o.Host, o.Port), 0)
	if err != nil {
		return err
	}
	s.tasks.Closing(sync.OnceValue(func() error { // the server closes it too, if it runs
		_ = listener.Close()
		return nil
	}))
	list, err := o.list()
	if err != nil {
		return err
	}
	server, err := regionrpc.NewServer(regionrpc.ServerOptions{
		Listener: listener, TLS: s.regionFiles, Region: o.Region, Regions: list.names, Store: s.regions,
		Log: s.log, Shared: shared,
	})
	if err != nil {
		return err
	}
	s.regionAddr = listener.Addr()
	s.regions.SetResolver(s.limiter)
	s.tasks.Add(server.Run)
	return nil
}

// warnOfRegions logs which limits of new rules cannot hold across regions as they say.
func (s *service) warnOfRegions(tree *descriptor.Tree) {
	across, first := 0, ""
	unknown, where := "", ""
	names := []string{}
	if list, err := s.options.Regions.list(); err == nil && list != nil {
		names = list.names
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
		s.log.Warn("limits with regions count only here: no region is set", "limits", across, "first", first, "hint", "set RATELIMITD_REGION and RATELIMITD_REGIONS")
	case unknown != "":
		s.log.Error("a limit has a home that is no region: on_error decides its requests", "home", unknown, "rule", where, "regions", names)
	}
}
