package operator

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ratelimitd/ratelimitd/internal/config/override"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
	"github.com/ratelimitd/ratelimitd/internal/platform/logging"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

// Counters looks at the counters of a descriptor and clears them. Its errors come from package limiter.
type Counters interface {
	Peek(ctx context.Context, now time.Time, domain string, d *limiter.Descriptor) (limiter.Counters, error)
	Reset(ctx context.Context, now time.Time, domain string, d *limiter.Descriptor) (limiter.Counters, error)
}

// counters is the ratelimitd.admin.v1.CounterService.
type counters struct {
	counters Counters
	explain  func(domain string, entries []descriptor.Entry) descriptor.Explanation // nil without regions
	regions  Regions
	bounds   Bounds
	log      *slog.Logger
}

// counterRequest has the fields that the requests of both methods share.
type counterRequest interface {
	describing
	GetLimit() *adminv1.RequestLimit
}

// Peek implements adminconnect.CounterServiceHandler.
func (c *counters) Peek(ctx context.Context, req *adminv1.PeekRequest) (*adminv1.PeekResponse, error) {
	d, err := c.read(req)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	found, err := c.counters.Peek(ctx, now, req.GetDomain(), d)
	if err != nil {
		return nil, errorOf(err)
	}
	return peekMessage(now, d.Entries, &found), nil
}

func peekMessage(now time.Time, entries []descriptor.Entry, found *limiter.Counters) *adminv1.PeekResponse {
	m := &adminv1.PeekResponse{
		DomainKnown: found.Explanation.Known, Rule: ruleOf(found), Reason: reasonOf(entries, found),
		Counters: counterMessages(now, found),
	}
	if found.Override != nil {
		m.Override = found.Override.Words()
	}
	return m
}

// Reset implements adminconnect.CounterServiceHandler.
func (c *counters) Reset(ctx context.Context, req *adminv1.ResetRequest) (*adminv1.ResetResponse, error) {
	d, err := c.read(req)
	if err != nil {
		return nil, err
	}
	if !d.HasLimit { // a limit that the request carries counts in this region
		if err := c.elsewhere(req.GetDomain(), d.Entries, "reset it"); err != nil {
			return nil, connect.NewError(connect.CodeFailedPrecondition, err)
		}
	}
	now := time.Now()
	found, err := c.clear(ctx, now, req.GetDomain(), d)
	if err != nil {
		return nil, errorOf(err)
	}
	x := &found.Explanation
	return &adminv1.ResetResponse{
		DomainKnown: x.Known, Rule: ruleOf(&found), Reason: reasonOf(d.Entries, &found),
		Counters: counterMessages(now, &found),
	}, nil
}

// elsewhere returns an error that names the region, if another one counts a descriptor: only that region can do the
// requested operation.
func (c *counters) elsewhere(domain string, entries []descriptor.Entry, do string) error {
	if c.regions.HomeElsewhere == nil || c.explain == nil {
		return nil
	}
	x := c.explain(domain, entries)
	for i, key := range x.Keys {
		if home, elsewhere := c.regions.HomeElsewhere([]byte(key), &x.Rule.Limits[i]); elsewhere {
			return fmt.Errorf("the counter belongs to the region %s: %s there", home, do)
		}
	}
	return nil
}

// clear clears the counters of a descriptor. The log names the operator, even when it fails.
func (c *counters) clear(ctx context.Context, now time.Time, domain string,
	d *limiter.Descriptor) (limiter.Counters, error) {
	found, err := c.counters.Reset(ctx, now, domain, d)
	who := actorOf(ctx)
	c.audit(ctx, &who, domain, d, &found, err)
	return found, err //nolint:wrapcheck // errorOf knows it
}

// audit logs a reset.
func (c *counters) audit(ctx context.Context, who *actor, domain string, d *limiter.Descriptor, found *limiter.Counters,
	err error) {
	attrs := append(who.attrs(), slog.String("domain", logging.Shorten(domain)),
		slog.String("entries", override.ShortText(d.Entries)))
	if found.FromRequest {
		attrs = append(attrs, slog.String("rule", "limit of the request"))
	} else if r := found.Explanation.Rule; r != nil {
		attrs = append(attrs, slog.String("rule", r.Path))
	}
	result := "cleared"
	switch {
	case err != nil:
		result = "failed: the counters may be cleared or not"
		attrs = append(attrs, slog.String("error", err.Error()))
	case len(found.List) == 0:
		result = "nothing to clear"
	default:
		var keys []string
		var used []int64
		for i := range found.List {
			keys = append(keys, validText(found.List[i].Key))
			used = append(used, found.List[i].Used)
		}
		attrs = append(attrs, slog.Any("keys", keys), slog.Any("used", used))
	}
	c.log.LogAttrs(ctx, slog.LevelWarn, "reset of counters", append(attrs, slog.String("result", result))...)
}

// read checks a request and returns its descriptor.
func (c *counters) read(req counterRequest) (*limiter.Descriptor, error) {
	if len(req.GetEntries()) == 0 {
		return nil, invalid("entries must not be empty")
	}
	entries, err := c.bounds.entries(req)
	if err != nil {
		return nil, err
	}
	d := &limiter.Descriptor{Entries: entries}
	if o := req.GetLimit(); o != nil {
		unit := descriptor.ParseUnit(o.GetUnit())
		if !unit.OnWire() {
			return nil, invalid("limit.unit is %q, which is not a unit of time: use one of %v", logging.Shorten(o.GetUnit()),
				descriptor.WireUnitNames)
		}
		d.HasLimit = true
		d.Limit = limiter.RequestLimit{Requests: o.GetRequestsPerUnit(), Unit: int32(unit), Multiplier: o.GetUnitMultiplier()}
	}
	return d, nil
}

func ruleOf(c *limiter.Counters) *adminv1.Rule {
	if c.FromRequest {
		return nil
	}
	return ruleMessage(&c.Explanation)
}

func reasonOf(entries []descriptor.Entry, c *limiter.Counters) string {
	if c.FromRequest {
		return ""
	}
	return reasonWithGuess(entries, &c.Explanation)
}

func counterMessages(now time.Time, c *limiter.Counters) []*adminv1.CounterState {
	var all []*adminv1.CounterState
	for i := range c.List {
		k := &c.List[i]
		limit := limitMessage(&k.Limit)
		limit.CounterKey = []byte(k.Key)
		m := &adminv1.CounterState{
			Limit:              limit,
			Words:              validText(k.Words()),
			Capacity:           k.Limit.Capacity(),
			Used:               uint64(max(k.Used, 0)),
			Remaining:          k.Remaining,
			ResetAfter:         durationpb.New(k.Reset),
			ResetAt:            timestamppb.New(now.Add(k.Reset)),
			FromOverLimitCache: k.Cached,
			Class:              validText(k.Class()),
			KeptForOthers:      uint64(k.Kept),
		}
		if k.Wait >= 0 {
			m.Wait = durationpb.New(k.Wait)
		}
		if k.Penalty > 0 {
			m.Penalty = durationpb.New(k.Penalty)
		}
		all = append(all, m)
	}
	return all
}
