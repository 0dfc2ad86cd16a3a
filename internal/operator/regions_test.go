package operator

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ratelimitd/ratelimitd/internal/backend/memory"
	"github.com/ratelimitd/ratelimitd/internal/backend/regions"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

// Everything that is known of the regions is in the answer, and texts that are not UTF-8 do not break it.
func TestListRegions(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	r := start(t, Options{Regions: func() regions.Status {
		return regions.Status{
			Region: "eu", Epoch: 3, Acts: true, For: 20 * time.Second, Before: []string{"ap"}, Cold: 4, Starved: 5,
			Peers: []regions.PeerStatus{
				{Region: "ap", Err: errors.New("no answer \xff")},
				{
					Region: "us", Heard: at, Asked: at.Add(time.Second), Consented: at.Add(2 * time.Second), Epoch: 2, RTT: 80 * time.Millisecond,
					Refusal: regions.PeerRefusal{At: at, Why: regions.OtherHome, Domain: "d\xff", Keys: []string{"k", "\xff"}},
				},
			},
			Rules: slices.Concat([]regions.RuleStatus{{Rule: "d.k", Mode: descriptor.InEscrow, Home: "us", Counters: 2, Permits: 30, Other: 1}}, make([]regions.RuleStatus, 2000)),
			Kept:  []regions.KeptHome{{Rule: "d.\xff", Named: "us"}},
		}
	}})
	got, err := adminv1.NewAdminServiceClient(r.admin).ListRegions(within(t), &adminv1.ListRegionsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	want := &adminv1.ListRegionsResponse{
		Region: "eu", Epoch: 3, Acts: true, ActsFor: durationpb.New(20 * time.Second), Before: []string{"ap"}, Cold: 4, Starved: 5,
		Regions: []*adminv1.Region{
			{Name: "ap", Error: "no answer \uFFFD"},
			{Name: "us", Answered: timestamppb.New(at), Asked: timestamppb.New(at.Add(time.Second)), Consented: timestamppb.New(at.Add(2 * time.Second)), Epoch: 2,
				Rtt: durationpb.New(80 * time.Millisecond), Refused: &adminv1.RegionRefusal{At: timestamppb.New(at), Reason: "other home", Domain: "d\uFFFD", Keys: []string{"k", "\uFFFD"}}},
		},
		Rules:     []*adminv1.RegionRule{{Rule: "d.k", Mode: "escrow", Home: "us", Counters: 2, Permits: 30, OtherLimit: 1}},
		KeptHomes: []*adminv1.KeptHome{{Rule: "d.\uFFFD", Named: "us"}},
	}
	if len(got.Rules) != 1000 {
		t.Errorf("%d rules", len(got.Rules))
	}
	got.Rules = got.Rules[:1]
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// A replica that has no rules yet shows its regions.
func TestRegionsWithoutRules(t *testing.T) {
	l := limiter.New(limiter.Options{Store: memory.New(memory.Options{})})
	r := start(t, Options{Regions: func() regions.Status { return regions.Status{Region: "eu"} }, Rules: Rules{Tree: l.Tree}})
	got, err := adminv1.NewAdminServiceClient(r.admin).ListRegions(within(t), &adminv1.ListRegionsRequest{})
	if err != nil || got.GetRegion() != "eu" || len(got.GetHomes()) != 0 {
		t.Errorf("%v %v", got, err)
	}
	if code, page := get(t, r.DebugAddr, "/regions"); code != 200 || !strings.HasPrefix(page, "region eu, ") {
		t.Errorf("%d %s", code, page)
	}
}

// Limits of which each region counts its own part have no home.
func TestHomesOf(t *testing.T) {
	limits := func(modes ...descriptor.Regions) *descriptor.Rule {
		r := &descriptor.Rule{Limits: make([]descriptor.Limit, len(modes))}
		for i := range modes {
			r.Limits[i].Regions = &modes[i]
		}
		return r
	}
	tree := &descriptor.Tree{Rules: []*descriptor.Rule{
		limits(descriptor.Regions{Mode: descriptor.InEscrow, Home: "eu"}, descriptor.Regions{Mode: descriptor.AtHome, Home: "eu"}, descriptor.Regions{Mode: descriptor.AtHome}),
		limits(descriptor.Regions{Mode: descriptor.Eventual}), limits(descriptor.Regions{}), {Limits: make([]descriptor.Limit, 1)},
	}}
	want := []*adminv1.RegionHome{{Limits: 1}, {Name: "eu", Limits: 2}}
	if diff := cmp.Diff(want, homesOf(func() *descriptor.Tree { return tree }), protocmp.Transform()); diff != "" {
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
		Region: "eu", Epoch: 3, Cold: 4, Starved: 5, Reason: "too few consent",
		Homes: []*adminv1.RegionHome{{Limits: 2}, {Name: "eu", Limits: 12}},
		Regions: []*adminv1.Region{
			{Name: "ap", Epoch: 3, Error: "no\x1b answer"}, {Name: "sa"},
			{
				Name: "us", Answered: timestamppb.New(at), Consented: timestamppb.New(at.Add(time.Minute)), Epoch: 2, Rtt: durationpb.New(80 * time.Millisecond),
				Refused: &adminv1.RegionRefusal{At: timestamppb.New(at), Reason: "no rule", Domain: "shop", Keys: []string{"a", "b"}},
			},
		},
		Rules: []*adminv1.RegionRule{
			{Rule: "d.a", Mode: "escrow", Home: "us", Counters: 2, Permits: 30, OtherLimit: 1}, {Rule: "d.b", Mode: "escrow", Home: "eu", Counters: 1, Permits: 7},
			{Rule: "d.c", Mode: "home", Home: "us", Counters: 3},
		},
		KeptHomes: []*adminv1.KeptHome{{Rule: "d.a\x1b", Named: "us", Home: "eu"}, {Rule: "d.b", Named: "us"}},
	}
	want := `region eu, epoch 3
it does not count for the others: too few consent
homes of limits in the rules: chosen by a hash 2, eu 12
attempts that waited for a home: 4; without an answer: 5

REGION  STATE          ROUND TRIP  ANSWERED  ASKED  CONSENTED  EPOCH
ap      down           -           never     never  never      3
sa      not asked yet  -           never     never  never      -
us      up             80ms        3s ago    never  0s ago     2 (differs)
ap: last error: no� answer
us: 3s ago it did not answer a question about shop a,b: no rule

RULE  MODE    HOME  COUNTERS  PERMITS
d.a   escrow  us    2         30 held here, another limit at the home: 1
d.b   escrow  eu    1         7 granted to others
d.c   home    us    3         -
the rule d.a� names us, but eu stays the home until the epoch is raised
the rule d.b names us, but a home by hash stays the home until the epoch is raised
`
	if diff := cmp.Diff(want, write(r)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
