package main

import (
	"slices"
	"testing"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
	"github.com/ratelimitd/ratelimitd/internal/testkit/servicetest"
)

// Processes count each other in Redis. Without Redis, all processes together allow the limit once.
func TestProcessesShareTheLimitWithoutRedis(t *testing.T) {
	t.Parallel()
	const processes, limit = 3, 30
	r := redistest.Start(t)
	rules := rulesOf(t, "domain: d\ndescriptors:\n  - key: k\n    on_error: local\n    rate_limit: {unit: year, requests_per_unit: 30}\n")
	var all []*servicetest.Process
	for range processes {
		all = append(all, startProcess(t, map[string]string{"REDIS_URL": r.Addr}, "--rules", rules))
	}
	known := func(p *servicetest.Process, want string) {
		t.Helper()
		until(t, want, func() bool {
			return slices.Contains(shown(t, "http://"+p.HTTP+"/metrics", "ratelimitd_replicas"), want)
		})
	}
	for _, p := range all {
		known(p, `ratelimitd_replicas{source="counted"} 3`)
	}
	r.Kill(t)
	admitted := 0
	for _, p := range all {
		client := ratelimitv3.NewRateLimitServiceClient(dial(t, p.GRPC))
		for range limit {
			answer, err := client.ShouldRateLimit(t.Context(), ask("d", "k", "v"))
			if err != nil {
				t.Fatal(err)
			}
			if answer.OverallCode == ratelimitv3.RateLimitResponse_OK {
				admitted++
			}
		}
	}
	if admitted != limit {
		t.Errorf("%d processes admitted %d requests without Redis, the limit is %d", processes, admitted, limit)
	}
	for _, p := range all {
		known(p, `ratelimitd_replicas{source="counted"} 3`) // the last known number
	}

	r.Restart(t)
	startProcess(t, map[string]string{"REDIS_URL": r.Addr}, "--rules", rules)
	known(all[1], `ratelimitd_replicas{source="counted"} 4`)
	all[0].Stop(t)
	known(all[1], `ratelimitd_replicas{source="counted"} 3`)
}

// until waits for a condition.
func until(t *testing.T, what string, is func() bool) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for late := time.After(4 * patience); !is(); {
		select {
		case <-tick.C:
		case <-late:
			t.Fatalf("%s did not come about", what)
		}
	}
}
