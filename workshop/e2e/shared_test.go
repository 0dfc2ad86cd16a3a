package e2e

import (
	"fmt"
	"sync"
	"testing"
)

// Two Envoys call two ratelimitd at the same time for the same counters. Exactly the limit passes, with every
// algorithm.
func TestOneLimitForAll(t *testing.T) {
	const limit, perAlgorithm, callers = 60, 200, 8
	f := startFleet(t, fmt.Sprintf(`
domain: e2e
descriptors:
  - {key: algorithm, value: fixed_window, rate_limit: {unit: day, requests_per_unit: %[1]d}}
  - {key: algorithm, value: first_hit, rate_limit: {unit: day, requests_per_unit: %[1]d, align: first_hit}}
  - {key: algorithm, value: sliding_window, rate_limit: {unit: day, requests_per_unit: %[1]d, algorithm: sliding_window}}
  - {key: algorithm, value: sliding_log, rate_limit: {unit: day, requests_per_unit: %[1]d, algorithm: sliding_log}}
  - {key: algorithm, value: token_bucket, rate_limit: {unit: day, requests_per_unit: 1, algorithm: token_bucket, burst: %[1]d}}
  - {key: algorithm, value: several, rate_limits: [
      {name: day, unit: day, requests_per_unit: %[1]d}, {name: week, unit: week, requests_per_unit: 1000}]}
`, limit))
	main := byUser("failure_mode_deny: true")
	main.Routes = `
- match: {prefix: /}
  route:
    cluster: upstream
    rate_limits:
    - actions: [{request_headers: {header_name: x-algorithm, descriptor_key: algorithm}}]
`
	var envoys []*envoy
	for i := range 2 {
		envoys = append(envoys, startEnvoy(t, bootstrap{Name: fmt.Sprintf("envoy %d", i+1), Clusters: f.clusters(), Listeners: []listener{main}}))
	}
	for _, algorithm := range []string{"fixed_window", "first_hit", "sliding_window", "sliding_log", "token_bucket", "several"} {
		t.Run(algorithm, func(t *testing.T) {
			var all sync.WaitGroup
			codes := make(chan int, perAlgorithm)
			for i := range callers {
				all.Go(func() {
					for range perAlgorithm / callers {
						r, err := envoys[i%2].try(t, "main", "/", "x-algorithm", algorithm)
						if err != nil {
							t.Error(err)
						}
						codes <- r.code
					}
				})
			}
			all.Wait()
			close(codes)
			got := make(map[int]int)
			for code := range codes {
				got[code]++
			}
			if got[200] != limit || got[429] != perAlgorithm-limit {
				t.Errorf("got %v, want %d of 200 and %d of 429", got, limit, perAlgorithm-limit)
			}
		})
	}
	for i, s := range f.services {
		if a := s.metrics(t).answers(); a.OK == 0 || a.OverLimit == 0 {
			t.Errorf("service %d was not asked by both: %+v", i+1, a)
		}
	}
	f.agree(t, envoys, "main")
}
