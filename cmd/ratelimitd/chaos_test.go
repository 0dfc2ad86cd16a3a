package main

import (
	"context"
	"fmt"
	"testing"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ratelimitd/ratelimitd/internal/redistest"
)

// opTimeout is REDIS_OP_TIMEOUT in these tests. A call may take ten times that on a busy machine.
const opTimeout = 50 * time.Millisecond

const onErrorRules = `
domain: d
descriptors:
  - key: error
    rate_limit: {unit: year, requests_per_unit: 1000000}
  - key: allow
    on_error: allow
    rate_limit: {unit: year, requests_per_unit: 1000000}
  - key: deny
    on_error: deny
    rate_limit: {unit: year, requests_per_unit: 1000000}
  - key: local
    on_error: local
    rate_limit: {unit: year, requests_per_unit: 10}
`

// TestRedisIsSick lets Redis die and hang under a running service: every call is answered in bounded time, as on_error
// says, health stays green, and the service finds Redis again by itself.
func TestRedisIsSick(t *testing.T) {
	for name, c := range map[string]struct {
		break_, mend func(*redistest.Server, testing.TB)
	}{
		"killed and restarted": {(*redistest.Server).Kill, (*redistest.Server).Restart},
		"stopped by a signal":  {(*redistest.Server).Pause, (*redistest.Server).Continue},
	} {
		t.Run(name, func(t *testing.T) {
			r := redistest.Start(t)
			p := startProcess(t, map[string]string{
				"REDIS_URL": r.Addr, "REDIS_OP_TIMEOUT": opTimeout.String(), "RATELIMITD_REPLICAS": "2", "LIMIT_RESPONSE_HEADERS_ENABLED": "true",
			}, "--rules", rulesOf(t, onErrorRules))
			client := ratelimitv3.NewRateLimitServiceClient(dial(t, p.grpc))
			call := func(key string) (*ratelimitv3.RateLimitResponse, error) {
				t.Helper()
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				defer cancel()
				start := time.Now()
				got, err := client.ShouldRateLimit(ctx, ask("d", key, "v"))
				if took := time.Since(start); took > 10*opTimeout {
					t.Errorf("a call for %q took %s with a timeout of %s", key, took, opTimeout)
				}
				return got, err
			}
			if _, err := call("error"); err != nil {
				t.Fatal(err)
			}
			c.break_(r, t)

			for range 20 { // more than it takes to open the breaker
				if _, err := call("error"); status.Code(err) != codes.Unavailable {
					t.Fatalf("on_error: error answered %v, want UNAVAILABLE", err)
				}
			}
			if got, err := call("allow"); err != nil || got.GetOverallCode() != ratelimitv3.RateLimitResponse_OK || header(got, "x-ratelimit-degraded") != "allow" {
				t.Errorf("on_error: allow answered %v %v", got, err)
			}
			if got, err := call("deny"); err != nil || got.GetOverallCode() != ratelimitv3.RateLimitResponse_OVER_LIMIT {
				t.Errorf("on_error: deny answered %v %v", got, err)
			}
			for i := range 6 {
				want := ratelimitv3.RateLimitResponse_OK
				if i == 5 { // half of 10, for two replicas
					want = ratelimitv3.RateLimitResponse_OVER_LIMIT
				}
				if got, err := call("local"); err != nil || got.GetOverallCode() != want {
					t.Errorf("on_error: local, hit %d: %v %v, want %s", i, got, err, want)
				}
			}
			if code, body := get(t, "http://"+p.http+"/healthcheck"); code != 200 {
				t.Errorf("health without Redis: %d %s", code, body)
			}

			c.mend(r, t)
			mended := time.Now()
			for {
				got, err := call("error")
				if err == nil && got.GetOverallCode() == ratelimitv3.RateLimitResponse_OK {
					break
				}
				if time.Since(mended) > 10*2*time.Second {
					t.Fatalf("20 s after Redis came back: %v %v", got, err)
				}
			}
			t.Logf("served again %s after Redis was back", time.Since(mended))
		})
	}
}

func header(r *ratelimitv3.RateLimitResponse, key string) string {
	for _, h := range r.GetResponseHeadersToAdd() {
		if h.GetKey() == key {
			return h.GetValue()
		}
	}
	return fmt.Sprintf("no header %s", key)
}
