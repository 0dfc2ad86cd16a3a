package operator

import (
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

func TestListRuleFiles(t *testing.T) {
	since := time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)
	r := start(t, Options{Rules: Rules{Files: func() []descriptor.FileStatus {
		return []descriptor.FileStatus{
			{Name: "c.yaml", State: descriptor.FileRejected, Errors: []string{"c.yaml:1:1: \xff"}},
			{Name: "b.yaml", State: descriptor.FileStale, Domains: []string{"b"}, Rules: 2, Errors: []string{"b.yaml:3:5: one", "b.yaml:4:1: two"}, Since: since},
			{Name: "a.yaml", State: descriptor.FileLoaded, Domains: []string{"a", "aa"}, Rules: 3, Since: since},
		}
	}}})
	got, err := adminv1.NewAdminServiceClient(r.admin).ListRuleFiles(within(t), &adminv1.ListRuleFilesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	want := &adminv1.ListRuleFilesResponse{Files: []*adminv1.RuleFile{
		{Name: "a.yaml", State: adminv1.RuleFileState_RULE_FILE_STATE_LOADED, Domains: []string{"a", "aa"}, Rules: 3, Since: timestamppb.New(since)},
		{Name: "b.yaml", State: adminv1.RuleFileState_RULE_FILE_STATE_STALE, Domains: []string{"b"}, Rules: 2, Since: timestamppb.New(since),
			Errors: []string{"b.yaml:3:5: one", "b.yaml:4:1: two"}},
		{Name: "c.yaml", State: adminv1.RuleFileState_RULE_FILE_STATE_REJECTED, Errors: []string{"c.yaml:1:1: \uFFFD"}},
	}}
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestExplain(t *testing.T) {
	weighed := &descriptor.Rule{Limits: []descriptor.Limit{{Requests: 5, Window: descriptor.Window{Unit: descriptor.Minute}}}}
	weighed.SetHitCost(&descriptor.HitCost{Factor: 3, Tables: []descriptor.CostTable{{Key: "model", Values: map[string]uint64{"large": 10}, Other: 2}}})
	tree, err := descriptor.Compile([]descriptor.DomainSpec{{Name: "edge", Children: []descriptor.NodeSpec{
		{Key: "path", Value: "/a*", Rule: &descriptor.Rule{
			Name: "r", Replaces: []string{"x"}, RuleSettings: descriptor.RuleSettings{Shadow: true, Quota: true, DetailedMetric: true},
			Limits:   []descriptor.Limit{{Name: "r", Requests: 5, Window: descriptor.Window{Unit: descriptor.Minute}}},
			Position: descriptor.Position{File: "a.yaml", Line: 4, Col: 5},
		}},
		{Key: "path", Value: "/b", Rule: &descriptor.Rule{Unlimited: true}},
		{Key: "model", Rule: weighed},
	}}}, descriptor.Options{})

	if err != nil {
		t.Fatal(err)
	}
	r := start(t, Options{Rules: Rules{Explain: func(domain string, entries []descriptor.Entry) descriptor.Explanation {
		return tree.Domain(domain).Explain(entries, descriptor.KeyBuilder{Prefix: "p:"})
	}}})
	client := adminv1.NewAdminServiceClient(r.admin)

	got, err := client.Explain(within(t), &adminv1.ExplainRequest{Domain: "edge", Entries: []*adminv1.Entry{{Key: "path", Value: "/abc"}}})
	if err != nil {
		t.Fatal(err)
	}
	want := &adminv1.ExplainResponse{
		DomainKnown: true,
		Rule: &adminv1.Rule{
			Path: "edge.path_/a*", Name: "r", ShadowMode: true, QuotaMode: true, Replaces: []string{"x"}, DetailedMetric: true,
			Position: &adminv1.Position{File: "a.yaml", Line: 4, Column: 5},
			Limits: []*adminv1.Limit{{
				Name: "r", RequestsPerUnit: 5, Unit: "minute", UnitMultiplier: 1, Window: durationpb.New(time.Minute),
				Algorithm: "fixed_window", Align: "clock", CounterKey: []byte("p:edge|path=/abc|f60"),
			}},
		},
		Levels: []*adminv1.Level{{
			Entry: &adminv1.Entry{Key: "path", Value: "/abc"},
			Candidates: []*adminv1.Candidate{
				{Kind: adminv1.MatchKind_MATCH_KIND_EXACT, Reason: `"/abc" differs from "/b", the only exact value`},
				{Kind: adminv1.MatchKind_MATCH_KIND_WILDCARD, Value: "/a*", Matched: true, Reason: `"/abc" fits the pattern`},
			},
		}},
	}
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}

	unlimited, err := client.Explain(within(t), &adminv1.ExplainRequest{Domain: "edge", Entries: []*adminv1.Entry{{Key: "path", Value: "/b"}}})
	if err != nil || !unlimited.GetRule().GetUnlimited() || unlimited.GetReason() != "" {
		t.Errorf("unlimited: %v, %v", unlimited, err)
	}
	for value, cost := range map[string]uint64{"large": 30, "small": 6} {
		got, err := client.Explain(within(t), &adminv1.ExplainRequest{Domain: "edge", Entries: []*adminv1.Entry{{Key: "model", Value: value}}})
		if err != nil || got.GetRule().GetHitCost() != cost {
			t.Errorf("a hit of the %s model: %v, %v, want %d", value, got.GetRule(), err, cost)
		}
	}
	unknown, err := client.Explain(within(t), &adminv1.ExplainRequest{Domain: "nobody", Entries: []*adminv1.Entry{{Key: "path", Value: "/b"}}})
	if err != nil || unknown.GetDomainKnown() || unknown.GetRule() != nil || unknown.GetReason() == "" {
		t.Errorf("unknown domain: %v, %v", unknown, err)
	}
	misspelt, err := client.Explain(within(t), &adminv1.ExplainRequest{Domain: "edge", Entries: kv("paht=/b")})
	if err != nil || misspelt.GetReason() != `nothing matches entry 1, "paht"="/b": did you mean "path"?` {
		t.Errorf("a misspelt key: %v, %v", misspelt, err)
	}
	if _, err := client.Explain(within(t), &adminv1.ExplainRequest{}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("no domain: %v", err)
	}
}

// Requests of operators have the same bounds as requests of clients.
func TestExplainIsBounded(t *testing.T) {
	var asked atomic.Int32
	r := start(t, Options{
		Rules: Rules{Explain: func(string, []descriptor.Entry) descriptor.Explanation {
			asked.Add(1)
			return descriptor.Explanation{}
		}},
		Bounds: Bounds{MaxEntries: 2, MaxTextBytes: 10},
	})
	client := adminv1.NewAdminServiceClient(r.admin)
	for name, c := range map[string]struct {
		req  *adminv1.ExplainRequest
		code codes.Code
		says string
	}{
		"as much as is allowed": {&adminv1.ExplainRequest{Domain: "0123456789", Entries: kv("0123456789=0123456789", "k=v")}, codes.OK, ""},
		"many entries":          {&adminv1.ExplainRequest{Domain: "d", Entries: kv("k=v", "k=v", "k=v")}, codes.InvalidArgument, "entries: more than 2"},
		"a long domain":         {&adminv1.ExplainRequest{Domain: "0123456789a", Entries: kv("k=v")}, codes.InvalidArgument, "domain: more than 10 bytes"},
		"a long key":            {&adminv1.ExplainRequest{Domain: "d", Entries: kv("0123456789a=v")}, codes.InvalidArgument, "entries[0]: a key or a value of more than 10 bytes"},
		"a long value":          {&adminv1.ExplainRequest{Domain: "d", Entries: kv("k=v", "k=0123456789a")}, codes.InvalidArgument, "entries[1]: a key or a value of more than 10 bytes"},
		"a message that would take much memory": {&adminv1.ExplainRequest{Domain: "d", Entries: make([]*adminv1.Entry, maxMessageBytes/2)},
			codes.ResourceExhausted, "larger than configured max"},
	} {
		for i, e := range c.req.Entries {
			if e == nil {
				c.req.Entries[i] = new(adminv1.Entry)
			}
		}
		_, err := client.Explain(within(t), c.req)
		if status.Code(err) != c.code || !strings.Contains(status.Convert(err).Message(), c.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if n := asked.Load(); n != 1 {
		t.Errorf("%d requests were explained, want 1", n)
	}
}

// Every extension that a rule may have is shown to an operator.
func TestExplainShowsEveryExtension(t *testing.T) {
	zone, err := time.LoadLocation("Asia/Seoul")
	if err != nil {
		t.Fatal(err)
	}
	minute := descriptor.Window{Unit: descriptor.Minute}
	tree, err := descriptor.Compile([]descriptor.DomainSpec{{Name: "edge", Children: []descriptor.NodeSpec{
		{Key: "ip", Kind: descriptor.MatchCIDR, Value: "10.0.0.0/8", Rule: &descriptor.Rule{RuleSettings: descriptor.RuleSettings{OnError: descriptor.OnErrorLocal}, Limits: []descriptor.Limit{
			{Name: "a", Requests: 5, Window: descriptor.Window{Unit: descriptor.Day, Location: zone}, CountDenied: descriptor.DeniedDrop},
			{Name: "b", Requests: 5, Window: minute, Algorithm: descriptor.SlidingWindow, Precision: 3},
			{Name: "c", Requests: 5, Window: minute, Algorithm: descriptor.TokenBucket, Interval: true, FirstHit: true, Burst: 9, Lease: true},
			{Name: "d", Requests: 5, Window: minute, Algorithm: descriptor.TokenBucket},
			{Name: "e", Requests: 5, Window: minute, Algorithm: descriptor.LeakyBucket, Burst: 7, NoDelay: descriptor.NoDelayAll},
			{Name: "f", Requests: 5, Window: minute, Algorithm: descriptor.SlidingLog, CountDenied: descriptor.DeniedCount},
		}}},
		{Key: "ip", Kind: descriptor.MatchRegex, Value: "1.*", Rule: &descriptor.Rule{Unlimited: true}},
		{Key: "ip", Kind: descriptor.MatchValues, Values: []string{"x"}, Rule: &descriptor.Rule{Unlimited: true}},
	}}}, descriptor.Options{})

	if err != nil {
		t.Fatal(err)
	}
	x := tree.Domain("edge").Explain([]descriptor.Entry{{Key: "ip", Value: "10.1.1.1"}}, descriptor.KeyBuilder{})
	got := ruleMessage(&x)
	for _, l := range got.Limits {
		l.CounterKey, l.Window, l.RequestsPerUnit, l.UnitMultiplier = nil, nil, 0, 0
	}
	want := []*adminv1.Limit{
		{Name: "a", Unit: "day", Algorithm: "fixed_window", Calendar: "Asia/Seoul", CountDenied: proto.Bool(false)},
		{Name: "b", Unit: "minute", Algorithm: "sliding_window", Precision: 3},
		{Name: "c", Unit: "minute", Algorithm: "token_bucket", Refill: "interval", Align: "first_hit", Burst: 9, Lease: true},
		{Name: "d", Unit: "minute", Algorithm: "token_bucket", Refill: "greedy", Burst: 5},
		{Name: "e", Unit: "minute", Algorithm: "leaky_bucket", Burst: 7, Nodelay: "all"},
		{Name: "f", Unit: "minute", Algorithm: "sliding_log", CountDenied: proto.Bool(true)},
	}
	if diff := cmp.Diff(want, got.Limits, protocmp.Transform()); diff != "" || got.OnError != "local" {
		t.Errorf("on_error %q, limits (-want +got):\n%s", got.OnError, diff)
	}
	var kinds []adminv1.MatchKind
	for _, c := range levelMessage(&x.Levels[0]).Candidates {
		kinds = append(kinds, c.Kind)
	}
	if diff := cmp.Diff([]adminv1.MatchKind{adminv1.MatchKind_MATCH_KIND_VALUES, adminv1.MatchKind_MATCH_KIND_CIDR, adminv1.MatchKind_MATCH_KIND_REGEX}, kinds); diff != "" {
		t.Errorf("candidates (-want +got):\n%s", diff)
	}
}

func TestAdminWithoutAnythingToShow(t *testing.T) {
	r := start(t, Options{})
	client := adminv1.NewAdminServiceClient(r.admin)
	if _, err := client.ListRuleFiles(within(t), &adminv1.ListRuleFilesRequest{}); status.Code(err) != codes.Unimplemented {
		t.Errorf("ListRuleFiles: %v", err)
	}
	if _, err := client.Explain(within(t), &adminv1.ExplainRequest{Domain: "d"}); status.Code(err) != codes.Unimplemented {
		t.Errorf("Explain: %v", err)
	}
}

// A panic in any other service is caught as well.
func TestAdminPanicIsInternal(t *testing.T) {
	r := start(t, Options{Rules: Rules{Files: func() []descriptor.FileStatus { panic("kaboom") }}})
	if _, err := adminv1.NewAdminServiceClient(r.admin).ListRuleFiles(within(t), &adminv1.ListRuleFilesRequest{}); status.Code(err) != codes.Internal {
		t.Errorf("got %v", err)
	}
	if code, body := get(t, r.DebugAddr, "/rlconfig"); code == 500 && body == "" {
		t.Errorf("/rlconfig: %d %q", code, body)
	}
}
