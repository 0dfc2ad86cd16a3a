package operator

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ratelimitd/ratelimitd/internal/backend/fleet"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

// viewed is a fleet as it was seen.
type viewed fleet.View

func (v viewed) List(context.Context) fleet.View { return fleet.View(v) }

// The answer has all the data of all replicas, and texts that are not UTF-8 do not break it.
func TestListReplicas(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	r := start(t, Options{Fleet: viewed{
		Self: "a", Shared: true, ReadAt: at, Err: errors.New("no answer \xff"), Unreadable: 2, More: 3,
		Replicas: []fleet.Replica{
			{
				ID: "a", Host: "host \xff", Version: "1.2.3", Started: at, Seen: at,
				Rules:     fleet.Rules{Checksum: 1 << 63, Since: at, Count: 5, Files: 4, Stale: 1, Rejected: 2},
				Overrides: fleet.Overrides{Source: fleet.OverridesInRedis, Version: 7, Count: 6, Error: "away"},
				Redis:     []fleet.Redis{{Name: "redis", Open: []string{"n:1"}, Connections: 8}}, Caches: []fleet.Cache{{Name: "leases", Entries: 9}},
				PerSecond: fleet.Rates{Passed: 1, Denied: 2, Failed: 3, OnError: 4}, RulesDiffer: true, OverridesDiffer: true,
			},
			{ID: "b", State: fleet.Gone}, {ID: "c", State: fleet.Stopped},
		},
	}})
	got, err := adminv1.NewFleetServiceClient(r.admin).List(within(t), &adminv1.FleetServiceListRequest{})
	if err != nil {
		t.Fatal(err)
	}
	none := func(id string, state adminv1.ReplicaState) *adminv1.Replica {
		return &adminv1.Replica{Id: id, State: state, Rules: &adminv1.ReplicaRules{}, PerSecond: &adminv1.ReplicaRates{}}
	}
	want := &adminv1.FleetServiceListResponse{
		ThisReplica: "a", Shared: true, ReadAt: timestamppb.New(at), Error: "no answer \uFFFD", Unreadable: 2, More: 3,
		Replicas: []*adminv1.Replica{
			{
				Id: "a", Host: "host \uFFFD", Version: "1.2.3", Started: timestamppb.New(at), Seen: timestamppb.New(at), State: adminv1.ReplicaState_REPLICA_STATE_LIVE,
				Rules:     &adminv1.ReplicaRules{Checksum: 1 << 63, Since: timestamppb.New(at), Count: 5, Files: 4, Stale: 1, Rejected: 2},
				Overrides: &adminv1.ReplicaOverrides{Source: "redis", Version: 7, Count: 6, Error: "away"},
				Redis:     []*adminv1.ReplicaRedis{{Name: "redis", OpenBreakers: []string{"n:1"}, Connections: 8}},
				Caches:    []*adminv1.ReplicaCache{{Name: "leases", Entries: 9}},
				PerSecond: &adminv1.ReplicaRates{Passed: 1, Denied: 2, Failed: 3, OnError: 4}, RulesDiffer: true, OverridesDiffer: true,
			},
			none("b", adminv1.ReplicaState_REPLICA_STATE_GONE), none("c", adminv1.ReplicaState_REPLICA_STATE_STOPPED),
		},
	}
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	_, err = adminv1.NewFleetServiceClient(start(t, Options{}).admin).List(within(t), &adminv1.FleetServiceListRequest{})
	if status.Code(err) != codes.Unimplemented {
		t.Errorf("without a fleet: %v", err)
	}
}
