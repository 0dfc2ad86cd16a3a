package main

import (
	"sync"
	"sync/atomic"
	"testing"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
)

// exactRules has one limit per algorithm. No hit returns during a test, because the windows are much longer.
const exactRules = `
domain: d
descriptors:
  - {key: fixed_window, rate_limit: {unit: year, requests_per_unit: 500}}
  - {key: first_hit, rate_limit: {unit: year, requests_per_unit: 500, align: first_hit}}
  - {key: calendar, rate_limit: {unit: year, requests_per_unit: 500, calendar: Asia/Seoul}}
  - {key: sliding_window, rate_limit: {unit: year, requests_per_unit: 500, algorithm: sliding_window, precision: 5}}
  - {key: sliding_log, rate_limit: {unit: year, requests_per_unit: 500, algorithm: sliding_log}}
  - {key: token_bucket, rate_limit: {unit: year, requests_per_unit: 500, algorithm: token_bucket}}
  - {key: interval, rate_limit: {unit: year, requests_per_unit: 500, algorithm: token_bucket, refill: interval}}
  - {key: leaky_bucket, rate_limit: {unit: year, requests_per_unit: 500, algorithm: leaky_bucket, burst: 499, nodelay: all}}
---
domain: together
admission: all_or_nothing
descriptors:
  - {key: narrow, rate_limit: {unit: year, requests_per_unit: 500}}
  - {key: wide, rate_limit: {unit: year, requests_per_unit: 1000000}}
`

// TestExactUnderConcurrency sends far more requests than the limit allows, from many goroutines and clients to several
// processes. It counts the allowed requests for every algorithm.
func TestExactUnderConcurrency(t *testing.T) {
	t.Parallel() // it spends most of its time waiting
	for _, c := range []struct {
		backend   string
		processes int
	}{{"memory", 1}, {"redis", 2}} {
		t.Run(c.backend, func(t *testing.T) {
			env := map[string]string{"REDIS_OP_TIMEOUT": "5s"}
			if c.backend == "redis" {
				env["REDIS_URL"] = redistest.Start(t).Addr
			}
			rules := rulesOf(t, exactRules)
			var services []ratelimitv3.RateLimitServiceClient
			for range c.processes {
				p := startProcess(t, env, "--rules", rules)
				for range 4 / c.processes {
					services = append(services, ratelimitv3.NewRateLimitServiceClient(dial(t, p.GRPC)))
				}
			}
			for _, key := range []string{"fixed_window", "first_hit", "calendar", "sliding_window", "sliding_log", "token_bucket", "interval", "leaky_bucket"} {
				t.Run(key, func(t *testing.T) {
					if admitted := storm(t, services, ask("d", key, "v")); admitted != 500 {
						t.Errorf("admitted %d, want exactly 500", admitted)
					}
				})
			}
			t.Run("all_or_nothing", func(t *testing.T) {
				both := ask("together", "wide", "v")
				both.Descriptors = append(both.Descriptors, ask("together", "narrow", "v").GetDescriptors()...)
				if admitted := storm(t, services, both); admitted != 500 {
					t.Errorf("admitted %d, want exactly 500", admitted)
				}
				got, err := services[0].ShouldRateLimit(t.Context(), ask("together", "wide", "v"))
				if left := got.GetStatuses()[0].GetLimitRemaining(); err != nil || left != 1_000_000-500-1 {
					t.Errorf("the wide limit has %d left, want %d: denied requests took from it (%v)", left, 1_000_000-500-1, err)
				}
			})
		})
	}
}

// storm sends a request 1,920 times from 64 goroutines over the clients, and returns how often it was admitted.
func storm(t *testing.T, services []ratelimitv3.RateLimitServiceClient, req *ratelimitv3.RateLimitRequest) int64 {
	t.Helper()
	const goroutines, each = 64, 30
	var admitted, denied atomic.Int64
	var wg sync.WaitGroup
	for i := range goroutines {
		wg.Go(func() {
			for range each {
				got, err := services[i%len(services)].ShouldRateLimit(t.Context(), req)
				switch {
				case err != nil:
					t.Error(err)
					return
				case got.GetOverallCode() == ratelimitv3.RateLimitResponse_OK:
					admitted.Add(1)
				default:
					denied.Add(1)
				}
			}
		})
	}
	wg.Wait()
	if sum := admitted.Load() + denied.Load(); sum != goroutines*each {
		t.Errorf("%d answers to %d requests", sum, goroutines*each)
	}
	return admitted.Load()
}
