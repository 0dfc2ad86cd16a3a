package operator

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/lending/quota"
	"github.com/ratelimitd/ratelimitd/internal/lending/quota/assigner"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

// held are the buckets of one domain, those with most demand first.
type held []assigner.BucketShares

func (h held) Shares(_ time.Time, domain string, where []descriptor.Entry, n int) (all []assigner.BucketShares, matching, total int) {
	if domain != "d" {
		return nil, 0, 0
	}
	for _, b := range h {
		if len(where) == 0 || slices.Contains(b.Entries, where[0]) {
			all = append(all, b)
		}
	}
	return all[:min(n, len(all))], len(all), len(h)
}

func (h held) Buckets() int { return len(h) }

func shares(t *testing.T, opts Options) func(*adminv1.ListSharesRequest) (*adminv1.ListSharesResponse, error) {
	t.Helper()
	opts.Access = Access{Tokens: owners{annsToken: "ann read"}}
	r := start(t, opts)
	return func(req *adminv1.ListSharesRequest) (*adminv1.ListSharesResponse, error) {
		return adminv1.NewAdminServiceClient(r.admin).ListShares(with(within(t), "Bearer "+annsToken), req)
	}
}

func bucketOf(value string) assigner.BucketShares {
	return assigner.BucketShares{Domain: "d", Entries: []descriptor.Entry{{Key: "k", Value: value}}}
}

// Everything that is known of the shares is in the answer, and texts that are not UTF-8 do not break it.
func TestListShares(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	tree, err := descriptor.Compile([]descriptor.DomainSpec{{Name: "d"}}, descriptor.Options{})
	if err != nil {
		t.Fatal(err)
	}
	divided := assigner.BucketShares{
		Domain: "d", Entries: []descriptor.Entry{{Key: "plan", Value: "gold"}, {Key: "user", Value: "\xff"}}, Rule: "d.plan.user", Limit: "100 per second",
		Rate: quota.Rate{PerSecond: 100, Burst: 200, Interval: 10 * time.Second}, ReplicaRate: 50, ReplicaBurst: 90, Replicas: 2,
		Held: []assigner.HeldShare{
			{Client: "10.0.0.1:5", Since: at, Demand: 25, Assignment: quota.Assignment{Kind: quota.Tokens, TTL: 20 * time.Second, MaxTokens: 60, Fill: 300, Interval: 10 * time.Second}, Expires: at.Add(time.Second)},
			{Client: "10.0.0.2:5", Since: at, Demand: 10, Assignment: quota.Assignment{Kind: quota.Tokens, TTL: 20 * time.Second, MaxTokens: 20, Fill: 100, Interval: 10 * time.Second}, Expires: at.Add(time.Minute)},
			{Client: "10.0.0.3:5", Since: at, Demand: 0.5, Assignment: quota.Assignment{Kind: quota.DenyAll, TTL: 20 * time.Second}, Expires: at},
			{Client: "10.0.0.4:5", Since: at, Expires: at},
		},
	}
	free := bucketOf("free")
	free.Held = []assigner.HeldShare{{Client: "unix", Demand: 7, Assignment: quota.Assignment{Kind: quota.AllowAll}, Expires: at}}
	nothing := bucketOf("nothing")
	nothing.Rate, nothing.Replicas, nothing.Limit = quota.Rate{Interval: time.Second}, 1, "0 per day"

	list := shares(t, Options{Rules: Rules{Tree: func() *descriptor.Tree { return tree }}, Host: "host \xff", Shares: held{divided, free, nothing}})
	got, err := list(&adminv1.ListSharesRequest{Domain: "d"})
	if err != nil {
		t.Fatal(err)
	}
	since := timestamppb.New(at)
	want := &adminv1.ListSharesResponse{
		DomainKnown: true, Host: "host \uFFFD", Total: 3,
		Buckets: []*adminv1.BucketShares{
			{
				Entries: []*adminv1.Entry{{Key: "plan", Value: "gold"}, {Key: "user", Value: "\uFFFD"}}, Rule: "d.plan.user", Limit: "100 per second",
				LimitRate: &adminv1.TokenRate{PerSecond: 100, Burst: 200}, ReplicaRate: &adminv1.TokenRate{PerSecond: 50, Burst: 90}, HeldRate: &adminv1.TokenRate{PerSecond: 40, Burst: 80},
				Replicas: 2, Demand: 35.5, Clients: 4,
				Held: []*adminv1.HeldShare{
					{Client: "10.0.0.1:5", Since: since, Demand: 25, Kind: adminv1.AssignmentKind_ASSIGNMENT_KIND_TOKENS, Rate: &adminv1.TokenRate{PerSecond: 30, Burst: 60}, Expires: timestamppb.New(at.Add(time.Second))},
					{Client: "10.0.0.2:5", Since: since, Demand: 10, Kind: adminv1.AssignmentKind_ASSIGNMENT_KIND_TOKENS, Rate: &adminv1.TokenRate{PerSecond: 10, Burst: 20}, Expires: timestamppb.New(at.Add(time.Minute))},
					{Client: "10.0.0.3:5", Since: since, Demand: 0.5, Kind: adminv1.AssignmentKind_ASSIGNMENT_KIND_DENY_ALL, Expires: since},
					{Client: "10.0.0.4:5", Since: since},
				},
			},
			{
				Entries: []*adminv1.Entry{{Key: "k", Value: "free"}}, Demand: 7, Clients: 1,
				Held: []*adminv1.HeldShare{{Client: "unix", Demand: 7, Kind: adminv1.AssignmentKind_ASSIGNMENT_KIND_ALLOW_ALL, Expires: since}},
			},
			{
				Entries: []*adminv1.Entry{{Key: "k", Value: "nothing"}}, Limit: "0 per day", Replicas: 1,
				LimitRate: &adminv1.TokenRate{}, ReplicaRate: &adminv1.TokenRate{}, HeldRate: &adminv1.TokenRate{},
			},
		},
	}
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// The answer tells when there are more buckets than it lists.
func TestSomeShares(t *testing.T) {
	many := make(held, 10_000)
	for i := range many {
		many[i] = bucketOf(fmt.Sprint(i % 500))
	}
	list := shares(t, Options{Shares: many})
	k7 := []*adminv1.Entry{{Key: "k", Value: "7"}}
	for _, c := range []struct {
		req     *adminv1.ListSharesRequest
		buckets int
		first   string
		more    bool
	}{
		{&adminv1.ListSharesRequest{Domain: "d"}, 100, "0", true},
		{&adminv1.ListSharesRequest{Domain: "d", Limit: 1}, 1, "0", true},
		{&adminv1.ListSharesRequest{Domain: "d", Limit: 1000}, 1000, "0", true},
		{&adminv1.ListSharesRequest{Domain: "d", Entries: k7}, 20, "7", false},
		{&adminv1.ListSharesRequest{Domain: "d", Entries: k7, Limit: 3}, 3, "7", true},
		{&adminv1.ListSharesRequest{Domain: "d", Entries: []*adminv1.Entry{{Key: "k", Value: "500"}}}, 0, "", false},
		{&adminv1.ListSharesRequest{Domain: "other"}, 0, "", false},
	} {
		got, err := list(c.req)
		if err != nil {
			t.Fatal(err)
		}
		first := ""
		if len(got.GetBuckets()) > 0 {
			first = got.GetBuckets()[0].GetEntries()[0].GetValue()
		}
		if len(got.GetBuckets()) != c.buckets || first != c.first || got.GetMore() != c.more {
			t.Errorf("%v: %d buckets, the first is %q, more: %t", c.req, len(got.GetBuckets()), first, got.GetMore())
		}
	}
	list = shares(t, Options{Shares: many[:20]})
	for _, where := range [][]*adminv1.Entry{nil, k7} {
		if got, err := list(&adminv1.ListSharesRequest{Domain: "d", Entries: where}); err != nil || got.GetMore() || got.GetTotal() != 20 {
			t.Errorf("%v: %v, %v", where, got, err)
		}
	}
}

// Clients with gRPC's defaults can read an answer of any size. The total held by a long list of clients includes those
// that are not listed.
func TestManyShares(t *testing.T) {
	crowd := bucketOf("crowd")
	crowd.Rate = quota.Rate{PerSecond: 1e6, Burst: 1e6, Interval: time.Second}
	for range 2 * maxHeld {
		crowd.Held = append(crowd.Held, assigner.HeldShare{Client: "[2001:db8:1234:5678:9abc:def0:1234:5678]:12345", Demand: 1, Assignment: quota.Assignment{Kind: quota.Tokens, MaxTokens: 2, Fill: 3, Interval: time.Second}})
	}
	crowds := make(held, 100)
	for i := range crowds {
		crowds[i] = crowd
	}
	got, err := shares(t, Options{Shares: crowds})(&adminv1.ListSharesRequest{Domain: "d"})
	if err != nil {
		t.Fatal(err)
	}
	if n := len(got.GetBuckets()); n < 10 || n == len(crowds) || !got.GetMore() || proto.Size(got) > maxAnswerBytes {
		t.Errorf("%d buckets, %d bytes, more: %t", n, proto.Size(got), got.GetMore())
	}
	b := got.GetBuckets()[0]
	if len(b.GetHeld()) != maxHeld || b.GetClients() != 2*maxHeld || b.GetHeldRate().GetPerSecond() != 6*maxHeld || b.GetHeldRate().GetBurst() != 4*maxHeld || b.GetDemand() != 2*maxHeld {
		t.Errorf("%d of %d clients, %v, demand %v", len(b.GetHeld()), b.GetClients(), b.GetHeldRate(), b.GetDemand())
	}
}

func TestSharesDenied(t *testing.T) {
	list := shares(t, Options{Bounds: Bounds{MaxEntries: 1, MaxTextBytes: 10}, Shares: held{bucketOf("1")}})
	for want, req := range map[string]*adminv1.ListSharesRequest{
		"domain must not be empty":        {},
		"limit is 1001: the most is 1000": {Domain: "d", Limit: 1001},
		"entries: more than 1":            {Domain: "d", Entries: make([]*adminv1.Entry, 2)},
		"domain: more than 10 bytes":      {Domain: strings.Repeat("d", 11)},
	} {
		if _, err := list(req); status.Code(err) != codes.InvalidArgument || status.Convert(err).Message() != want {
			t.Errorf("%v, want %q", err, want)
		}
	}
	none := shares(t, Options{})
	if got, err := none(&adminv1.ListSharesRequest{Domain: "d"}); err != nil || len(got.GetBuckets()) > 0 || got.GetMore() || got.GetDomainKnown() {
		t.Errorf("without quotas: %v, %v", got, err)
	}
}
