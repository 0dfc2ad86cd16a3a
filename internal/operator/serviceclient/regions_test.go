package serviceclient

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/ratelimitd/ratelimitd/internal/authoring/explain"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

func TestInRegions(t *testing.T) {
	r := &adminv1.ListRegionsResponse{Region: "eu", Regions: []*adminv1.Region{
		{Name: "ap"}, {Name: "sa", Error: "connection refused"}, {Name: "us", Rules: "differ", Rtt: durationpb.New(80 * time.Millisecond)},
	}}
	const here = "this server is in eu"
	at := func(home string) explain.Limit {
		return explain.Limit{Regions: &descriptor.Regions{Mode: descriptor.AtHome}, Home: home}
	}
	for name, c := range map[string]struct {
		in     *adminv1.ListRegionsResponse
		limits []explain.Limit
		want   []string
	}{
		"no regions": {r, []explain.Limit{{}}, nil},
		"no region":  {&adminv1.ListRegionsResponse{}, []explain.Limit{at("")}, []string{"this server is in no region: it counts on its own"}},
		"here":       {r, []explain.Limit{at("eu"), at("eu")}, []string{here, "it counts for all regions"}},
		"far, new":   {r, []explain.Limit{at("ap")}, []string{here, "ap counts for all regions: a request waits for one trip, until the limit is used up"}},
		"far, leased": {r, []explain.Limit{{Regions: &descriptor.Regions{Mode: descriptor.AtHome}, Home: "ap", Lease: true}}, []string{
			here, "ap counts for all regions: a request waits for one trip, until the limit is used up, unless this replica holds permits",
		}},
		"far, down": {r, []explain.Limit{at("sa")}, []string{here, "sa counts for all regions and does not answer, so on_error decides: connection refused"}},
		"far, other rules": {r, []explain.Limit{{}, at("us"), at("us")}, []string{
			here, "us counts for all regions: a request waits for one trip, 80ms, until the limit is used up", "the rules of us differ from the rules here, and it counts by its own",
		}},
		"unknown":  {r, []explain.Limit{at("mars")}, []string{here, "the home mars is not one of the regions, so on_error decides"}},
		"eventual": {r, []explain.Limit{{Regions: &descriptor.Regions{Mode: descriptor.Eventual}}}, []string{here, "all regions together may admit more than the limit: what the others have not yet heard of"}},
	} {
		if diff := cmp.Diff(c.want, InRegions(c.in, c.limits)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}
