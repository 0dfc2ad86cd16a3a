package operator

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ratelimitd/ratelimitd/internal/backend/memory"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/lending/regions"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

// Everything that is known of the regions is in the answer, and texts that are not UTF-8 do not break it.
func TestListRegions(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	r := start(t, Options{Regions: Regions{Status: func() regions.Status {
		return regions.Status{
			Region: "eu", Waited: 4, Unanswered: 5,
			Peers: []regions.PeerStatus{
				{Region: "ap", Err: errors.New("no answer \xff"), Rules: regions.RulesSame},
				{
					Region: "us", Heard: at, Asked: at.Add(time.Second), RTT: 80 * time.Millisecond, Rules: regions.RulesDiffer,
					Rejection: regions.PeerRejection{At: at, Why: regions.NoRule, Domain: "d\xff", Keys: []string{"k", "\xff"}},
				},
			},
		}
	}}})
	got, err := adminv1.NewAdminServiceClient(r.admin).ListRegions(within(t), &adminv1.ListRegionsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	want := &adminv1.ListRegionsResponse{
		Region: "eu", Waited: 4, Unanswered: 5,
		Regions: []*adminv1.Region{
			{Name: "ap", Error: "no answer \uFFFD", Rules: "same"},
			{
				Name: "us", Answered: timestamppb.New(at), Asked: timestamppb.New(at.Add(time.Second)), Rtt: durationpb.New(80 * time.Millisecond), Rules: "differ",
				Rejected: &adminv1.RegionRejection{At: timestamppb.New(at), Reason: "no rule", Domain: "d\uFFFD", Keys: []string{"k", "\uFFFD"}},
			},
		},
	}
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// A replica that has no rules yet shows its regions.
func TestRegionsWithoutRules(t *testing.T) {
	l := limiter.New(limiter.Options{Store: memory.New(memory.Options{})})
	r := start(t, Options{Regions: Regions{Status: func() regions.Status { return regions.Status{Region: "eu"} }}, Rules: Rules{Tree: l.Tree}})
	got, err := adminv1.NewAdminServiceClient(r.admin).ListRegions(within(t), &adminv1.ListRegionsRequest{})
	if err != nil || got.GetRegion() != "eu" || len(got.GetHomes()) != 0 {
		t.Errorf("%v %v", got, err)
	}
	if code, page := get(t, r.DebugAddr, "/regions"); code != 200 || !strings.HasPrefix(page, "region eu\n") {
		t.Errorf("%d %s", code, page)
	}
}

// Limits whose parts each region counts separately have no home.
func TestHomesOf(t *testing.T) {
	limits := func(modes ...descriptor.Regions) *descriptor.Rule {
		r := &descriptor.Rule{Limits: make([]descriptor.Limit, len(modes))}
		for i := range modes {
			r.Limits[i].Regions = &modes[i]
		}
		return r
	}
	tree := &descriptor.Tree{Rules: []*descriptor.Rule{
		limits(descriptor.Regions{Mode: descriptor.AtHome, Home: "eu"}, descriptor.Regions{Mode: descriptor.AtHome, Home: "eu"}, descriptor.Regions{Mode: descriptor.AtHome}),
		limits(descriptor.Regions{Mode: descriptor.Eventual}), limits(descriptor.Regions{}), {Limits: make([]descriptor.Limit, 1)},
	}}
	want := []*adminv1.RegionHome{{Limits: 1}, {Name: "eu", Limits: 2}}
	if diff := cmp.Diff(want, homesOf(tree), protocmp.Transform()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestWriteRegions(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	write := func(r *adminv1.ListRegionsResponse) string {
		var b strings.Builder
		if err := WriteRegions(&b, r, at.Add(3*time.Second)); err != nil {
			t.Fatal(err)
		}
		return b.String()
	}
	if got, want := write(&adminv1.ListRegionsResponse{}), "no region is set: RATELIMITD_REGION\n"; got != want {
		t.Errorf("got %q", got)
	}
	r := &adminv1.ListRegionsResponse{
		Region: "eu", Waited: 4, Unanswered: 5,
		Homes: []*adminv1.RegionHome{{Limits: 2}, {Name: "eu", Limits: 12}},
		Regions: []*adminv1.Region{
			{Name: "ap", Error: "no\x1b answer", Rules: "same"}, {Name: "sa"},
			{
				Name: "us", Answered: timestamppb.New(at), Asked: timestamppb.New(at.Add(time.Minute)), Rtt: durationpb.New(80 * time.Millisecond), Rules: "differ",
				Rejected: &adminv1.RegionRejection{At: timestamppb.New(at), Reason: "no rule", Domain: "shop", Keys: []string{"a", "b"}},
			},
		},
	}
	want := `region eu
homes of limits in the rules: chosen by a hash 2, eu 12
attempts that waited for a home: 4; without an answer: 5

REGION  STATE          ROUND TRIP  RULES   ANSWERED  ASKED
ap      down           -           same    never     never
sa      not asked yet  -           -       never     never
us      up             80ms        differ  3s ago    0s ago
ap: last error: no� answer
us: 3s ago it did not count a query about shop a,b: no rule
`
	if diff := cmp.Diff(want, write(r)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
