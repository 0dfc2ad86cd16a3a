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

	"github.com/ratelimitd/ratelimitd/internal/backend/regions"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

// Everything that is known of the regions is in the answer, and texts that are not UTF-8 do not break it.
func TestListRegions(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	r := start(t, Options{Regions: func() regions.Status {
		return regions.Status{
			Region: "eu", Epoch: 3, Acts: true, For: 20 * time.Second, Cold: 4, Starved: 5,
			Peers: []regions.PeerStatus{
				{Region: "ap", Err: errors.New("no answer \xff")},
				{Region: "us", Heard: at, Asked: at.Add(time.Second), Consented: at.Add(2 * time.Second), Epoch: 2},
			},
		}
	}})
	got, err := adminv1.NewAdminServiceClient(r.admin).ListRegions(within(t), &adminv1.ListRegionsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	want := &adminv1.ListRegionsResponse{
		Region: "eu", Epoch: 3, Acts: true, ActsFor: durationpb.New(20 * time.Second), Cold: 4, Starved: 5,
		Regions: []*adminv1.Region{
			{Name: "ap", Error: "no answer \uFFFD"},
			{Name: "us", Answered: timestamppb.New(at), Asked: timestamppb.New(at.Add(time.Second)), Consented: timestamppb.New(at.Add(2 * time.Second)), Epoch: 2},
		},
	}
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
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
	r := &adminv1.ListRegionsResponse{Region: "eu", Epoch: 3, Cold: 4, Starved: 5, Regions: []*adminv1.Region{
		{Name: "ap", Epoch: 3, Error: "no\x1b answer"}, {Name: "us", Answered: timestamppb.New(at), Consented: timestamppb.New(at.Add(time.Minute)), Epoch: 2},
	}}
	want := `region eu, epoch 3
it does not count for the others: too few of them have consented, or it became a home a short time ago
attempts that waited for a home: 4; without an answer: 5
ap: answered never, asked never, consented never, last error: no� answer
us: answered 3s ago, asked never, consented 0s ago, has epoch 2
`
	if diff := cmp.Diff(want, write(r)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
