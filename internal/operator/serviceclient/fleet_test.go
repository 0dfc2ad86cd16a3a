package serviceclient

import (
	"bytes"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"

	"github.com/ratelimitd/ratelimitd/internal/testkit/golden"
)

// The table marks problems for the operator, and no text of a replica changes the terminal.
func TestWriteFleet(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	at := func(ago time.Duration) *timestamppb.Timestamp { return timestamppb.New(now.Add(-ago)) }
	f := &adminv1.FleetServiceListResponse{
		ThisReplica: "b", Shared: true, ReadAt: at(time.Minute), Error: "Redis \x1b[31mdoes not answer", More: 1, Unreadable: 2,
		Replicas: []*adminv1.Replica{
			{Id: "a", Host: "evil\x1b[31m\n", Version: "1", Started: at(time.Hour), State: adminv1.ReplicaState_REPLICA_STATE_GONE, Seen: at(20 * time.Second)},
			{
				Id: "b", Host: "host-b", Version: "1.2.3", Started: at(48 * time.Hour), State: adminv1.ReplicaState_REPLICA_STATE_LIVE, Seen: at(0), RulesDiffer: true, OverridesDiffer: true,
				Rules:     &adminv1.ReplicaRules{Checksum: 2986002304087478, Count: 5, Stale: 1, Rejected: 1},
				PerSecond: &adminv1.ReplicaRates{Passed: 100.25, Denied: 0.5},
				Overrides: &adminv1.ReplicaOverrides{Source: "redis", Version: 12, Count: 3, Error: "no answer"},
				Redis:     []*adminv1.ReplicaRedis{{Name: "redis", OpenBreakers: []string{"10.0.0.1:6379", "10.0.0.2:6379"}}},
				Caches:    []*adminv1.ReplicaCache{{Name: "leases", Entries: 4}, {Name: "denial cache", Entries: 5}},
			},
			{Id: "c", Host: "host-c", State: adminv1.ReplicaState_REPLICA_STATE_STOPPED, Seen: at(time.Minute), Started: at(0), Redis: []*adminv1.ReplicaRedis{{Name: "redis"}}},
		},
	}
	var text, alone bytes.Buffer
	if err := WriteFleet(&text, f, now); err != nil {
		t.Fatal(err)
	}
	golden.Compare(t, "testdata/fleet.txt", text.String())
	if bytes.ContainsRune(text.Bytes(), '\x1b') {
		t.Error("the terminal changes")
	}
	if err := WriteFleet(&alone, &adminv1.FleetServiceListResponse{ThisReplica: "c", Error: "away", Replicas: f.Replicas[2:]}, now); err != nil {
		t.Fatal(err)
	}
	golden.Compare(t, "testdata/fleet_alone.txt", alone.String())
}
