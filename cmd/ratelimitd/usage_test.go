package main

import (
	"fmt"
	"strings"
	"testing"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
	"github.com/ratelimitd/ratelimitd/internal/testkit/servicetest"
)

const usageRules = `
domain: api
descriptors:
  - key: tenant
    usage: true
    rate_limit: {unit: year, requests_per_unit: 10}
    descriptors:
      - key: path
        usage: true
        rate_limit: {unit: year, requests_per_unit: 5, algorithm: token_bucket}
      - key: method
        rate_limit: {unit: year, requests_per_unit: 5}
`

// All counters in use of one customer are listed, whichever process counted them, and no others.
func TestUsage(t *testing.T) {
	memory := map[string]string{"RATELIMITD_ADMIN_TOKEN": adminToken}
	for name, start := range map[string]func(t *testing.T, rules string) (here, there *servicetest.Process){
		"memory": func(t *testing.T, rules string) (here, there *servicetest.Process) {
			p := startProcess(t, memory, "--rules", rules)
			return p, p
		},
		"redis": func(t *testing.T, rules string) (here, there *servicetest.Process) {
			env := map[string]string{"RATELIMITD_ADMIN_TOKEN": adminToken, "REDIS_URL": redistest.Start(t).Addr, "REDIS_OP_TIMEOUT": "5s"}
			return startProcess(t, env, "--rules", rules), startProcess(t, env, "--rules", rules)
		},
	} {
		t.Run(name, func(t *testing.T) {
			here, there := start(t, rulesOf(t, usageRules))
			use := func(p *servicetest.Process, times int, entries ...string) {
				t.Helper()
				for range times {
					if _, err := ratelimitv3.NewRateLimitServiceClient(dial(t, p.GRPC)).ShouldRateLimit(t.Context(), ask("api", entries...)); err != nil {
						t.Fatal(err)
					}
				}
			}
			list := func(args ...string) (code int, out string) {
				t.Helper()
				code, out, stderr := asks(t, append([]string{"usage", "-s", here.Debug, "--token-file", tokenFile(t, adminToken), "-d", "api"}, args...)...)
				if stderr != "" {
					t.Error(stderr)
				}
				return code, out
			}
			if code, out := list("--where", "tenant=acme"); code != exitNothing || !strings.Contains(out, "no counter") {
				t.Errorf("%d before any use:\n%s", code, out)
			}
			use(here, 3, "tenant", "acme")
			use(there, 2, "tenant", "acme", "path", "/x")
			use(here, 1, "tenant", "acme", "path", "/y")
			use(here, 1, "tenant", "acme", "method", "GET") // no usage
			use(here, 1, "tenant", "other", "path", "/x")
			var out string
			until(t, "three descriptors are listed", func() bool {
				_, out = list("--where", "tenant=acme")
				return strings.Contains(out, "3 descriptors")
			})
			for _, want := range []string{
				"tenant=acme\nrule     api.tenant\nlimit    10 per year, fixed window: 3 of 10 used, 7 left",
				"tenant=acme, path=/x\nrule     api.tenant.path\nlimit    5 per year, token bucket, burst 5: 2 of 5 used, 3 left",
				"tenant=acme, path=/y\nrule     api.tenant.path\nlimit    5 per year, token bucket, burst 5: 1 of 5 used, 4 left",
			} {
				if !strings.Contains(out, want) {
					t.Errorf("%q is missing:\n%s", want, out)
				}
			}
			if code, out := list("--where", "path=/x"); code != 0 || !strings.Contains(out, "2 descriptors") || !strings.Contains(out, "tenant=other") {
				t.Errorf("%d, by the second entry:\n%s", code, out)
			}
			if code, out := list("--where", "path=/x,tenant=acme", "--json"); code != 0 || strings.Count(out, `"used": "2"`) != 1 || strings.Contains(out, `"other"`) {
				t.Errorf("%d, by two entries:\n%s", code, out)
			}
			if code, _, _ := asks(t, "reset", "-s", there.Debug, "--token-file", tokenFile(t, adminToken), "-d", "api", "tenant=acme"); code != 0 {
				t.Fatal(code)
			}
			if code, out := list("--where", "tenant=acme"); code != 0 || !strings.Contains(out, "2 descriptors") {
				t.Errorf("%d after a reset:\n%s", code, out)
			}
			for i := range 300 { // several pages
				use(there, 1, "tenant", "big", "path", fmt.Sprint(i))
			}
			until(t, "all pages are listed", func() bool {
				_, out = list("--where", "tenant=big")
				return strings.Contains(out, "300 descriptors\n")
			})
			if code, out := list("--where", "tenant=big", "--most", "10"); code != 0 || !strings.Contains(out, "there may be more") {
				t.Errorf("%d, one page: %.100s", code, out)
			}
		})
	}
}
