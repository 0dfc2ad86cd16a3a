package serviceclient

import (
	"cmp"
	"context"
	"fmt"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

// Regions lists what a server knows about the other regions.
func (c *Client) Regions(ctx context.Context) (*adminv1.ListRegionsResponse, error) {
	ctx, cancel := c.within(ctx)
	defer cancel()
	got, err := adminv1.NewAdminServiceClient(c.conn).ListRegions(ctx, &adminv1.ListRegionsRequest{})
	if err != nil {
		return nil, c.failure(err)
	}
	return got, nil
}

// InRegions says in words what a server knows about the limits of a rule in other regions. of is what the rule says.
func InRegions(r *adminv1.ListRegionsResponse, rule string, of *descriptor.Regions) (lines []string) {
	here := r.GetRegion()
	switch {
	case of == nil:
		return nil
	case here == "":
		return []string{"this server is in no region: it counts on its own"}
	}
	lines = append(lines, "this server is in "+here)
	if !of.HasHome() {
		return append(lines, "all regions together may admit more than the limit: what the others have not yet heard of")
	}
	for _, x := range r.GetRules() {
		home, escrow := x.GetHome(), x.GetMode() == descriptor.RegionModeNames[descriptor.InEscrow]
		switch {
		case x.GetRule() != rule:
			continue
		case escrow && home == here:
			lines = append(lines, fmt.Sprintf("it has granted %d permits under this rule to other regions", x.GetPermits()))
		case escrow:
			lines = append(lines, fmt.Sprintf("it holds %d permits of %s under this rule", x.GetPermits(), home))
		}
		if n := x.GetOtherLimit(); n > 0 {
			lines = append(lines, fmt.Sprintf("%d counters have another limit in %s", n, home))
		}
	}
	if !r.GetActs() {
		lines = append(lines, "it may not count for the others now: "+r.GetReason())
	}
	for _, k := range r.GetKeptHomes() {
		if k.GetRule() == rule {
			lines = append(lines, cmp.Or(k.GetHome(), "a home by hash")+" stays the home until the epoch is raised")
		}
	}
	return append(lines, "all regions together admit the limit at most, also while they cannot reach each other")
}
