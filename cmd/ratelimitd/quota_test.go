package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	quotav3 "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"

	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
)

const quotaRules = `domain: shop
quota_buckets: {order: [plan, customer], default: deny}
descriptors:
  - key: plan
    value: free
    rate_limit: {unit: second, requests_per_unit: 100}
  - key: plan
    value: trial
    rate_limit: {unit: second, requests_per_unit: 10}
  - key: plan
    value: paid
    descriptors:
      - {key: customer, rate_limit: {unlimited: true}}
`

// subscribe opens a stream for these buckets, which stays open until the test ends. It waits until n plans have an
// assignment, and returns the assignments by plan.
func subscribe(t *testing.T, addr, domain string, n int, ids ...map[string]string) map[string]string {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	defer time.AfterFunc(30*time.Second, cancel).Stop() // a missing assignment fails the test
	stream, err := quotav3.NewRateLimitQuotaServiceClient(dial(t, addr)).StreamRateLimitQuotas(ctx)
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
	for len(got) < n {
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

// A client of the rate limit quota service receives assignments, with counters in memory and in Redis, and ratelimitd
// shares shows them.
func TestQuotaService(t *testing.T) {
	for _, store := range []string{"memory", "redis"} {
		t.Run(store, func(t *testing.T) {
			env := map[string]string{"RATELIMITD_ADMIN_TOKEN": adminToken}
			if store == "redis" {
				env["REDIS_URL"], env["REDIS_SOCKET_TYPE"] = redistest.Start(t).Addr, "tcp"
			}
			p := startProcess(t, env, "--rules", rulesOf(t, quotaRules))
			got := subscribe(t, p.GRPC, "shop", 3, map[string]string{"plan": "free"}, map[string]string{"customer": "c7", "plan": "paid"}, map[string]string{"plan": "other"})
			if got["paid"] != "ALLOW_ALL" || got["other"] != "DENY_ALL" || !strings.HasSuffix(got["free"], " per 10s") {
				t.Errorf("%v", got)
			}
			code, stdout, stderr := asks(t, "shares", "-s", p.Debug, "--token-file", tokenFile(t, adminToken), "-d", "shop")
			for _, want := range []string{"plan=paid", "customer=c7", "100 per second, fixed window", "127.0.0.1:"} {
				if code != 0 || !strings.Contains(stdout, want) {
					t.Errorf("no %q: %d\n%s%s", want, code, stdout, stderr)
				}
			}
			t.Log(stdout)
		})
	}
}

// A process that stops after a signal gives back the part of its share that no client holds. It keeps the rest until
// its clients' assignments expire.
func TestStopGivesSharesBack(t *testing.T) {
	s := redistest.Start(t)
	p := startProcess(t, map[string]string{"REDIS_URL": s.Addr, "REDIS_SOCKET_TYPE": "tcp"}, "--rules", rulesOf(t, quotaRules))
	subscribe(t, p.GRPC, "shop", 1, map[string]string{"plan": "free"})
	keys, err := s.Client(t).Keys(t.Context(), "ratelimitd-shares:*free*").Result()
	if err != nil || len(keys) != 1 {
		t.Fatalf("keys %q: %v", keys, err)
	}
	kept := func() (rate, burst float64, lasts time.Duration) {
		fields, err := s.Client(t).HGetAll(t.Context(), keys[0]).Result()
		if err != nil || len(fields) != 2 {
			t.Fatalf("fields %q: %v", fields, err)
		}
		var demand float64
		var renewed, expires int64
		for process, text := range fields {
			if _, err := fmt.Sscan(text, &rate, &burst, &demand, &renewed, &expires); process != "" && err != nil {
				t.Fatalf("field %q: %v", text, err)
			} else if process != "" {
				return rate, burst, time.Until(time.UnixMilli(expires))
			}
		}
		return 0, 0, 0
	}
	_, _, before := kept()
	p.Stop(t)
	rate, burst, after := kept()
	if before < 35*time.Second || after > 32*time.Second || after < 15*time.Second || rate <= 0 || burst > 99 {
		t.Errorf("the process keeps %g per second and %g tokens for %v, and before it stopped for %v", rate, burst, after, before)
	}
}

// A limit whose share cannot be renewed, because something else is at its key in Redis, does not keep the others from
// theirs.
func TestShareThatCannotBeRenewed(t *testing.T) {
	s := redistest.Start(t)
	env := map[string]string{"REDIS_URL": s.Addr, "REDIS_SOCKET_TYPE": "tcp"}
	rules := rulesOf(t, quotaRules)
	free, trial := map[string]string{"plan": "free"}, map[string]string{"plan": "trial"}
	subscribe(t, startProcess(t, env, "--rules", rules).GRPC, "shop", 2, free, trial)
	keys, err := s.Client(t).Keys(t.Context(), "ratelimitd-shares:*trial*").Result()
	if err != nil || len(keys) != 1 {
		t.Fatalf("keys %q: %v", keys, err)
	}
	if err := s.Client(t).Set(t.Context(), keys[0], "not a hash", 0).Err(); err != nil {
		t.Fatal(err)
	}
	if got := subscribe(t, startProcess(t, env, "--rules", rules).GRPC, "shop", 1, trial, free); !strings.HasSuffix(got["free"], " per 10s") || got["trial"] != "" {
		t.Errorf("%v", got)
	}
}

// One stream names very many buckets with long ids, over a socket: nothing of them is kept. A rule that appears reaches
// a client of such a bucket with its next report.
func TestBucketsWithoutARule(t *testing.T) {
	rules := rulesOf(t, quotaRules)
	p := startProcess(t, nil, "--rules", rules)
	stream, err := quotav3.NewRateLimitQuotaServiceClient(dial(t, p.GRPC)).StreamRateLimitQuotas(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	exchange := func(key, value string) string {
		t.Helper()
		if err := stream.Send(&quotav3.RateLimitQuotaUsageReports{Domain: "shop", BucketQuotaUsages: []*quotav3.RateLimitQuotaUsageReports_BucketQuotaUsage{
			{BucketId: &quotav3.BucketId{Bucket: map[string]string{key: value}}, NumRequestsAllowed: 1},
		}}); err != nil {
			t.Fatal(err)
		}
		m, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		a := m.GetBucketAction()[0].GetQuotaAssignmentAction()
		return fmt.Sprint(a.GetRateLimitStrategy().GetBlanketRule(), " ", a.GetAssignmentTimeToLive().GetSeconds())
	}
	padding := strings.Repeat("x", 60_000)
	for i := range 500 {
		if got := exchange("nobody", fmt.Sprint(i, padding)); got != "DENY_ALL 15" {
			t.Fatal(got)
		}
	}
	if kept := counted(t, p, `ratelimitd_client_bytes{class="quota"}`); kept > len(padding) {
		t.Errorf("%d bytes are kept of buckets without a rule", kept)
	}
	more := quotaRules + "  - {key: nobody, rate_limit: {unlimited: true}}\n"
	if err := os.WriteFile(filepath.Join(rules, "rules0.yaml"), []byte(more), 0o600); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(patience); exchange("nobody", "a") != "ALLOW_ALL 300"; {
		if time.Now().After(deadline) {
			t.Fatal("the rule does not reach the client")
		}
		<-time.After(50 * time.Millisecond)
	}
}
