package main

import (
	"fmt"
	"strings"
	"testing"

	quotav3 "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"

	"github.com/ratelimitd/ratelimitd/internal/redistest"
)

const quotaRules = `domain: shop
quota_buckets: {order: [plan, customer], default: deny}
descriptors:
  - key: plan
    value: free
    rate_limit: {unit: second, requests_per_unit: 100}
  - key: plan
    value: paid
    descriptors:
      - {key: customer, rate_limit: {unlimited: true}}
`

// subscribe subscribes to buckets until the test ends, and returns what is assigned, by the value of the key plan.
func subscribe(t *testing.T, addr, domain string, ids ...map[string]string) map[string]string {
	t.Helper()
	stream, err := quotav3.NewRateLimitQuotaServiceClient(dial(t, addr)).StreamRateLimitQuotas(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	report := &quotav3.RateLimitQuotaUsageReports{Domain: domain}
	for _, id := range ids {
		report.BucketQuotaUsages = append(report.BucketQuotaUsages, &quotav3.RateLimitQuotaUsageReports_BucketQuotaUsage{
			BucketId: &quotav3.BucketId{Bucket: id}, NumRequestsAllowed: 1,
		})
	}
	if err := stream.Send(report); err != nil {
		t.Fatal(err)
	}
	got := make(map[string]string)
	for len(got) < len(ids) {
		answer, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range answer.GetBucketAction() {
			s := a.GetQuotaAssignmentAction().GetRateLimitStrategy()
			text := s.GetBlanketRule().String()
			if b := s.GetTokenBucket(); b != nil {
				text = fmt.Sprintf("%d per %ds", b.GetTokensPerFill().GetValue(), b.GetFillInterval().GetSeconds())
			}
			got[a.GetBucketId().GetBucket()["plan"]] = text
		}
	}
	return got
}

// A client of the rate limit quota service gets assignments, counting in memory and in Redis, and ratelimitd shares shows them.
func TestQuotaService(t *testing.T) {
	for _, store := range []string{"memory", "redis"} {
		t.Run(store, func(t *testing.T) {
			env := map[string]string{"RATELIMITD_ADMIN_TOKEN": adminToken}
			if store == "redis" {
				env["REDIS_URL"], env["REDIS_SOCKET_TYPE"] = redistest.Start(t).Addr, "tcp"
			}
			p := startProcess(t, env, "--rules", rulesOf(t, quotaRules))
			got := subscribe(t, p.GRPC, "shop", map[string]string{"plan": "free"}, map[string]string{"customer": "c7", "plan": "paid"}, map[string]string{"plan": "other"})
			if got["paid"] != "ALLOW_ALL" || got["other"] != "DENY_ALL" || !strings.HasSuffix(got["free"], " per 10s") {
				t.Errorf("%v", got)
			}
			code, stdout, stderr := asks(t, "shares", "-s", p.Debug, "--token-file", tokenFile(t, adminToken), "shop")
			for _, want := range []string{"plan=paid", "customer=c7", "100 per second, fixed window", "127.0.0.1:"} {
				if code != 0 || !strings.Contains(stdout, want) {
					t.Errorf("no %q: %d\n%s%s", want, code, stdout, stderr)
				}
			}
			t.Log(stdout)
		})
	}
}
