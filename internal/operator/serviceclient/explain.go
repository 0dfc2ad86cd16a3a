package serviceclient

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/authoring/explain"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

// Explain returns which rule of the server a descriptor matches, and why. known reports whether the server has rules
// for the domain.
func (c *Client) Explain(ctx context.Context, domain string,
	entries []descriptor.Entry) (d explain.Descriptor, known bool, err error) {
	got, err := ask(ctx, c, adminv1.NewAdminServiceClient(c.conn).Explain,
		&adminv1.ExplainRequest{Domain: domain, Entries: Entries(entries)})
	if err != nil {
		return explain.Descriptor{}, false, err
	}
	d = explain.Descriptor{Entries: []explain.Entry{}, Levels: []explain.Level{}, Limits: []explain.Limit{},
		Reason: got.GetReason(), Matched: got.GetRule() != nil}
	for _, e := range entries {
		d.Entries = append(d.Entries, explain.Entry{Key: e.Key, Value: e.Value})
	}
	for _, l := range got.GetLevels() {
		level := explain.Level{Entry: explain.Entry{Key: l.GetEntry().GetKey(), Value: l.GetEntry().GetValue()},
			Candidates: []explain.Candidate{}, Reason: l.GetReason()}
		for _, x := range l.GetCandidates() {
			kind := strings.ToLower(strings.TrimPrefix(x.GetKind().String(), "MATCH_KIND_"))
			level.Candidates = append(level.Candidates, explain.Candidate{Kind: kind, Value: x.GetValue(), Taken: x.GetMatched(),
				Reason: x.GetReason()})
		}
		d.Levels = append(d.Levels, level)
	}
	if r := got.GetRule(); r != nil {
		flag := func(on bool) explain.Choice {
			if on {
				return explain.Choice{Value: "true", By: "rule"}
			}
			return explain.Choice{Value: "false", By: "rule"}
		}
		d.Rule = &explain.Rule{
			Path: r.GetPath(), Name: r.GetName(), Unlimited: r.GetUnlimited(), Replaces: r.GetReplaces(),
			File: r.GetPosition().GetFile(), Line: int(r.GetPosition().GetLine()), Column: int(r.GetPosition().GetColumn()),
			Shadow: flag(r.GetShadowMode()), Quota: flag(r.GetQuotaMode()),
		}
		if r.GetOnError() != "" {
			d.Rule.OnError = explain.Choice{Value: r.GetOnError(), By: "rule"}
		}
		for _, l := range r.GetLimits() {
			d.Limits = append(d.Limits, limitOf(l))
		}
	}
	return d, got.GetDomainKnown(), nil
}

// limitOf turns a limit of the admin service into one of a report.
func limitOf(m *adminv1.Limit) explain.Limit {
	l := descriptor.Limit{
		Name: m.GetName(), Requests: m.GetRequestsPerUnit(), Burst: m.GetBurst(), Precision: m.GetPrecision(),
		Window:   descriptor.Window{Unit: descriptor.ParseUnit(m.GetUnit()), Multiplier: m.GetUnitMultiplier()},
		Interval: m.GetRefill() == "interval", FirstHit: m.GetAlign() == "first_hit", Lease: m.GetLease(),
	}
	if n, err := strconv.ParseUint(m.GetNodelay(), 10, 32); err == nil {
		l.NoDelay = uint32(n)
	} else if m.GetNodelay() == "all" {
		l.NoDelay = descriptor.NoDelayAll
	}
	if m.CountDenied != nil {
		if l.CountDenied = descriptor.DeniedDrop; m.GetCountDenied() {
			l.CountDenied = descriptor.DeniedCount
		}
	}
	if i := slices.Index(descriptor.RegionModeNames, m.GetRegionMode()); i > 0 {
		l.Regions = &descriptor.Regions{Mode: descriptor.RegionMode(i), Home: m.GetRegionHome()}
	}
	for i, name := range descriptor.AlgorithmNames {
		if name == m.GetAlgorithm() {
			l.Algorithm = descriptor.Algorithm(i)
		}
	}
	if zone := m.GetCalendar(); zone != "" {
		if where, err := time.LoadLocation(zone); err == nil {
			l.Window.Location = where
		}
	}
	return explain.Limit{
		Regions: l.Regions, Lease: l.Lease, Home: m.GetCountingRegion(), Name: l.Name, Words: l.Words(), Requests: l.Requests,
		Unit: l.Window.Unit.String(), Multiplier: max(l.Window.Multiplier, 1),
		WindowSeconds: m.GetWindow().AsDuration().Seconds(), Algorithm: l.Algorithm.String(), Capacity: l.Capacity(),
		Key: string(m.GetCounterKey()),
	}
}
