package main

import (
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
	"github.com/ratelimitd/ratelimitd/internal/testkit/servicetest"
	"github.com/ratelimitd/ratelimitd/ratelimit"
	"github.com/ratelimitd/ratelimitd/ratelimit/redisstore"
	"github.com/ratelimitd/ratelimitd/ratelimit/rulefiles"
)

// The library and the service count together, for every algorithm and with leases.
func TestLibraryBesideTheService(t *testing.T) {
	rules := rulesOf(t, `
domain: api
descriptors:
  - key: fixed_window
    rate_limit: {unit: year, requests_per_unit: 600}
  - key: sliding_window
    rate_limit: {unit: year, requests_per_unit: 600, algorithm: sliding_window}
  - key: sliding_log
    rate_limit: {unit: year, requests_per_unit: 600, algorithm: sliding_log}
  - key: token_bucket
    rate_limit: {unit: year, requests_per_unit: 600, algorithm: token_bucket}
  - key: leased
    rate_limit: {unit: year, requests_per_unit: 600, lease: true}
`)
	for _, format := range []string{"ratelimitd", "lyft"} {
		t.Run(format, func(t *testing.T) {
			r := redistest.Start(t)
			p := startProcess(t, map[string]string{
				"REDIS_URL": r.Addr, "CACHE_KEY_PREFIX": "p:", "REDIS_OP_TIMEOUT": "10s", "REDIS_KEY_FORMAT": format,
			}, "--rules", rules)
			l, err := ratelimit.Open(t.Context(), ratelimit.Options{
				Dir:    rulefiles.Dir(rules),
				Store:  redisstore.New(redisstore.Options{URL: r.Addr, Timeout: 10 * time.Second, KeyPrefix: "p:", LyftKeys: format == keysLyft}),
				Logger: slog.New(slog.DiscardHandler),
			})
			if err != nil {
				t.Fatal(err)
			}
			service := ratelimitv3.NewRateLimitServiceClient(servicetest.Dial(t, p.GRPC))
			for _, key := range []string{"fixed_window", "sliding_window", "sliding_log", "token_bucket", "leased"} {
				var here, there atomic.Int64
				var all sync.WaitGroup
				for range 8 {
					all.Go(func() {
						for range 100 {
							if ok, err := l.Allow(t.Context(), "api", key, "x"); err != nil {
								t.Error(err)
							} else if ok {
								here.Add(1)
							}
						}
					})
					all.Go(func() {
						for range 100 {
							if a, err := service.ShouldRateLimit(t.Context(), ask("api", key, "x")); err != nil {
								t.Error(err)
							} else if a.GetOverallCode() == ratelimitv3.RateLimitResponse_OK {
								there.Add(1)
							}
						}
					})
				}
				all.Wait()
				sum := here.Load() + there.Load()
				t.Logf("%s: %d here, %d in the service", key, here.Load(), there.Load())
				if sum > 600 || sum < 570 || key != "leased" && sum != 600 { // permits that the other one holds are not used
					t.Errorf("%s: %d requests passed a limit of 600", key, sum)
				}
				if here.Load() == 0 || there.Load() == 0 {
					t.Errorf("%s: %d here, %d in the service", key, here.Load(), there.Load())
				}
			}
			if err := l.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}
