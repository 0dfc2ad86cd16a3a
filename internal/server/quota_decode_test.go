package server

import (
	"bytes"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	quotav3 "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/lending/quota"
	"github.com/ratelimitd/ratelimitd/internal/lending/quota/assigner"
	"github.com/ratelimitd/ratelimitd/internal/testkit/racetest"
)

type (
	usageReports = quotav3.RateLimitQuotaUsageReports
	bucketUsage  = quotav3.RateLimitQuotaUsageReports_BucketQuotaUsage
	bucketAction = quotav3.RateLimitQuotaResponse_BucketAction
)

// bucket is a usage of a bucket with that id: key, value, key, value...
func bucket(pairs ...string) *bucketUsage {
	id := make(map[string]string)
	for i := 0; i < len(pairs); i += 2 {
		id[pairs[i]] = pairs[i+1]
	}
	return &bucketUsage{BucketId: &quotav3.BucketId{Bucket: id}, TimeElapsed: &durationpb.Duration{Seconds: 5}, NumRequestsAllowed: 3, NumRequestsDenied: 4}
}

// checkReport compares decodeReport with the generated code. An error is allowed only where the generated code has one.
func checkReport(t *testing.T, data []byte) {
	t.Helper()
	var want usageReports
	wantErr := proto.Unmarshal(data, &want)
	var got quotaReport
	err := decodeReport(data, string(data), &got, unbounded)
	if (err != nil) != (wantErr != nil) {
		t.Fatalf("%q: error %v, want %v", data, err, wantErr)
	}
	if err != nil {
		return
	}
	if got.domain != want.GetDomain() || len(got.usages)+got.skipped != len(want.GetBucketQuotaUsages()) {
		t.Fatalf("%q: domain %q and %d usages, want %v", data, got.domain, len(got.usages), &want)
	}
	if got.skipped > 0 {
		return
	}
	for i, u := range got.usages {
		w := want.GetBucketQuotaUsages()[i]
		elapsed := time.Duration(0)
		if w.GetTimeElapsed().CheckValid() == nil {
			elapsed = max(0, w.GetTimeElapsed().AsDuration())
		}
		var id []descriptor.Entry
		for _, key := range slices.Sorted(maps.Keys(w.GetBucketId().GetBucket())) {
			id = append(id, descriptor.Entry{Key: key, Value: w.GetBucketId().GetBucket()[key]})
		}
		if !slices.Equal(u.ID, id) || u.Elapsed != elapsed || u.Allowed != w.GetNumRequestsAllowed() || u.Denied != w.GetNumRequestsDenied() {
			t.Fatalf("%q: usage %d is %+v, want %v", data, i, u, w)
		}
	}
}

func reportCases(t testing.TB) [][]byte {
	two := encode(t, &usageReports{Domain: "edge", BucketQuotaUsages: []*bucketUsage{bucket("name", "a", "group", "b"), bucket(), {}}})
	odd := encode(t, &usageReports{BucketQuotaUsages: []*bucketUsage{
		{TimeElapsed: &durationpb.Duration{Seconds: -1}}, {TimeElapsed: &durationpb.Duration{Seconds: 1, Nanos: -1}}, {TimeElapsed: &durationpb.Duration{Nanos: 1e9}},
		{TimeElapsed: &durationpb.Duration{Seconds: 315_576_000_000, Nanos: 999_999_999}}, {TimeElapsed: &durationpb.Duration{Seconds: 315_576_000_001}},
		{TimeElapsed: &durationpb.Duration{Seconds: 9_223_372_036, Nanos: 999_999_999}}, {TimeElapsed: &durationpb.Duration{Seconds: 9_223_372_036}},
		{TimeElapsed: &durationpb.Duration{Seconds: 9_223_372_036, Nanos: 854_775_806}}, {TimeElapsed: &durationpb.Duration{Seconds: 9_223_372_037}}, {TimeElapsed: &durationpb.Duration{Seconds: 9_223_372_035, Nanos: 5}},
	}})
	entry := func(key, value string) []byte { return field(1, join(field(1, key), field(2, value))) }
	return [][]byte{
		nil, two, odd, join(two, two), two[:len(two)-1],
		// a key twice: the last one wins
		field(2, field(1, join(entry("k", "1"), entry("a", "x"), entry("k", "2")))),
		field(2, join(field(1, entry("k", "1")), field(1, join(entry("b", "2"), entry("k", "3"))))), // the id twice: merged
		field(2, field(1, field(1, "\xff"))), field(2, field(1, field(1, ""))), field(1, "\xff"),
		field(2, field(1, entry("\xff", "1"))), field(2, field(2, "\x08\x01\x10")), field(2, field(1, field(2, "unknown"))),
		{0x12, 0x02, 0x0a, 0x05}, {0x0b, 0x0c}, {0x12, 0x02, 0x18},
	}
}

func TestDecodeReport(t *testing.T) {
	for _, data := range reportCases(t) {
		checkReport(t, data)
	}
}

func FuzzDecodeReport(f *testing.F) {
	for _, data := range reportCases(f) {
		f.Add(data)
	}
	f.Fuzz(checkReport)
}

// A report that exceeds a bound only affects its sender.
func TestBoundsOfReports(t *testing.T) {
	entry := field(1, join(field(1, "k"), field(2, "v")))
	of := func(id []byte) []byte { return field(2, field(1, id)) }
	long := field(1, join(field(1, "k"), field(2, strings.Repeat("v", 50))))
	distinct := func(n int) (all []byte) {
		for i := range n {
			all = append(all, field(1, field(1, string(rune('a'+i))))...)
		}
		return all
	}
	bounds := Requests{MaxEntries: 5, MaxTextBytes: 40}
	for _, tt := range []struct {
		name            string
		data            []byte
		bounds          Requests
		usages, skipped int
		want            codes.Code
	}{
		{"a long value between two others", join(of(entry), of(long), of(entry)), bounds, 2, 1, codes.OK},
		{"as many entries as allowed", of(distinct(5)), bounds, 1, 0, codes.OK},
		{"more entries, and then another usage", join(of(distinct(6)), of(entry)), bounds, 1, 1, codes.OK},
		{"an id that is too long as a whole", of(bytes.Repeat(field(1, field(2, strings.Repeat("v", 40_000))), 2)), Requests{MaxEntries: 5, MaxTextBytes: 50_000}, 0, 1, codes.OK},
		{"as many usages as allowed", bytes.Repeat([]byte{0x12, 0}, maxReportUsages), bounds, maxReportUsages, 0, codes.OK},
		{"more usages", bytes.Repeat([]byte{0x12, 0}, maxReportUsages+1), bounds, 0, 0, codes.ResourceExhausted},
		{"more usages that are skipped", bytes.Repeat(of(long), maxReportUsages+1), bounds, 0, 0, codes.ResourceExhausted},
		{"too many entries together", bytes.Repeat(of(distinct(20)), maxReportEntries/20+1), Requests{MaxEntries: 50, MaxTextBytes: 40}, 0, 0, codes.ResourceExhausted},
		{"a long domain", field(1, strings.Repeat("d", 41)), bounds, 0, 0, codes.Unknown},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var r quotaReport
			err := decodeReport(tt.data, string(tt.data), &r, tt.bounds)
			if status.Code(err) != tt.want {
				t.Fatalf("error %v, want %v", err, tt.want)
			}
			if err == nil && (len(r.usages) != tt.usages || r.skipped != tt.skipped) {
				t.Errorf("%d usages and %d skipped, want %d and %d", len(r.usages), r.skipped, tt.usages, tt.skipped)
			}
		})
	}
}

func TestDecodeReportAllocatesNothingMore(t *testing.T) {
	data := encode(t, &usageReports{Domain: "edge", BucketQuotaUsages: []*bucketUsage{bucket("a", "1", "b", "2"), bucket("c", "3")}})
	text := string(data)
	var r quotaReport
	if n := testing.AllocsPerRun(100, func() {
		r.reset()
		if err := decodeReport(data, text, &r, unbounded); err != nil || len(r.usages) != 2 {
			t.Fatal(err, r)
		}
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestDecodeLongReportInLittleMemory(t *testing.T) {
	racetest.Sequential(t)
	m := &usageReports{Domain: "edge"}
	for i := range 20_000 {
		m.BucketQuotaUsages = append(m.BucketQuotaUsages, bucket("name", strconv.Itoa(i), "group", "customers"))
	}
	data := encode(t, m)
	text := string(data)
	var r quotaReport
	if n := testing.AllocsPerRun(5, func() {
		r = quotaReport{}
		if err := decodeReport(data, text, &r, unbounded); err != nil || len(r.usages) != 20_000 {
			t.Fatal(err)
		}
	}); n > 10 { // some more with the race detector
		t.Errorf("%v allocations", n)
	}
}

// wantAction is an action of the generated code.
func wantAction(a assigner.Action) *bucketAction {
	id := make(map[string]string)
	for _, e := range a.ID {
		id[e.Key] = e.Value
	}
	w := &bucketAction{BucketId: &quotav3.BucketId{Bucket: id}}
	if a.Abandon {
		w.BucketAction = &quotav3.RateLimitQuotaResponse_BucketAction_AbandonAction_{AbandonAction: &quotav3.RateLimitQuotaResponse_BucketAction_AbandonAction{}}
		return w
	}
	s := &typev3.RateLimitStrategy{}
	switch a.Assignment.Kind {
	case quota.AllowAll:
		s.Strategy = &typev3.RateLimitStrategy_BlanketRule_{BlanketRule: typev3.RateLimitStrategy_ALLOW_ALL}
	case quota.DenyAll:
		s.Strategy = &typev3.RateLimitStrategy_BlanketRule_{BlanketRule: typev3.RateLimitStrategy_DENY_ALL}
	case quota.Tokens:
		s.Strategy = &typev3.RateLimitStrategy_TokenBucket{TokenBucket: &typev3.TokenBucket{
			MaxTokens: a.Assignment.MaxTokens, TokensPerFill: wrapperspb.UInt32(a.Assignment.Fill), FillInterval: durationpb.New(a.Assignment.Interval),
		}}
	}
	w.BucketAction = &quotav3.RateLimitQuotaResponse_BucketAction_QuotaAssignmentAction_{QuotaAssignmentAction: &quotav3.RateLimitQuotaResponse_BucketAction_QuotaAssignmentAction{
		AssignmentTimeToLive: durationpb.New(a.Assignment.TTL), RateLimitStrategy: s,
	}}
	return w
}

func TestEncodeActions(t *testing.T) {
	id := []descriptor.Entry{{Key: "group", Value: strings.Repeat("x", 300)}, {Key: "name", Value: ""}, {Key: "", Value: "z"}}
	var want quotav3.RateLimitQuotaResponse
	var all []assigner.Action
	for _, a := range []assigner.Action{
		{ID: id, Abandon: true},
		{Abandon: true},
		{ID: id[:1], Assignment: quota.Assignment{Kind: quota.AllowAll, TTL: 15 * time.Second}},
		{ID: id[1:], Assignment: quota.Assignment{Kind: quota.DenyAll, TTL: time.Hour}},
		{ID: id, Assignment: quota.Assignment{Kind: quota.Tokens, TTL: 20 * time.Second, MaxTokens: 1, Fill: 1, Interval: time.Second}},
		{Assignment: quota.Assignment{Kind: quota.Tokens, TTL: 20 * time.Second, MaxTokens: 1<<32 - 1, Fill: 1<<32 - 1, Interval: 1000 * time.Second}},
	} {
		all = append(all, a, assigner.Action{ID: id}) // an empty assignment is left out
		want.BucketAction = append(want.BucketAction, wantAction(a))
	}
	b, n, rest := encodeActions(all)
	var got quotav3.RateLimitQuotaResponse
	if err := proto.Unmarshal(b, &got); err != nil || len(rest) > 0 || n != len(want.BucketAction) || !proto.Equal(&got, &want) {
		t.Errorf("%d actions, %d left, %v: %v\nwant %v", n, len(rest), err, &got, &want)
	}
}

func TestAnswersAreBounded(t *testing.T) {
	many := make([]assigner.Action, 2_500)
	for i := range many {
		many[i].Abandon = true
	}
	var sizes []int
	for rest := many; len(rest) > 0; {
		var n int
		_, n, rest = encodeActions(rest)
		sizes = append(sizes, n)
	}
	if !slices.Equal(sizes, []int{500, 500, 500, 500, 500}) {
		t.Errorf("messages of %v actions", sizes)
	}
	for i := range many {
		many[i].ID = []descriptor.Entry{{Key: strings.Repeat("x", 60_000)}}
	}
	if b, n, rest := encodeActions(many); len(b) > maxAnswerBytes+65_000 || n+len(rest) != len(many) {
		t.Errorf("a message of %d bytes with %d actions, %d left", len(b), n, len(rest))
	}
}
