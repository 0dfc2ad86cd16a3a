package serviceclient

import (
	"context"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/authoring/explain"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

// Counters are a server's counters of one descriptor.
type Counters struct {
	Server  string  `json:"server"`
	Domain  string  `json:"domain"`
	Entries []Entry `json:"entries"`

	Matched     bool      `json:"matched"`                // a rule matches, or the request brings a limit along
	Reason      string    `json:"reason,omitempty"`       // why no rule matches
	Rule        *Rule     `json:"rule,omitempty"`         // absent if the limit is the request's
	FromRequest bool      `json:"from_request,omitempty"` // the limit is the request's
	Override    string    `json:"override,omitempty"`     // the active operators' override, in words
	Cleared     bool      `json:"cleared,omitempty"`      // the counters were cleared; the states are from just before
	Counters    []Counter `json:"counters"`
}

// Rule is the rule of the server that matches.
type Rule struct {
	Path      string `json:"path"`
	Name      string `json:"name,omitempty"`
	File      string `json:"file,omitempty"`
	Line      uint32 `json:"line,omitempty"`
	Column    uint32 `json:"column,omitempty"`
	Unlimited bool   `json:"unlimited,omitempty"`
	Shadow    bool   `json:"shadow_mode,omitempty"`
}

// Counter is one limit and its state.
type Counter struct {
	Name  string        `json:"name,omitempty"`
	Words string        `json:"words"`
	Key   string        `json:"key"`
	State explain.State `json:"state"`
}

// Peek looks at the counters of a descriptor.
func (c *Client) Peek(ctx context.Context, domain string, entries []descriptor.Entry, o *limiter.RequestLimit) (*Counters, error) {
	ctx, cancel := c.within(ctx)
	defer cancel()
	got, err := adminv1.NewCounterServiceClient(c.conn).Peek(ctx, &adminv1.PeekRequest{Domain: domain, Entries: messages(entries), Limit: requestLimit(o)})
	if err != nil {
		return nil, c.failure(err)
	}
	answer := c.counters(domain, entries, got, o != nil)
	answer.Override = got.GetOverride()
	return answer, nil
}

// Reset clears the counters of a descriptor. The states are from just before.
func (c *Client) Reset(ctx context.Context, domain string, entries []descriptor.Entry, o *limiter.RequestLimit) (*Counters, error) {
	ctx, cancel := c.within(ctx)
	defer cancel()
	got, err := adminv1.NewCounterServiceClient(c.conn).Reset(ctx, &adminv1.ResetRequest{Domain: domain, Entries: messages(entries), Limit: requestLimit(o)})
	if err != nil {
		return nil, c.failure(err)
	}
	counters := c.counters(domain, entries, got, o != nil)
	counters.Cleared = len(counters.Counters) > 0
	return counters, nil
}

func messages(entries []descriptor.Entry) []*adminv1.Entry {
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

// countersResponse is what the responses of both calls have.
type countersResponse interface {
	GetRule() *adminv1.Rule
	GetReason() string
	GetCounters() []*adminv1.CounterState
}

func (c *Client) counters(domain string, entries []descriptor.Entry, t countersResponse, fromRequest bool) *Counters {
	out := &Counters{Server: c.o.Server, Domain: domain, Entries: entriesOf(entries), Rule: ruleOf(t.GetRule()), Reason: t.GetReason(), Counters: []Counter{}}
	for _, k := range t.GetCounters() {
		out.Counters = append(out.Counters, Counter{
			Name: k.GetLimit().GetName(), Words: k.GetWords(), Key: string(k.GetLimit().GetCounterKey()), State: stateOf(k),
		})
	}
	out.FromRequest = fromRequest && len(out.Counters) > 0
	out.Matched = out.Rule != nil || out.FromRequest
	return out
}

// ruleOf is nil for no rule.
func ruleOf(r *adminv1.Rule) *Rule {
	if r == nil {
		return nil
	}
	return &Rule{
		Path: r.GetPath(), Name: r.GetName(), Unlimited: r.GetUnlimited(), Shadow: r.GetShadowMode(),
		File: r.GetPosition().GetFile(), Line: r.GetPosition().GetLine(), Column: r.GetPosition().GetColumn(),
	}
}

func stateOf(k *adminv1.CounterState) explain.State {
	return explain.State{
		Used: k.GetUsed(), Capacity: k.GetCapacity(), Remaining: k.GetRemaining(),
		WaitSeconds: k.GetWait().AsDuration().Seconds(), Never: k.GetWait() == nil,
		Reset: k.GetResetAfter().AsDuration().Seconds(), ResetAt: k.GetResetAt().AsTime().Round(time.Millisecond),
		Class: k.GetClass(), KeptForOthers: k.GetKeptForOthers(),
		Cached: k.GetFromOverLimitCache(), PenaltySeconds: k.GetPenalty().AsDuration().Seconds(),
	}
}
