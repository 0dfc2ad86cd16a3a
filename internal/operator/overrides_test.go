package operator

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ratelimitd/ratelimitd/internal/backend/memory"
	"github.com/ratelimitd/ratelimitd/internal/config/override"
	"github.com/ratelimitd/ratelimitd/internal/config/override/redissource"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/lending/regions"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
	"github.com/ratelimitd/ratelimitd/internal/testkit/servicetest"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

// overriding is a server with overrides in a Redis.
type overriding struct {
	*running
	client  adminv1.OverrideServiceClient
	limiter *limiter.Limiter
	applied chan int64 // the versions of the sets, as they come into force
}

func startOverriding(t *testing.T) *overriding {
	t.Helper()
	year := descriptor.Window{Unit: descriptor.Year}
	tree, err := descriptor.Compile([]descriptor.DomainSpec{{Name: "d", Children: []descriptor.NodeSpec{
		{Key: "k", Rule: &descriptor.Rule{Name: "tenant", RuleSettings: descriptor.RuleSettings{OverrideMax: descriptor.OverrideUnbounded}, Limits: []descriptor.Limit{{Requests: 5, Window: year}}}},
		{Key: "bounded", Rule: &descriptor.Rule{RuleSettings: descriptor.RuleSettings{OverrideMax: 100}, Limits: []descriptor.Limit{{Requests: 5, Window: year}}}},
		{Key: "two", Rule: &descriptor.Rule{RuleSettings: descriptor.RuleSettings{OverrideMax: descriptor.OverrideUnbounded}, Limits: []descriptor.Limit{
			{Name: "short", Requests: 5, Window: descriptor.Window{Unit: descriptor.Hour}}, {Name: "long", Requests: 50, Window: year},
		}}},
		{Key: "fold", FoldCase: true, Rule: &descriptor.Rule{RuleSettings: descriptor.RuleSettings{OverrideMax: descriptor.OverrideUnbounded}, Limits: []descriptor.Limit{{Requests: 5, Window: year}}}},
		{Key: "far", Rule: &descriptor.Rule{RuleSettings: descriptor.RuleSettings{OverrideMax: descriptor.OverrideUnbounded}, Limits: []descriptor.Limit{
			{Requests: 5, Window: year, Regions: &descriptor.Regions{Mode: descriptor.AtHome, Home: "us"}},
		}}},
		{Key: "near", Rule: &descriptor.Rule{RuleSettings: descriptor.RuleSettings{OverrideMax: descriptor.OverrideUnbounded}, Limits: []descriptor.Limit{
			{Requests: 5, Window: year, Regions: &descriptor.Regions{Mode: descriptor.AtHome, Home: "eu"}},
		}}},
		{Key: "about", Rule: &descriptor.Rule{RuleSettings: descriptor.RuleSettings{OverrideMax: descriptor.OverrideUnbounded}, Limits: []descriptor.Limit{
			{Requests: 5, Window: year, Regions: &descriptor.Regions{Mode: descriptor.Eventual}},
		}}},
		{Key: "hash", Rule: &descriptor.Rule{RuleSettings: descriptor.RuleSettings{OverrideMax: descriptor.OverrideUnbounded}, Limits: []descriptor.Limit{
			{Name: "short", Requests: 5, Window: descriptor.Window{Unit: descriptor.Hour}, Regions: &descriptor.Regions{Mode: descriptor.AtHome}},
			{Name: "long", Requests: 50, Window: year, Regions: &descriptor.Regions{Mode: descriptor.AtHome}},
		}}},
		{Key: "fixed", Rule: &descriptor.Rule{Limits: []descriptor.Limit{{Requests: 5, Window: year}}}},
	}}}, descriptor.Options{})
	if err != nil {
		t.Fatal(err)
	}
	store := memory.New(memory.Options{})
	across, err := regions.New(regions.Options{Store: store, Region: "eu", Regions: []string{"eu", "us"}})
	if err != nil {
		t.Fatal(err)
	}
	o := &overriding{limiter: limiter.New(limiter.Options{Store: store}), applied: make(chan int64, 1000)}
	o.limiter.Swap(tree, limiter.Settings{})
	source := redissource.New(redissource.Options{Client: redistest.Start(t).Client(t), Log: slog.New(slog.DiscardHandler)})
	servicetest.Serve(t, func(ctx context.Context) error {
		return source.Run(ctx, func(s *override.Set) {
			o.limiter.SetOverrides(s)
			o.applied <- s.Version
		})
	})
	<-source.Tried()
	o.running = start(t, Options{
		Counters: o.limiter, Rules: Rules{Tree: o.limiter.Tree, Explain: o.limiter.Explain}, Access: Access{Tokens: owners{annsToken: "ann"}},
		Overrides: Overrides{Source: source, Name: "redis", Up: source.Up, InForce: o.limiter.Overrides, Peek: o.limiter.PeekWith},
		Regions:   Regions{Status: across.Status, HomeElsewhere: across.HomeElsewhere},
	})
	o.client = adminv1.NewOverrideServiceClient(o.admin)
	return o
}

func (o *overriding) ctx(t *testing.T) context.Context {
	t.Helper()
	return with(within(t), "Bearer "+annsToken)
}

// await waits until a version is active.
func (o *overriding) await(t *testing.T, version int64) {
	t.Helper()
	for deadline := time.After(patience); ; {
		select {
		case v := <-o.applied:
			if v >= version {
				return
			}
		case <-deadline:
			t.Fatalf("version %d is not in force", version)
		}
	}
}

// used asks for n hits of k=value, and returns how many pass.
func (o *overriding) used(t *testing.T, value string, n int) (passed int) {
	t.Helper()
	for range n {
		req := &limiter.Request{Domain: "d", Descriptors: []limiter.Descriptor{{Entries: []descriptor.Entry{{Key: "k", Value: value}}}}}
		var d limiter.Decision
		if err := o.limiter.Decide(t.Context(), time.Now(), req, &d); err != nil {
			t.Fatal(err)
		}
		if d.Code == limiter.OK {
			passed++
		}
	}
	return passed
}

func writeOf(changes ...*adminv1.Override) (writes []*adminv1.OverrideWrite) {
	for _, o := range changes {
		writes = append(writes, &adminv1.OverrideWrite{Override: o})
	}
	return writes
}

func requests(n uint64, rule string, pairs ...string) *adminv1.Override {
	return &adminv1.Override{Domain: "d", Rule: rule, Entries: kv(pairs...), RequestsPerUnit: proto.Uint64(n)}
}

// An override goes through its life: a dry run, written, changed under a condition, listed, removed; and each step is
// audited.
func TestLifeOfAnOverride(t *testing.T) {
	o := startOverriding(t)
	if n := o.used(t, "v", 7); n != 5 {
		t.Fatalf("%d of 7 pass", n)
	}
	first := requests(8, "tenant", "k=v")
	first.Reason = "they paid"
	dry, err := o.client.Set(o.ctx(t), &adminv1.OverrideServiceSetRequest{Writes: writeOf(first), DryRun: true})
	if err != nil {
		t.Fatal(err)
	}
	e := dry.GetChanges()[0].GetEffects()[0]
	if e.GetCapacityBefore() != 5 || e.GetCapacityAfter() != 8 || !e.GetDeniedBefore() || e.GetDeniedAfter() || e.GetWordsBefore() != "5 per year, fixed window" {
		t.Errorf("the effect: %v", e)
	}
	if st, err := o.client.Status(o.ctx(t), &adminv1.OverrideServiceStatusRequest{}); err != nil || st.GetCount() != 0 || st.GetSource() != "redis" || !st.GetUp() {
		t.Errorf("after a dry run: %v %v", st, err)
	}
	if len(o.log.With("change of an override")) != 0 {
		t.Errorf("a dry run is in the audit:\n%s", o.log)
	}

	set, err := o.client.Set(o.ctx(t), &adminv1.OverrideServiceSetRequest{Writes: writeOf(first)})
	if err != nil {
		t.Fatal(err)
	}
	after := set.GetChanges()[0].GetAfter()
	if after.GetRule() != "d.k" || after.GetAuthor() != "ann" || after.GetVersion() == 0 || after.GetChangedAt() == nil || set.GetChanges()[0].GetBefore() != nil {
		t.Errorf("written: %v", set)
	}
	o.await(t, after.GetVersion())
	if st, err := o.client.Status(o.ctx(t), &adminv1.OverrideServiceStatusRequest{}); err != nil || st.GetCount() != 1 || st.GetVersion() != after.GetVersion() {
		t.Errorf("after a write: %v %v", st, err)
	}
	if n := o.used(t, "w", 7); n != 5 {
		t.Errorf("another caller: %d of 7 pass", n)
	}

	if dry, err := o.client.Set(o.ctx(t), &adminv1.OverrideServiceSetRequest{Writes: writeOf(first), DryRun: true}); err != nil || dry.GetChanges()[0].GetBefore().GetReason() != "they paid" {
		t.Errorf("a dry run shows what is there: %v %v", dry, err)
	}

	second := &adminv1.Override{Domain: "d", Rule: "d.k", Entries: kv("k=v"), Blocked: true}
	stale := &adminv1.OverrideServiceSetRequest{Writes: []*adminv1.OverrideWrite{{Override: second, ExpectVersion: proto.Int64(after.GetVersion() + 1)}}}
	for _, stale.DryRun = range []bool{true, false} {
		if _, err := o.client.Set(o.ctx(t), stale); status.Code(err) != codes.Aborted || !strings.Contains(err.Error(), fmt.Sprintf("found %d", after.GetVersion())) {
			t.Errorf("a write on a version that is not there, dry %v: %v", stale.DryRun, err)
		}
	}
	stale.Writes[0].ExpectVersion = proto.Int64(after.GetVersion())
	changed, err := o.client.Set(o.ctx(t), stale)
	if err != nil || changed.GetChanges()[0].GetBefore().GetReason() != "they paid" {
		t.Fatalf("a conditional write: %v %v", changed, err)
	}
	o.await(t, changed.GetChanges()[0].GetAfter().GetVersion())
	if n := o.used(t, "v", 2); n != 0 {
		t.Errorf("blocked: %d of 2 pass", n)
	}
	list, err := o.client.List(o.ctx(t), &adminv1.OverrideServiceListRequest{Domain: "d", Rule: "tenant", Where: map[string]string{"k": "v"}})
	if err != nil || len(list.GetOverrides()) != 1 || !list.GetOverrides()[0].GetBlocked() {
		t.Errorf("List: %v %v", list, err)
	}

	remove := &adminv1.OverrideServiceRemoveRequest{Writes: writeOf(&adminv1.Override{Domain: "d", Rule: "tenant", Entries: kv("k=v"), Reason: "enough"}), DryRun: true}
	if gone, err := o.client.Remove(o.ctx(t), remove); err != nil || gone.GetChanges()[0].GetEffects()[0].GetWordsBefore() != "blocked" || gone.GetChanges()[0].GetAfter() != nil {
		t.Errorf("a removal, dry: %v %v", gone, err)
	}
	remove.DryRun = false
	for i, before := range []bool{true, false} {
		gone, err := o.client.Remove(o.ctx(t), remove)
		if err != nil || gone.GetChanges()[0].GetBefore().GetBlocked() != before {
			t.Errorf("removal %d: %v %v", i, gone, err)
		}
	}
	history, err := o.client.History(o.ctx(t), &adminv1.OverrideServiceHistoryRequest{Domain: "d"})
	if err != nil || len(history.GetEvents()) != 3 || history.GetEvents()[0].GetAfter() != nil || history.GetEvents()[0].GetReason() != "enough" || history.GetEvents()[2].GetBefore() != nil {
		t.Errorf("History: %v %v", history, err)
	}

	audit := o.log.With(`msg="change of an override"`)
	want := [][]string{
		{"level=WARN", "from=127.0.0.1:", "token_of=ann", "domain=d", "rule=d.k", "before=none", `after="8 requests per unit"`, `reason="they paid"`, "version=", "result=done"},
		{"after=blocked", "error=", "result=failed"},
		{`before="8 requests per unit"`, "after=blocked", "result=done"},
		{"before=blocked", "after=none", "reason=enough", "result=done"},
		{"before=none", `result="nothing to remove"`},
	}
	if len(audit) != len(want) {
		t.Fatalf("%d lines of audit:\n%s", len(audit), o.log)
	}
	for i := range want {
		for _, part := range want[i] {
			if !strings.Contains(audit[i], part) {
				t.Errorf("line %d does not have %s: %s", i, part, audit[i])
			}
		}
	}
}

// An override of a counter in another region is rejected with that region's name. One that was set before a home moved
// can be removed.
func TestOverrideOfAnotherRegion(t *testing.T) {
	o := startOverriding(t)
	blocked := func(rule, pair string) *adminv1.Override {
		return &adminv1.Override{Domain: "d", Rule: rule, Entries: kv(pair), Blocked: true}
	}
	try := func(w *adminv1.Override, elsewhere bool) {
		t.Helper()
		for _, dry := range []bool{true, false} {
			_, err := o.client.Set(o.ctx(t), &adminv1.OverrideServiceSetRequest{Writes: writeOf(requests(9, "d.k", "k=other"), w), DryRun: dry})
			if s := status.Convert(err); elsewhere && (s.Code() != codes.FailedPrecondition || s.Message() != "writes[1].override.entries: the counter belongs to the region us: set the override there") {
				t.Errorf("%v, dry %t: %v", w, dry, err)
			} else if !elsewhere && err != nil && !dry {
				t.Errorf("%v: %v", w, err)
			}
		}
		if n := o.log.With("entries=k=other"); elsewhere && len(n) > 0 {
			t.Errorf("another override of the call was written:\n%s", o.log)
		}
	}
	try(requests(7, "d.far", "far=v"), true)
	try(blocked("d.far", "far=v"), true)
	met := make(map[string]bool)
	for i := 0; len(met) < 2 && i < 1000; i++ {
		pair := fmt.Sprint("hash=", i)
		limits := o.explain(t, pair).GetLimits()
		home := limits[0].GetCountingRegion()
		if limits[1].GetCountingRegion() != home {
			t.Fatalf("the limits of one rule have two homes: %v", limits)
		}
		if home == "us" {
			try(blocked("d.hash", pair), true)
		}
		met[home] = true
	}
	if !met["eu"] || !met["us"] {
		t.Errorf("of 1000 callers there are only those with the homes %v", met)
	}
	if _, err := o.client.Remove(o.ctx(t), &adminv1.OverrideServiceRemoveRequest{Writes: writeOf(requests(7, "d.far", "far=v"))}); err != nil {
		t.Errorf("it cannot be removed: %v", err)
	}
	try(requests(7, "d.near", "near=v"), false)
	try(requests(7, "d.about", "about=v"), false)
}

// explain returns the rule that an entry matches.
func (o *overriding) explain(t *testing.T, pair string) *adminv1.Rule {
	t.Helper()
	x, err := adminv1.NewAdminServiceClient(o.admin).Explain(o.ctx(t), &adminv1.ExplainRequest{Domain: "d", Entries: kv(pair)})
	if err != nil || x.GetRule() == nil {
		t.Fatal(x, err)
	}
	return x.GetRule()
}

// A reset of a counter in another region is rejected with that region's name.
func TestResetOfAnotherRegion(t *testing.T) {
	o := startOverriding(t)
	counters := adminv1.NewCounterServiceClient(o.admin)
	if _, err := counters.Reset(o.ctx(t), &adminv1.ResetRequest{Domain: "d", Entries: kv("near=v")}); err != nil {
		t.Error(err)
	}
	_, err := counters.Reset(o.ctx(t), &adminv1.ResetRequest{Domain: "d", Entries: kv("far=v")})
	if status.Code(err) != codes.FailedPrecondition || status.Convert(err).Message() != "the counter belongs to the region us: reset it there" {
		t.Error(err)
	}
}

// Under a rule that groups values, an override is for the grouped value. One that was written before the values were
// grouped can be removed.
func TestOverrideOfGroupedValues(t *testing.T) {
	o := startOverriding(t)
	set, err := o.client.Set(o.ctx(t), &adminv1.OverrideServiceSetRequest{Writes: writeOf(requests(7, "d.fold", "fold=ACME"))})
	if err != nil || set.GetChanges()[0].GetAfter().GetEntries()[0].GetValue() != "acme" {
		t.Fatal(set, err)
	}
	o.await(t, set.GetChanges()[0].GetAfter().GetVersion())
	removed, err := o.client.Remove(o.ctx(t), &adminv1.OverrideServiceRemoveRequest{Writes: writeOf(requests(7, "d.fold", "fold=Acme"))})
	if err != nil || removed.GetChanges()[0].GetBefore().GetRequestsPerUnit() != 7 {
		t.Fatal(removed, err)
	}
	old := override.Identity{Domain: "d", Rule: "d.fold", Entries: []descriptor.Entry{{Key: "fold", Value: "ACME"}}}
	had := new(override.Set).With(1, []override.Change{{Identity: old, Numbers: override.Numbers{Kind: override.Blocked}}})
	for _, test := range []struct {
		set  *override.Set
		want string
	}{{had, "ACME"}, {new(override.Set), "acme"}} {
		got := override.Override{Identity: old}
		toRemove(o.limiter.Tree(), test.set, &got)
		if got.Entries[0].Value != test.want {
			t.Errorf("%s would be removed, want %s", got.Entries[0].Value, test.want)
		}
	}
}

// The override of one of several limits can be removed when that limit is the only one, also next to an override of the
// rule.
func TestOverrideOfALimitThatIsLeft(t *testing.T) {
	o := startOverriding(t)
	named, unnamed := requests(7, "d.two", "two=v"), requests(8, "d.two", "two=v")
	named.Limit = "short"
	if _, err := o.client.Set(o.ctx(t), &adminv1.OverrideServiceSetRequest{Writes: writeOf(named)}); err != nil {
		t.Fatal(err)
	}
	tree, err := descriptor.Compile([]descriptor.DomainSpec{{Name: "d", Children: []descriptor.NodeSpec{{Key: "two", Rule: &descriptor.Rule{
		RuleSettings: descriptor.RuleSettings{OverrideMax: descriptor.OverrideUnbounded},
		Limits:       []descriptor.Limit{{Name: "short", Requests: 5, Window: descriptor.Window{Unit: descriptor.Hour}}},
	}}}}}, descriptor.Options{})
	if err != nil {
		t.Fatal(err)
	}
	o.limiter.Swap(tree, limiter.Settings{})
	set, err := o.client.Set(o.ctx(t), &adminv1.OverrideServiceSetRequest{Writes: writeOf(unnamed)})
	if err != nil {
		t.Fatal(err)
	}
	version := set.GetChanges()[0].GetAfter().GetVersion()
	for _, want := range []uint64{7, 8} { // the override that names the limit goes first
		o.await(t, version)
		removed, err := o.client.Remove(o.ctx(t), &adminv1.OverrideServiceRemoveRequest{Writes: writeOf(named)})
		if err != nil || removed.GetChanges()[0].GetBefore().GetRequestsPerUnit() != want {
			t.Errorf("%v %v, want that of %d", removed, err, want)
		}
		version++
	}
}

// An override with a reset immediately frees the hits that the old limit had used up. A dry run reports this, and
// clears nothing.
func TestOverrideWithReset(t *testing.T) {
	o := startOverriding(t)
	if n := o.used(t, "v", 7); n != 5 {
		t.Fatalf("%d of 7 pass", n)
	}
	req := &adminv1.OverrideServiceSetRequest{Writes: writeOf(requests(4, "tenant", "k=v"), requests(0, "tenant", "k=none")), ResetCounters: true, DryRun: true}
	dry, err := o.client.Set(o.ctx(t), req)
	if err != nil {
		t.Fatal(err)
	}
	for i, denied := range []bool{false, true} {
		if e := dry.GetChanges()[i].GetEffects()[0]; e.GetDeniedAfter() != denied || len(dry.GetChanges()[i].GetCleared()) != 0 {
			t.Errorf("the effect: %v", e)
		}
	}
	if n := o.used(t, "v", 1); n != 0 || len(o.log.With("reset of counters")) != 0 {
		t.Errorf("a dry run cleared something: %d of 1 pass\n%s", n, o.log)
	}
	req.DryRun = false
	set, err := o.client.Set(o.ctx(t), req)
	if err != nil {
		t.Fatal(err)
	}
	if cleared := set.GetChanges()[0].GetCleared(); len(cleared) != 1 || cleared[0].GetUsed() < 5 {
		t.Errorf("cleared: %v", cleared)
	}
	o.await(t, set.GetChanges()[1].GetAfter().GetVersion())
	if n := o.used(t, "v", 7); n != 4 {
		t.Errorf("%d of 7 pass", n)
	}
	if audit := o.log.With("reset of counters"); len(audit) != 2 || !strings.Contains(audit[0], "token_of=ann") || !strings.Contains(audit[0], "result=cleared") {
		t.Errorf("%s", o.log)
	}
}

// An error in one of several writes stops all of them.
func TestOverridesThatCannotBeWritten(t *testing.T) {
	o := startOverriding(t)
	good := requests(7, "d.k", "k=good")
	past := requests(7, "d.k", "k=v")
	past.ExpiresAt = timestamppb.New(time.Now().Add(-time.Hour))
	early := requests(7, "d.k", "k=v")
	early.NotBefore = &timestamppb.Timestamp{Seconds: 5, Nanos: 5}
	odd := requests(7, "d.k", "k=v")
	odd.NotBefore = &timestamppb.Timestamp{Seconds: -5}
	both := requests(7, "d.k", "k=v")
	both.Blocked = true
	long := requests(7, "d.k", "k=v")
	long.Reason = strings.Repeat("r", override.MaxText+1)
	factor := func(f float64) *adminv1.Override {
		return &adminv1.Override{Domain: "d", Rule: "d.k", Entries: kv("k=v"), Factor: f}
	}
	for name, c := range map[string]struct {
		bad  *adminv1.Override
		want string
	}{
		"nothing":                 {nil, "writes[1].override."},
		"no numbers":              {&adminv1.Override{Domain: "d", Rule: "d.k", Entries: kv("k=v")}, "exactly one of requests_per_unit"},
		"two kinds":               {both, "exactly one of requests_per_unit"},
		"an unknown domain":       {&adminv1.Override{Domain: "nobody", Rule: "d.k", Entries: kv("k=v"), Blocked: true}, "writes[1].override.domain: "},
		"an unknown rule":         {requests(7, "d.x", "k=v"), "writes[1].override.rule: "},
		"entries of another rule": {requests(7, "d.k", "fixed=v"), "writes[1].override.entries: "},
		"not overridable":         {requests(7, "d.fixed", "fixed=v"), "overridable"},
		"over the rule's bound":   {requests(101, "d.bounded", "bounded=v"), "at most 100"},
		"which of two limits":     {requests(7, "d.two", "two=v"), "writes[1].override.limit: "},
		"a factor below 0":        {factor(-1), "writes[1].override.factor: "},
		"a factor of nearly 0":    {factor(1e-9), "writes[1].override.factor: "},
		"a factor of too much":    {factor(1001), "writes[1].override.factor: "},
		"no number":               {factor(math.NaN()), "writes[1].override.factor: "},
		"an infinite factor":      {factor(math.Inf(1)), "writes[1].override.factor: "},
		"over already":            {past, "writes[1].override.expires_at: "},
		"a part of a second":      {early, "writes[1].override.not_before: "},
		"before all time":         {odd, "writes[1].override.not_before: "},
		"a long reason":           {long, "writes[1].override.reason: "},
		"many entries":            {requests(7, "d.k", strings.Split(strings.Repeat("k=v ", 33), " ")[:33]...), "entries: more than 32"},
		"the same twice":          {requests(8, "tenant", "k=good"), "about the same override"},
	} {
		for _, dry := range []bool{true, false} {
			_, err := o.client.Set(o.ctx(t), &adminv1.OverrideServiceSetRequest{Writes: writeOf(good, c.bad), DryRun: dry})
			if status.Code(err) != codes.InvalidArgument || !strings.Contains(status.Convert(err).Message(), c.want) {
				t.Errorf("%s: %v, want %q", name, err, c.want)
			}
		}
	}
	if _, err := o.client.Set(o.ctx(t), &adminv1.OverrideServiceSetRequest{}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("nothing to write: %v", err)
	}
	many := make([]*adminv1.Override, override.MaxEdits+1)
	for i := range many {
		many[i] = requests(7, "d.k", fmt.Sprintf("k=%d", i))
	}
	if _, err := o.client.Set(o.ctx(t), &adminv1.OverrideServiceSetRequest{Writes: writeOf(many...)}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("too many: %v", err)
	}
	if st, err := o.client.Status(o.ctx(t), &adminv1.OverrideServiceStatusRequest{}); err != nil || st.GetCount() != 0 {
		t.Errorf("%v %v: want no override", st, err)
	}
	if list, err := o.client.List(o.ctx(t), &adminv1.OverrideServiceListRequest{}); err != nil || len(list.GetOverrides()) != 0 {
		t.Errorf("%v %v: want no override", list, err)
	}

	// As many as one call may have do fit into a message, and can be read page by page.
	set, err := o.client.Set(o.ctx(t), &adminv1.OverrideServiceSetRequest{Writes: writeOf(many[1:]...)})
	if err != nil || len(set.GetChanges()) != override.MaxEdits {
		t.Fatal(err)
	}
	pages, found, token := 0, 0, ""
	for pages == 0 || token != "" {
		list, err := o.client.List(o.ctx(t), &adminv1.OverrideServiceListRequest{Domain: "d", PageSize: 400, PageToken: token})
		if err != nil {
			t.Fatal(err)
		}
		pages, found, token = pages+1, found+len(list.GetOverrides()), list.GetNextPageToken()
	}
	if pages != 3 || found != override.MaxEdits {
		t.Errorf("%d overrides on %d pages", found, pages)
	}
	if _, err := o.client.List(o.ctx(t), &adminv1.OverrideServiceListRequest{PageSize: 1001}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("a large page: %v", err)
	}
	if _, err := o.client.List(o.ctx(t), &adminv1.OverrideServiceListRequest{Rule: "d.k"}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("a rule without its domain: %v", err)
	}
}

// Where overrides are off, the error names the setting that turns them on; the status shows that they are off.
func TestOverridesAreOff(t *testing.T) {
	r := start(t, Options{Counters: counted(t), Access: Access{Tokens: owners{annsToken: "ann"}}})
	client, ctx := adminv1.NewOverrideServiceClient(r.admin), with(within(t), "Bearer "+annsToken)
	calls := map[string]error{}
	_, calls["Set"] = client.Set(ctx, &adminv1.OverrideServiceSetRequest{})
	_, calls["Remove"] = client.Remove(ctx, &adminv1.OverrideServiceRemoveRequest{})
	_, calls["List"] = client.List(ctx, &adminv1.OverrideServiceListRequest{})
	_, calls["History"] = client.History(ctx, &adminv1.OverrideServiceHistoryRequest{})
	for name, err := range calls {
		if status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "RATELIMITD_OVERRIDES") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if st, err := client.Status(ctx, &adminv1.OverrideServiceStatusRequest{}); err != nil || st.GetSource() != "" || st.GetUp() {
		t.Errorf("Status: %v %v", st, err)
	}
}

// Pages of the largest overrides are shorter than was asked for, so that a client can read them, and together have all
// overrides.
func TestPagesOfLargeOverrides(t *testing.T) {
	o := startOverriding(t)
	const perCall, calls = 40, 25
	var version int64
	for call := range calls {
		var all []*adminv1.Override
		for i := range perCall {
			large := requests(8, "tenant", fmt.Sprintf("k=%d,%d,%s", call, i, strings.Repeat("x", override.MaxName-16)))
			large.Reason = strings.Repeat("r", override.MaxText)
			all = append(all, large)
		}
		got, err := o.client.Set(o.ctx(t), &adminv1.OverrideServiceSetRequest{Writes: writeOf(all...)})
		if err != nil {
			t.Fatal(err)
		}
		version = got.GetChanges()[perCall-1].GetAfter().GetVersion()
	}
	o.await(t, version)
	seen, pages := make(map[string]bool), 0
	for token := ""; ; pages++ {
		page, err := o.client.List(o.ctx(t), &adminv1.OverrideServiceListRequest{PageSize: 1000, PageToken: token})
		if err != nil {
			t.Fatal(err)
		}
		for _, found := range page.GetOverrides() {
			seen[found.GetEntries()[0].GetValue()] = true
		}
		if token = page.GetNextPageToken(); token == "" {
			break
		}
	}
	if len(seen) != perCall*calls || pages < 1 {
		t.Errorf("%d overrides on %d pages", len(seen), pages+1)
	}
	history, err := o.client.History(o.ctx(t), &adminv1.OverrideServiceHistoryRequest{PageSize: 1000})
	if err != nil {
		t.Fatal(err)
	}
	if n := len(history.GetEvents()); n < 100 || n >= perCall*calls || history.GetEvents()[0].GetVersion() != version {
		t.Errorf("%d changes, from version %d", n, history.GetEvents()[0].GetVersion())
	}
}
