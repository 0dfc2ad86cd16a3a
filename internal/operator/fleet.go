package operator

import (
	"context"
	"errors"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ratelimitd/ratelimitd/internal/backend/fleet"
	"github.com/ratelimitd/ratelimitd/internal/platform/logging"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

// Fleet lists the replicas that share a Redis.
type Fleet interface {
	List(ctx context.Context) fleet.View
}

// replicas is the ratelimitd.admin.v1.FleetService.
type replicas struct {
	fleet Fleet // nil if unknown
}

// List implements adminconnect.FleetServiceHandler.
func (p *replicas) List(ctx context.Context, _ *adminv1.FleetServiceListRequest) (*adminv1.FleetServiceListResponse,
	error) {
	if p.fleet == nil {
		return nil, connect.NewError(connect.CodeUnimplemented,
			errors.New("this server does not know the replicas that share its counters"))
	}
	v := p.fleet.List(ctx)
	answer := &adminv1.FleetServiceListResponse{
		ThisReplica: v.Self, Shared: v.Shared, ReadAt: timestampOf(v.ReadAt), More: count(v.More),
		Unreadable: count(v.Unreadable),
	}
	if v.Err != nil {
		answer.Error = validText(logging.Shorten(v.Err.Error()))
	}
	for i := range v.Replicas {
		answer.Replicas = append(answer.Replicas, processMessage(&v.Replicas[i]))
	}
	return answer, nil
}

// timestampOf returns nil for the zero time.
func timestampOf(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}

var processStates = map[fleet.State]adminv1.ReplicaState{
	fleet.Live:    adminv1.ReplicaState_REPLICA_STATE_LIVE,
	fleet.Stopped: adminv1.ReplicaState_REPLICA_STATE_STOPPED,
	fleet.Gone:    adminv1.ReplicaState_REPLICA_STATE_GONE,
}

func processMessage(p *fleet.Replica) *adminv1.Replica {
	m := &adminv1.Replica{
		Id: p.ID, Host: validText(p.Host), Version: validText(p.Version), Started: timestampOf(p.Started),
		State: processStates[p.State], Seen: timestampOf(p.Seen),
		Rules: &adminv1.ReplicaRules{
			Checksum: p.Rules.Checksum, Since: timestampOf(p.Rules.Since), Count: count(p.Rules.Count),
			Files: count(p.Rules.Files),
			Stale: count(p.Rules.Stale), Rejected: count(p.Rules.Rejected),
		},
		PerSecond: &adminv1.ReplicaRates{
			Passed: p.PerSecond.Passed, Denied: p.PerSecond.Denied, Failed: p.PerSecond.Failed, OnError: p.PerSecond.OnError,
		},
		RulesDiffer: p.RulesDiffer, OverridesDiffer: p.OverridesDiffer,
	}
	if o := &p.Overrides; o.Source != "" {
		m.Overrides = &adminv1.ReplicaOverrides{Source: o.Source, Version: o.Version, Count: count(o.Count),
			Error: validText(o.Error)}
	}
	for _, r := range p.Redis {
		m.Redis = append(m.Redis, &adminv1.ReplicaRedis{Name: validText(r.Name), OpenBreakers: validTexts(r.Open),
			Connections: r.Connections})
	}
	for _, c := range p.Caches {
		m.Caches = append(m.Caches, &adminv1.ReplicaCache{Name: validText(c.Name), Entries: c.Entries})
	}
	return m
}
