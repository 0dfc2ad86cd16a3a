package main

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
	"github.com/ratelimitd/ratelimitd/internal/testkit/servicetest"
)

// upgradeRules have limits that the test uses up, and counters that show how many calls were counted.
const upgradeRules = `
domain: d
descriptors:
  - {key: plain, rate_limit: {unit: year, requests_per_unit: 1000000}}
  - {key: bounded, rate_limit: {unit: year, requests_per_unit: 1000}}
  - {key: leased, rate_limit: {unit: year, requests_per_unit: 4000, lease: true}}
`

// A fleet of two processes goes from the earlier version with grpc-go to this one with the built-in HTTP/2 server and back under load, one
// process at a time on the same ports, and counts in one Redis meanwhile. No call is lost, each is counted once, and no limit is exceeded. What a leased
// limit admits less is what leases hold at most.
func TestUpgradeAndRollBack(t *testing.T) {
	earlier(t) // the build does not count as a call's time
	redis := redistest.Start(t)
	rules := rulesOf(t, upgradeRules)
	launch := func(before bool, port string) *servicetest.Process {
		transport := "lean"
		if before {
			transport = "grpc-go"
		}
		return startVersion(t, before, map[string]string{
			"REDIS_URL": redis.Addr, "REDIS_OP_TIMEOUT": "10s", "GRPC_PORT": port, "RATELIMITD_REUSE_PORT": "true", servicetest.Transport: transport,
		}, "--rules", rules)
	}
	fleet := []*servicetest.Process{launch(true, "0"), launch(true, "0")}
	var ports []string
	for _, p := range fleet {
		_, port, err := net.SplitHostPort(p.GRPC)
		if err != nil {
			t.Fatal(err)
		}
		ports = append(ports, port)
	}

	keys := []string{"plain", "bounded", "leased"}
	admitted, answered := make(map[string]*atomic.Int64), make(map[string]*atomic.Int64)
	for _, key := range keys {
		admitted[key], answered[key] = new(atomic.Int64), new(atomic.Int64)
	}
	var (
		callers sync.WaitGroup
		stop    atomic.Bool
	)
	for i := range 12 {
		client, key := ratelimitv3.NewRateLimitServiceClient(dial(t, fleet[i%2].GRPC)), keys[i/2%3]
		callers.Go(func() {
			for !stop.Load() {
				ctx, cancel := context.WithTimeout(context.Background(), patience)
				got, err := client.ShouldRateLimit(ctx, ask("d", key, "v"))
				cancel()
				if err != nil {
					t.Errorf("a call under %s is lost: %v", key, err)
					return
				}
				answered[key].Add(1)
				if got.GetOverallCode() == ratelimitv3.RateLimitResponse_OK {
					admitted[key].Add(1)
				}
			}
		})
	}
	t.Cleanup(func() { stop.Store(true); callers.Wait() })
	load := func() {
		count := make(map[string]int64)
		for _, key := range keys {
			count[key] = answered[key].Load()
		}
		redistest.Eventually(t, "answers", func(context.Context) error {
			for _, key := range keys {
				if n := answered[key].Load() - count[key]; n < 100 {
					return fmt.Errorf("%s has %d", key, n)
				}
			}
			return nil
		})
	}
	leased := 0
	for _, before := range []bool{false, true} {
		for i := range fleet {
			load()
			next := launch(before, ports[i]) // listens on the same port before the other one leaves
			if _, body := get(t, "http://"+fleet[i].HTTP+"/metrics"); leasedPermits(body) {
				leased++
			}
			fleet[i].Signal(t, syscall.SIGTERM)
			<-fleet[i].Ended
			fleet[i] = next
		}
	}
	load()
	// What is left of the limits is used up, so that they are compared in full.
	redistest.Eventually(t, "the limits to be used up", func(context.Context) error {
		for key, enough := range map[string]int64{"bounded": 1500, "leased": 5000} {
			if n := answered[key].Load(); n < enough {
				return fmt.Errorf("%s has %d answers", key, n)
			}
		}
		return nil
	})
	stop.Store(true)
	callers.Wait()

	counts := servicetest.Counts(t, "d|plain", redis)
	if n := admitted["plain"].Load(); counts["v"] != n {
		t.Errorf("%d calls passed, and Redis has counted %d", n, counts["v"])
	}
	if n := admitted["bounded"].Load(); n != 1000 {
		t.Errorf("a limit of 1000 admitted %d", n)
	}
	if n := admitted["leased"].Load(); n > 4000 || n < 3800 {
		t.Errorf("a leased limit of 4000 admitted %d", n)
	}
	if leased == 0 {
		t.Error("nothing was leased")
	}
	t.Logf("answered %d, %d and %d calls", answered["plain"].Load(), answered["bounded"].Load(), answered["leased"].Load())
	for _, p := range fleet {
		if lines := p.Log.With(`"level":"error"`); len(lines) > 0 {
			t.Errorf("errors were logged:\n%s", strings.Join(lines, ""))
		}
	}
}
