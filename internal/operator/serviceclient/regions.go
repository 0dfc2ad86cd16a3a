package serviceclient

import (
	"context"
	"fmt"
	"slices"

	"github.com/ratelimitd/ratelimitd/internal/authoring/explain"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/platform/terminal"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

// Regions returns a server's state of the other regions.
func (c *Client) Regions(ctx context.Context) (*adminv1.ListRegionsResponse, error) {
	return ask(ctx, c, adminv1.NewAdminServiceClient(c.conn).ListRegions, &adminv1.ListRegionsRequest{})
}

// InRegions describes in words how other regions affect the limits of a rule, from a server's state.
func InRegions(r *adminv1.ListRegionsResponse, limits []explain.Limit) (lines []string) {
	said := func(format string, args ...any) {
		if line := fmt.Sprintf(format, args...); !slices.Contains(lines, line) {
			lines = append(lines, line)
		}
	}
	for i := range limits {
		of := limits[i].Regions
		if of == nil {
			continue
		}
		if r.GetRegion() == "" {
			return []string{"this server is in no region: it counts on its own"}
		}
		said("this server is in %s", r.GetRegion())
		home := limits[i].Home
		at := slices.IndexFunc(r.GetRegions(), func(p *adminv1.Region) bool { return p.GetName() == home })
		switch {
		case of.Mode == descriptor.Eventual:
			said("all regions together may admit more than the limit: what the others have not yet heard of")
		case home == r.GetRegion():
			said("it counts for all regions")
		case at < 0:
			said("the home %s is not one of the regions, so on_error decides", home)
		default:
			far(r.GetRegions()[at], limits[i].Lease, said)
		}
	}
	return lines
}

// far describes the region that counts.
func far(home *adminv1.Region, leased bool, say func(format string, args ...any)) {
	if home.GetError() != "" {
		say("%s counts for all regions and does not answer, so on_error decides: %s", home.GetName(), home.GetError())
		return
	}
	trip := "one trip"
	if d := home.GetRtt().AsDuration(); d > 0 {
		trip = "one trip, " + terminal.Span(d)
	}
	unless := ""
	if leased {
		unless = ", unless this replica holds permits"
	}
	say("%s counts for all regions: a request waits for %s, until the limit is used up%s", home.GetName(), trip, unless)
	if home.GetRules() == "differ" {
		say("the rules of %s differ from the rules here, and it counts by its own", home.GetName())
	}
}
