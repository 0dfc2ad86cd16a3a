package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/ratelimitd/ratelimitd/internal/assembly/service"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/platform/metric/prom"
	"github.com/ratelimitd/ratelimitd/internal/platform/tlsfiles"
	"github.com/ratelimitd/ratelimitd/internal/server/regionrpc"
)

// regionOptions are the settings of limits across regions.
type regionOptions struct {
	Region  string   `env:"RATELIMITD_REGION" placeholder:"NAME" help:"This replica's region. Unset: limits with regions count like all others."`
	Regions []string `env:"RATELIMITD_REGIONS" placeholder:"NAME=HOST:PORT,..." help:"All regions and their region ports, equal in all regions."`

	Listen string `name:"regions-listen" env:"RATELIMITD_REGIONS_LISTEN" default:"0.0.0.0:8083" placeholder:"HOST:PORT" help:"The region port (0: a free one). Needs RATELIMITD_REGION."`

	Cert string `name:"regions-tls-cert" env:"RATELIMITD_REGIONS_TLS_CERT" placeholder:"FILE" help:"Certificate with the URI spiffe://TRUST-DOMAIN/region/NAME."`
	Key  string `name:"regions-tls-key" env:"RATELIMITD_REGIONS_TLS_KEY" placeholder:"FILE" help:"Private key."`
	CA   string `name:"regions-tls-cacert" env:"RATELIMITD_REGIONS_TLS_CACERT" placeholder:"FILE" help:"The only trusted authorities for regions' certificates."`
}

// regionList is a list of regions that was read and checked.
type regionList struct {
	names     []string          // all regions, in the order of the setting
	addresses map[string]string // addresses of the other regions
}

// list reads and checks the settings. It returns nil if none of them is set. Its errors name the setting to change.
func (o *regionOptions) list() (*regionList, error) {
	switch {
	case o.Region == "" && len(o.Regions) == 0:
		if set := given("RATELIMITD_REGIONS_TLS_CERT", o.Cert, "RATELIMITD_REGIONS_TLS_KEY", o.Key,
			"RATELIMITD_REGIONS_TLS_CACERT", o.CA); set != "" {
			return nil, fmt.Errorf("%s without RATELIMITD_REGION: set RATELIMITD_REGION and RATELIMITD_REGIONS too, or unset it",
				set)
		}
		return nil, nil
	case o.Region == "":
		return nil,
			errors.New("RATELIMITD_REGIONS without RATELIMITD_REGION: set the name of the region that this replica is in")
	case !descriptor.ValidRegion(o.Region):
		return nil,
			fmt.Errorf("RATELIMITD_REGION=%s: a name has at most %d letters from a to z, digits and hyphens, such as eu "+
				"or us-west-2", o.Region, descriptor.MaxRegionName)
	case len(o.Regions) == 0:
		return nil, fmt.Errorf("RATELIMITD_REGION=%s without RATELIMITD_REGIONS: list all regions, such as "+
			"eu=limits.eu.example:8083,us=limits.us.example:8083", o.Region)
	}
	l := &regionList{addresses: make(map[string]string)}
	for _, entry := range o.Regions {
		name, address, _ := strings.Cut(entry, "=")
		switch {
		case !descriptor.ValidRegion(name):
			return nil,
				fmt.Errorf("RATELIMITD_REGIONS: %q is no region: write NAME=HOST:PORT, with a name of at most %d letters from a "+
					"to z, digits and hyphens", entry, descriptor.MaxRegionName)
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
		return nil, fmt.Errorf("RATELIMITD_REGION=%s is not in RATELIMITD_REGIONS, which has %s: add it, or correct the name",
			o.Region, strings.Join(l.names, ", "))
	case len(l.names) == 1:
		return nil, fmt.Errorf("RATELIMITD_REGIONS has only %s: list the other regions too, or unset RATELIMITD_REGION",
			o.Region)
	}
	for _, file := range [][2]string{{"RATELIMITD_REGIONS_TLS_CERT", o.Cert}, {"RATELIMITD_REGIONS_TLS_KEY", o.Key},
		{"RATELIMITD_REGIONS_TLS_CACERT", o.CA}} {
		if file[1] == "" {
			return nil,
				fmt.Errorf("%s is not set: regions know each other by their certificates; set RATELIMITD_REGIONS_TLS_CERT, _KEY "+
					"and _CACERT", file[0])
		}
	}
	return l, nil
}

// regions sets the addresses of the other regions, if there are some.
func (s *starting) regions(_ context.Context, opts *service.Options) error {
	o := &s.options.Regions
	list, err := o.list()
	if err != nil || list == nil {
		return err
	}
	if s.options.Backend.KeyFormat == keysLyft {
		return errors.New("RATELIMITD_REGION and REDIS_KEY_FORMAT=lyft: envoyproxy/ratelimit, which shares these counters, " +
			"knows no regions; use one of them")
	}
	files, err := tlsfiles.Load(tlsfiles.Options{
		Use: "regions", Cert: o.Cert, Key: o.Key, CA: o.CA, OnlyCA: true, SkipName: true, Log: s.log,
		Metrics: prom.With(s.registry),
	})
	if err != nil {
		return fmt.Errorf("RATELIMITD_REGIONS_TLS_CERT, RATELIMITD_REGIONS_TLS_KEY, RATELIMITD_REGIONS_TLS_CACERT: %w", err)
	}
	of, err := regionrpc.OwnRegion(files)
	switch {
	case err != nil:
		return fmt.Errorf("RATELIMITD_REGIONS_TLS_CERT=%s: %w", o.Cert, err)
	case of != o.Region:
		return fmt.Errorf("RATELIMITD_REGIONS_TLS_CERT=%s: the certificate is of region %s, and RATELIMITD_REGION=%s", o.Cert,
			of, o.Region)
	}
	s.tasks.Add(files.Run)
	peers, err := regionrpc.NewPeers(regionrpc.Options{Addresses: list.addresses, TLS: files,
		Metrics: prom.With(s.registry), Log: s.log})
	if err != nil {
		return fmt.Errorf("RATELIMITD_REGIONS: %w", err)
	}
	s.tasks.Closing(peers.Close)
	if opts.Counters.Redis == nil {
		s.log.Warn("limits that this region counts for all are in the memory of each replica: run one replica, or "+
			"set REDIS_URL", "region", o.Region)
	}
	s.log.Info("limits with regions hold in all regions", "region", o.Region, "regions", list.names)
	opts.Regions = &service.Regions{
		Name: o.Region, Names: list.names, Addr: o.Listen, Timeout: s.options.Backend.longestAnswer(), Peers: peers,
		TLS: files,
	}
	return nil
}
