package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/operator/serviceclient"
)

// move asks the replicas how far a move is, and writes what is next.
func (o *regionsCommand) move(ctx context.Context, s streams) error {
	if len(o.Names) != 2 || o.Names[0] == o.Names[1] {
		return misuse(errors.New("name the old home and the new one: ratelimitd regions move eu us --ask eu=HOST:PORT,us=HOST:PORT"))
	}
	var all []serviceclient.RegionSaid
	for _, entry := range o.Ask {
		name, address, found := strings.Cut(entry, "=")
		if !found || !descriptor.ValidRegion(name) {
			return misuse(fmt.Errorf("--ask %s: write NAME=HOST:PORT, a region and the admin port of one of its replicas", entry))
		}
		all = append(all, serviceclient.RegionSaid{Region: name, Address: address})
	}
	if !slices.ContainsFunc(all, func(a serviceclient.RegionSaid) bool { return a.Region == o.Names[1] }) {
		return misuse(fmt.Errorf("--ask has no replica of %s, the new home: list all replicas of it, and at least one of each other region that can be reached", o.Names[1]))
	}
	for i := range all {
		port := o.Port
		port.Server = all[i].Address
		client, err := port.client(s.err)
		if err != nil {
			return err
		}
		all[i].State, all[i].Err = client.Regions(ctx)
		client.Close()
	}
	plan, err := serviceclient.PlanMove(o.Names[0], o.Names[1], o.OldHomeStopped, all)
	if err != nil {
		return err
	}
	if err := o.Output.write(s.out, plan.Write, func(w io.Writer) error { return json.NewEncoder(w).Encode(plan) }); err != nil {
		return err
	}
	if len(plan.Wrong) > 0 {
		return verdict(1)
	}
	return nil
}
