package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
	"github.com/ratelimitd/ratelimitd/internal/testkit/servicetest"
)

const clusterRules = `
domain: d
descriptors:
  - {key: hot, rate_limit: {unit: year, requests_per_unit: 500}}
  - {key: cold, rate_limit: {unit: year, requests_per_unit: 3}}
---
domain: together
admission: all_or_nothing
descriptors:
  - {key: narrow, rate_limit: {unit: year, requests_per_unit: 500}}
  - {key: wide, rate_limit: {unit: year, requests_per_unit: 1000000}}
`

// TestExactOnCluster counts from four processes on a cluster of six nodes: one hot counter and 10,000 cold ones.
func TestExactOnCluster(t *testing.T) {
	t.Parallel() // it spends most of its time waiting
	const processes, goroutines = 4, 32
	c := redistest.StartCluster(t, redistest.Setup{})
	env := map[string]string{"REDIS_URL": strings.Join(c.Addrs(), ","), "REDIS_TYPE": "CLUSTER", "REDIS_OP_TIMEOUT": "10s"}
	rules := rulesOf(t, clusterRules)
	var services []ratelimitv3.RateLimitServiceClient
	for range processes {
		services = append(services, ratelimitv3.NewRateLimitServiceClient(dial(t, startProcess(t, env, "--rules", rules).GRPC)))
	}
	ask1 := func(n int, req *ratelimitv3.RateLimitRequest) *ratelimitv3.RateLimitResponse {
		ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
		defer cancel()
		got, err := services[n%processes].ShouldRateLimit(ctx, req)
		if err != nil {
			t.Error(err)
		}
		return got
	}
	// everywhere runs do for 0 to n-1 from many goroutines, in random order.
	everywhere := func(n int, do func(int)) {
		order := make(chan int, n)
		for _, i := range rand.Perm(n) {
			order <- i
		}
		close(order)
		var wg sync.WaitGroup
		for range goroutines {
			wg.Go(func() {
				for i := range order {
					if !t.Failed() {
						do(i)
					}
				}
			})
		}
		wg.Wait()
	}

	t.Run("independent", func(t *testing.T) {
		// each cold counter is sent one hit more than its limit; a request has 20 of them
		const cold, limit, hits, each = 10_000, 3, 4, 20
		start := time.Now()
		var hot atomic.Int64
		admitted := make([]atomic.Int64, cold)
		everywhere(cold*hits/each, func(i int) {
			req := ask("d", "hot", "v")
			first := i * each % cold
			for n := range each {
				req.Descriptors = append(req.Descriptors, ask("d", "cold", fmt.Sprint(first+n)).GetDescriptors()...)
			}
			for n, s := range ask1(i, req).GetStatuses() {
				switch {
				case s.GetCode() != ratelimitv3.RateLimitResponse_OK:
				case n == 0:
					hot.Add(1)
				default:
					admitted[first+n-1].Add(1)
				}
			}
		})
		if n := hot.Load(); n != 500 {
			t.Errorf("the hot counter admitted %d, want exactly 500", n)
		}
		wrong := 0
		for i := range admitted {
			if n := admitted[i].Load(); n != limit {
				wrong++
				t.Logf("cold counter %d admitted %d", i, n)
			}
		}
		if wrong > 0 {
			t.Errorf("%d of %d cold counters did not admit exactly %d", wrong, cold, limit)
		}
		t.Logf("%d hits on %d counters in %s", cold*hits+cold*hits/each, cold+1, time.Since(start))
	})

	t.Run("all_or_nothing", func(t *testing.T) {
		const wide, requests = 1000, 2000
		passed := make([]atomic.Int64, wide)
		var admitted atomic.Int64
		try := func(i int) bool {
			req := ask("together", "wide", fmt.Sprint(i%wide))
			req.Descriptors = append(req.Descriptors, ask("together", "narrow", "v").GetDescriptors()...)
			if ask1(i, req).GetOverallCode() != ratelimitv3.RateLimitResponse_OK {
				return false
			}
			admitted.Add(1)
			passed[i%wide].Add(1)
			return true
		}
		everywhere(requests, func(i int) { try(i) })
		if n := admitted.Load(); n > 500 || n < 400 { // others are denied between a reservation and its return
			t.Errorf("admitted %d of 500 under load", n)
		}
		for i := 0; !t.Failed() && try(i); i++ {
		}
		if n := admitted.Load(); n != 500 {
			t.Errorf("admitted %d at rest, want exactly 500", n)
		}
		used := servicetest.Counts(t, "together|wide", c.Nodes...)
		for i := range passed {
			if got, want := used[fmt.Sprint(i)], passed[i].Load(); got != want {
				t.Errorf("wide counter %d has %d used, want %d: denied requests took from it", i, got, want)
			}
		}
	})
}
