package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
	"github.com/ratelimitd/ratelimitd/internal/testkit/servicetest"
	ratelimitdv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/v1"
)

// versionRules have six hits under each algorithm, and the other features whose state two versions share.
const versionRules = `
domain: d
quota_buckets: {default: deny}
descriptors:
  - {key: fixed_window, rate_limit: {unit: year, requests_per_unit: 6}}
  - {key: sliding_window, rate_limit: {unit: year, requests_per_unit: 6, algorithm: sliding_window, precision: 4}}
  - {key: sliding_log, rate_limit: {unit: year, requests_per_unit: 6, algorithm: sliding_log}}
  - {key: token_bucket, rate_limit: {unit: year, requests_per_unit: 6, algorithm: token_bucket}}
  - {key: leaky_bucket, rate_limit: {unit: year, requests_per_unit: 6, algorithm: leaky_bucket}}
  - {key: concurrency, rate_limit: {algorithm: concurrency, max_in_flight: 6, ttl: 5m}}
  - {key: scheduled, rate_limit: {unit: year, requests_per_unit: 6, active: {from: 2020-01-01}}}
  - {key: punished, rate_limit: {unit: year, requests_per_unit: 6, penalty: 1h}}
  - {key: reserved, reservations: true, rate_limit: {unit: year, requests_per_unit: 100}}
  - {key: k, overridable: true, rate_limit: {unit: day, requests_per_unit: 5}}
  - {key: plan, rate_limit: {unit: second, requests_per_unit: 100}}
  - {key: local, on_error: local, rate_limit: {unit: year, requests_per_unit: 10}}
`

// This version and the earlier one run at the same time on one Redis. Each of them sees the other one's writes.
func TestTwoVersionsOnOneRedis(t *testing.T) {
	earlier(t)
	redis := redistest.Start(t)
	tokens := tokenFile(t, adminToken)
	t.Setenv("RATELIMITD_ADMIN_TOKEN_FILE", tokens)
	env := map[string]string{
		"REDIS_URL": redis.Addr, "REDIS_OP_TIMEOUT": "10s", "RATELIMITD_OVERRIDES": "redis", "RATELIMITD_ADMIN_TOKEN_FILE": tokens,
		"LOCAL_CACHE_SIZE_IN_BYTES": "1000000",
	}
	rules := rulesOf(t, versionRules)
	before, now := startVersion(t, true, env, "--rules", rules), startVersion(t, false, env, "--rules", rules)

	// Each case runs with the versions in both roles.
	both := func(name string, test func(t *testing.T, value string, here, there *servicetest.Process)) {
		t.Run(name+"/from the earlier version", func(t *testing.T) { test(t, "from", before, now) })
		t.Run(name+"/to the earlier version", func(t *testing.T) { test(t, "to", now, before) })
	}
	for _, key := range []string{"fixed_window", "sliding_window", "sliding_log", "token_bucket", "concurrency", "scheduled", "punished"} {
		both("counters/"+key, func(t *testing.T, value string, here, there *servicetest.Process) {
			for i := range 8 {
				p := here
				if i%2 == 1 {
					p = there
				}
				want := ratelimitv3.RateLimitResponse_OK
				if i >= 6 {
					want = ratelimitv3.RateLimitResponse_OVER_LIMIT
				}
				if got := askVersion(t, p, key, value, 1); got.GetOverallCode() != want {
					t.Errorf("call %d: %v, want %v", i, got.GetOverallCode(), want)
				}
			}
		})
	}
	both("counters/leaky_bucket", func(t *testing.T, value string, here, there *servicetest.Process) {
		alone, mixed := 0, 0
		for i := range 10 {
			p := []*servicetest.Process{here, there}[i%2]
			if askVersion(t, here, "leaky_bucket", value+" alone", 1).GetOverallCode() == ratelimitv3.RateLimitResponse_OK {
				alone++
			}
			if askVersion(t, p, "leaky_bucket", value, 1).GetOverallCode() == ratelimitv3.RateLimitResponse_OK {
				mixed++
			}
		}
		if alone != mixed || alone == 0 || alone == 10 {
			t.Errorf("one version admits %d, both together %d", alone, mixed)
		}
	})
	both("reservations", func(t *testing.T, value string, here, there *servicetest.Process) {
		a, b := ratelimitdv1.NewReservationServiceClient(dial(t, here.GRPC)), ratelimitdv1.NewReservationServiceClient(dial(t, there.GRPC))
		reserve := func() string {
			var id string
			until(t, "a reservation", func() bool {
				got, err := a.Reserve(t.Context(), &ratelimitdv1.ReserveRequest{Domain: "d", Amount: hitsOf(10), Descriptors: []*ratelimitdv1.Descriptor{{Entries: []*ratelimitdv1.Entry{{Key: "reserved", Value: value}}}}})
				id = got.GetId()
				return err == nil
			})
			return id
		}
		left := func(want uint32) {
			t.Helper()
			if got := askVersion(t, there, "reserved", value, 0).GetStatuses()[0].GetLimitRemaining(); got != want {
				t.Errorf("%d are left, want %d", got, want)
			}
		}
		id, cancelled := reserve(), reserve()
		left(80)
		if _, err := b.Extend(t.Context(), &ratelimitdv1.ExtendRequest{Id: id}); err != nil {
			t.Error(err)
		}
		if _, err := b.Commit(t.Context(), &ratelimitdv1.CommitRequest{Id: id, Actual: []*ratelimitdv1.Amount{hitsOf(3)}}); err != nil {
			t.Error(err)
		}
		left(87)
		if _, err := b.Cancel(t.Context(), &ratelimitdv1.CancelRequest{Id: cancelled}); err != nil {
			t.Error(err)
		}
		left(97)
	})
	both("overrides", func(t *testing.T, value string, here, there *servicetest.Process) {
		if code, out, stderr := asks(t, "override", "set", "-d", "d", "k="+value, "--limit", "50", "--reason", "test", "--server", here.Debug); code != 0 {
			t.Fatalf("%d: %s%s", code, out, stderr)
		}
		limitOf(t, here, value, 50)
		limitOf(t, there, value, 50)
		if code, out, _ := asks(t, "override", "list", "-d", "d", "k="+value, "--server", there.Debug); code != 0 || !strings.Contains(out, "50") {
			t.Errorf("%d: %s", code, out)
		}
		if code, out, stderr := asks(t, "override", "rm", "-d", "d", "k="+value, "--reason", "test", "--server", there.Debug); code != 0 {
			t.Fatalf("%d: %s%s", code, out, stderr)
		}
		limitOf(t, here, value, 5)
	})
	both("invalidations", func(t *testing.T, value string, here, there *servicetest.Process) {
		value += " reset"
		for range 8 { // both remember the denial
			askVersion(t, here, "token_bucket", value, 1)
			askVersion(t, there, "token_bucket", value, 1)
		}
		received := receivedBy(t, there)
		if code, out, stderr := asks(t, "reset", "-s", here.Debug, "-d", "d", "token_bucket="+value); code != 0 {
			t.Fatalf("%d: %s%s", code, out, stderr)
		}
		until(t, "the reset reaches the other version", func() bool { return receivedBy(t, there) > received })
		if got := askVersion(t, there, "token_bucket", value, 1); got.GetOverallCode() != ratelimitv3.RateLimitResponse_OK {
			t.Errorf("after a reset in the other version: %v", got)
		}
	})
	t.Run("replicas", func(t *testing.T) {
		for _, p := range []*servicetest.Process{before, now} {
			until(t, "both versions count each other", func() bool {
				return slices.Contains(shown(t, "http://"+p.HTTP+"/metrics", "ratelimitd_replicas"), `ratelimitd_replicas{source="counted"} 2`)
			})
		}
	})
	shares := func(t *testing.T, value string, here, there *servicetest.Process) {
		id := map[string]string{"plan": value}
		for _, p := range []*servicetest.Process{here, there} {
			if got := subscribe(t, p.GRPC, "d", 1, id); !strings.HasSuffix(got[value], " per 10s") {
				t.Errorf("an assignment of %v", got)
			}
		}
		until(t, "both versions have a share, and no more than the limit together", func() bool {
			keys, err := redis.Client(t).Keys(t.Context(), "ratelimitd-shares:*"+value+"*").Result()
			if err != nil || len(keys) != 1 {
				t.Fatalf("keys %q: %v", keys, err)
			}
			fields, err := redis.Client(t).HGetAll(t.Context(), keys[0]).Result()
			if err != nil {
				t.Fatal(err)
			}
			processes, sum := 0, 0.0
			for name, field := range fields {
				var rate float64
				if _, err := fmt.Sscan(field, &rate); err != nil {
					t.Fatalf("%q: %v", field, err)
				}
				if name != "" {
					processes, sum = processes+1, sum+rate
				}
			}
			if sum > 100.0001 {
				t.Fatalf("the shares of a limit of 100 are %v together: %q", sum, fields)
			}
			return processes == 2 && sum > 0
		})
	}
	both("quota shares", shares)
	both("quota shares/of a long id", func(t *testing.T, value string, here, there *servicetest.Process) {
		shares(t, value+strings.Repeat("x", 300), here, there)
	})
	for _, p := range []*servicetest.Process{before, now} {
		if lines := p.Log.With(`"level":"error"`); len(lines) > 0 {
			t.Errorf("errors were logged:\n%s", strings.Join(lines, ""))
		}
	}
}

func hitsOf(n uint64) *ratelimitdv1.Amount { return &ratelimitdv1.Amount{Hits: n} }

// askVersion asks a process for this many hits; 0 only looks.
func askVersion(t *testing.T, p *servicetest.Process, key, value string, hits uint64) *ratelimitv3.RateLimitResponse {
	t.Helper()
	request := ask("d", key, value)
	request.Descriptors[0].HitsAddend = wrapperspb.UInt64(hits)
	got, err := ratelimitv3.NewRateLimitServiceClient(dial(t, p.GRPC)).ShouldRateLimit(t.Context(), request)
	if err != nil {
		t.Fatal(err)
	}
	return got
}
