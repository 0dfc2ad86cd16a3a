package serviceclient

import (
	"context"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/ratelimitd/ratelimitd/internal/authoring/explain"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

// Counters are the answer to Peek or Reset. Without a rule and with counters, the limit is the request's.
type Counters interface {
	proto.Message
	GetRule() *adminv1.Rule
	GetReason() string
	GetCounters() []*adminv1.CounterState
}

// Peek looks at the counters of a descriptor.
func (c *Client) Peek(ctx context.Context, domain string, entries []descriptor.Entry,
	o *limiter.RequestLimit) (*adminv1.PeekResponse, error) {
	return ask(ctx, c, adminv1.NewCounterServiceClient(c.conn).Peek,
		&adminv1.PeekRequest{Domain: domain, Entries: Entries(entries), Limit: requestLimit(o)})
}

// Reset clears the counters of a descriptor. The answer has them as they were just before.
func (c *Client) Reset(ctx context.Context, domain string, entries []descriptor.Entry,
	o *limiter.RequestLimit) (*adminv1.ResetResponse, error) {
	return ask(ctx, c, adminv1.NewCounterServiceClient(c.conn).Reset,
		&adminv1.ResetRequest{Domain: domain, Entries: Entries(entries), Limit: requestLimit(o)})
}

// Entries are entries as messages.
func Entries(entries []descriptor.Entry) []*adminv1.Entry {
	var all []*adminv1.Entry
	for _, e := range entries {
		all = append(all, &adminv1.Entry{Key: e.Key, Value: e.Value})
	}
	return all
}

func requestLimit(o *limiter.RequestLimit) *adminv1.RequestLimit {
	if o == nil {
		return nil
	}
	return &adminv1.RequestLimit{RequestsPerUnit: o.Requests, Unit: unitName(o.Unit), UnitMultiplier: o.Multiplier}
}

// StateOf returns the state of a counter as explanations have it.
func StateOf(k *adminv1.CounterState) *explain.State {
	return &explain.State{
		Used: k.GetUsed(), Capacity: k.GetCapacity(), Remaining: k.GetRemaining(),
		WaitSeconds: k.GetWait().AsDuration().Seconds(), Never: k.GetWait() == nil,
		Reset: k.GetResetAfter().AsDuration().Seconds(), ResetAt: k.GetResetAt().AsTime().Round(time.Millisecond),
		Class: k.GetClass(), KeptForOthers: k.GetKeptForOthers(),
		Cached: k.GetFromOverLimitCache(), PenaltySeconds: k.GetPenalty().AsDuration().Seconds(),
	}
}
