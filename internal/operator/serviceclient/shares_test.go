package serviceclient

import (
	"bytes"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"

	"github.com/ratelimitd/ratelimitd/internal/testkit/golden"
)

// A bucket has a line for each of its clients and their sum, and no text of a client changes the terminal.
func TestWriteShares(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	in := func(d time.Duration) *timestamppb.Timestamp { return timestamppb.New(now.Add(d)) }
	const tokens, denied, allowed = adminv1.AssignmentKind_ASSIGNMENT_KIND_TOKENS, adminv1.AssignmentKind_ASSIGNMENT_KIND_DENY_ALL, adminv1.AssignmentKind_ASSIGNMENT_KIND_ALLOW_ALL
	rate := func(perSecond, burst float64) *adminv1.TokenRate {
		return &adminv1.TokenRate{PerSecond: perSecond, Burst: burst}
	}
	s := &adminv1.ListSharesResponse{
		Host: "host\x1b[31m", DomainKnown: true, Total: 12, More: true,
		Buckets: []*adminv1.BucketShares{
			{
				Entries: []*adminv1.Entry{{Key: "plan", Value: "gold"}, {Key: "user", Value: "a\x1b[31m\n"}}, Rule: "api.plan_gold.user", Limit: "100 per second, token bucket, burst 200", Replicas: 2, Demand: 1035.5, Clients: 1004,
				LimitRate: rate(100, 200), ReplicaRate: rate(62.5, 125), HeldRate: rate(60, 119),
				Held: []*adminv1.HeldShare{
					{Client: "10.0.0.1:51234", Since: in(-5 * time.Minute), Demand: 25, Kind: tokens, Rate: rate(30, 60), Expires: in(12 * time.Second)},
					{Client: "[2001:db8::1]:5", Since: in(-3 * time.Second), Demand: 0.5, Kind: tokens, Rate: rate(0.1, 1), Expires: in(30 * time.Second)},
					{Client: "10.0.0.3:5", Since: in(0), Demand: 0.0001, Kind: denied, Expires: in(0)},
					{Client: "10.0.0.4:5\x1b[31m"},
				},
			},
			{Entries: []*adminv1.Entry{{Key: "plan", Value: "free"}}, Demand: 7, Clients: 1, Held: []*adminv1.HeldShare{{Client: "10.0.0.1:51234", Since: in(0), Demand: 7, Kind: allowed, Expires: in(time.Minute)}}},
		},
	}
	var text bytes.Buffer
	if err := WriteShares(&text, "api", false, s, now, false); err != nil {
		t.Fatal(err)
	}
	golden.Compare(t, "testdata/shares.txt", text.String())
	if bytes.ContainsRune(text.Bytes(), '\x1b') {
		t.Error("the terminal changes")
	}
	for want, c := range map[string]struct {
		selected bool
		s        *adminv1.ListSharesResponse
	}{
		"no rules are loaded for the domain \"api\"\n":                                      {false, &adminv1.ListSharesResponse{}},
		"no client of this replica uses a quota bucket of this domain\n":                    {false, &adminv1.ListSharesResponse{DomainKnown: true}},
		"no client of this replica uses a quota bucket of this domain with these entries\n": {true, &adminv1.ListSharesResponse{DomainKnown: true, Total: 7}},
		"k=v\nrule     none\nCLIENT  MAY PASS  BURST  DEMAND  SINCE  EXPIRES\ntotal                    0/s\n\n1 bucket, with the clients of h\n": {
			false, &adminv1.ListSharesResponse{DomainKnown: true, Host: "h", Total: 1, Buckets: []*adminv1.BucketShares{{Entries: []*adminv1.Entry{{Key: "k", Value: "v"}}}}},
		},
	} {
		text.Reset()
		if err := WriteShares(&text, "api", c.selected, c.s, now, false); err != nil || text.String() != want {
			t.Errorf("%v\ngot  %q\nwant %q", err, text.String(), want)
		}
	}
}

func TestPerTime(t *testing.T) {
	for want, perSecond := range map[string]float64{
		"0/s": 0, "1234567/s": 1234567, "100/s": 100, "99.5/s": 99.5, "1.0/s": 1, "30.0/min": 0.5, "1.0/h": 1.0 / 3600, "2.5/day": 2.5 / 86400, "0.003/day": 1.0 / (365 * 86400),
	} {
		if got := perTime(perSecond); got != want {
			t.Errorf("%v: got %s, want %s", perSecond, got, want)
		}
	}
}
