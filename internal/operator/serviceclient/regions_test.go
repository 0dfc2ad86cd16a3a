package serviceclient

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

func TestInRegions(t *testing.T) {
	r := &adminv1.ListRegionsResponse{Region: "eu", Acts: true, Rules: []*adminv1.RegionRule{
		{Rule: "d.a", Mode: "escrow", Home: "eu", Permits: 7}, {Rule: "d.a", Mode: "escrow", Home: "us", Permits: 5, OtherLimit: 2}, {Rule: "d.b", Mode: "home", Home: "eu"},
	}, KeptHomes: []*adminv1.KeptHome{{Rule: "d.b", Named: "us"}}}
	const here, bound = "this server is in eu", "all regions together admit the limit at most, also while they cannot reach each other"
	across := &descriptor.Regions{Mode: descriptor.AtHome}
	for _, c := range []struct {
		in   *adminv1.ListRegionsResponse
		rule string
		of   *descriptor.Regions
		want []string
	}{
		{r, "d.a", across, []string{here, "it has granted 7 permits under this rule to other regions", "it holds 5 permits of us under this rule", "2 counters have another limit in us", bound}},
		{r, "d.b", across, []string{here, "a home by hash stays the home until the epoch is raised", bound}},
		{r, "d.c", across, []string{here, bound}},
		{r, "d.c", nil, nil},
		{r, "d.c", &descriptor.Regions{Mode: descriptor.Eventual}, []string{here, "all regions together may admit more than the limit: what the others have not yet heard of"}},
		{&adminv1.ListRegionsResponse{Region: "eu", Reason: "too few"}, "d.b", across, []string{here, "it may not count for the others now: too few", bound}},
		{&adminv1.ListRegionsResponse{}, "d.a", across, []string{"this server is in no region: it counts on its own"}},
	} {
		if diff := cmp.Diff(c.want, InRegions(c.in, c.rule, c.of)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.rule, diff)
		}
	}
}
