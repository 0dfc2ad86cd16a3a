package main

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	ratelimitv3common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/ratelimitd/ratelimitd/internal/redistest"
)

// TestExactUnderConcurrency sends far more requests than the limit admits, from many goroutines over several clients
// to several processes, and counts what passed.
func TestExactUnderConcurrency(t *testing.T) {
	const limit, goroutines, clients, each = 1000, 64, 4, 50
	for _, c := range []struct {
		backend   string
		processes int
	}{{"memory", 1}, {"redis", 2}} {
		t.Run(c.backend, func(t *testing.T) {
			rules := rulesOf(t, fmt.Sprintf("domain: d\ndescriptors:\n  - key: k\n    rate_limit: {unit: year, requests_per_unit: %d}\n", limit))
			env := map[string]string{"REDIS_OP_TIMEOUT": "5s"}
			if c.backend == "redis" {
				env["REDIS_URL"] = redistest.Start(t).Addr
			}
			var services []ratelimitv3.RateLimitServiceClient
			var processes []*process
			for range c.processes {
				processes = append(processes, startProcess(t, env, "--rules", rules))
			}
			for i := range clients {
				services = append(services, ratelimitv3.NewRateLimitServiceClient(dial(t, processes[i%len(processes)].grpc)))
			}
			var admitted, refused atomic.Int64
			var wg sync.WaitGroup
			for i := range goroutines {
				wg.Go(func() {
					for range each {
						got, err := services[i%clients].ShouldRateLimit(t.Context(), ask("d", "k", "v"))
						switch {
						case err != nil:
							t.Error(err)
							return
						case got.GetOverallCode() == ratelimitv3.RateLimitResponse_OK:
							admitted.Add(1)
						default:
							refused.Add(1)
						}
					}
				})
			}
			wg.Wait()
			if admitted.Load() != limit || refused.Load() != goroutines*each-limit {
				t.Errorf("admitted %d and refused %d of %d requests, want exactly %d admitted", admitted.Load(), refused.Load(), goroutines*each, limit)
			}
		})
	}
}

// rulesOf makes a folder of rule files.
func rulesOf(t *testing.T, files ...string) string {
	t.Helper()
	dir := t.TempDir()
	for i, text := range files {
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("rules%d.yaml", i)), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// ask makes a request with one descriptor of these keys and values.
func ask(domain string, pairs ...string) *ratelimitv3.RateLimitRequest {
	d := &ratelimitv3common.RateLimitDescriptor{}
	for i := 0; i < len(pairs); i += 2 {
		d.Entries = append(d.Entries, &ratelimitv3common.RateLimitDescriptor_Entry{Key: pairs[i], Value: pairs[i+1]})
	}
	return &ratelimitv3.RateLimitRequest{Domain: domain, Descriptors: []*ratelimitv3common.RateLimitDescriptor{d}}
}
