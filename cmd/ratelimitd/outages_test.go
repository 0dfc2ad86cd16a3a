package main

import (
	"context"
	"fmt"
	"strings"
	"testing"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
)

// With on_error: local a window allows the limit in Redis and once more in this process, however often Redis fails
// during the window.
func TestOutagesAdmitTwiceALimit(t *testing.T) {
	r := redistest.Start(t)
	p := startProcess(t, map[string]string{"REDIS_URL": r.Addr, "RATELIMITD_ON_ERROR": "local"},
		"--rules", rulesOf(t, "domain: d\ndescriptors:\n  - key: k\n    rate_limit: {unit: year, requests_per_unit: 10}\n"))
	client := ratelimitv3.NewRateLimitServiceClient(dial(t, p.GRPC))
	const calls = 15
	passed := func() (n int) {
		t.Helper()
		for range calls {
			answer, err := client.ShouldRateLimit(t.Context(), ask("d", "k", "v"))
			if err != nil {
				t.Fatal(err)
			}
			if answer.OverallCode == ratelimitv3.RateLimitResponse_OK {
				n++
			}
		}
		return n
	}
	degraded := func() string {
		return strings.Join(shown(t, "http://"+p.HTTP+"/metrics", "ratelimitd_degraded_requests_total"), "")
	}
	if n := passed(); n != 10 {
		t.Fatalf("%d of %d calls passed with Redis, want 10", n, calls)
	}
	for outage := 1; outage <= 3; outage++ {
		r.Pause(t)
		want := 0
		if outage == 1 {
			want = 10
		}
		if n := passed(); n != want {
			t.Errorf("%d calls passed in outage %d, want %d", n, outage, want)
		}
		if got, want := degraded(), fmt.Sprintf("ratelimitd_degraded_requests_total %d", calls*outage); got != want {
			t.Errorf("outage %d: %s, want %s", outage, got, want)
		}
		r.Continue(t)
		redistest.Eventually(t, "no breaker is open", func(context.Context) error {
			for _, line := range shown(t, "http://"+p.HTTP+"/metrics", "ratelimitd_redis_breaker_open{") {
				if !strings.HasSuffix(line, " 0") {
					return fmt.Errorf("%s", line)
				}
			}
			return nil
		})
		if n := passed(); n != 0 {
			t.Errorf("%d calls passed with Redis after outage %d, want none", n, outage)
		}
	}
}
