package e2e

import (
	"net/http"
	"os"
	"strings"
	"testing"
)

// A local limit of Envoy in front, as the page shows it, denies a flood before ratelimitd counts it. Its bucket is not
// refilled here, so that the number does not depend on the time.
func TestLocalLimitInFront(t *testing.T) {
	needsEnvoy(t)
	page, err := os.ReadFile("../../docs/do/envoy.md")
	if err != nil {
		t.Fatal(err)
	}
	_, filter, begins := strings.Cut(string(page), "<!-- local: filter -->\n```yaml\n")
	filter, _, ends := strings.Cut(filter, "```\n")
	if !begins || !ends || !strings.Contains(filter, "fill_interval: 1s") {
		t.Fatal("the page does not show the filter")
	}
	s := startService(t, "ratelimitd", rules(t, `
domain: local
descriptors:
  - {key: route, rate_limit: {unit: day, requests_per_unit: 90}}
`))
	e := startEnvoy(t, bootstrap{
		Clusters: []cluster{upstreamCluster(startUpstream(t)), rls(s)},
		Listeners: []listener{{
			Name:          "local",
			FiltersBefore: "\n" + strings.Replace(filter, "fill_interval: 1s", "fill_interval: 86400s", 1),
			Routes: `
- match: {prefix: /}
  typed_per_filter_config:
    envoy.filters.http.ratelimit:
      "@type": type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimitPerRoute
      domain: local
  route:
    cluster: upstream
    rate_limits:
    - actions: [{generic_key: {descriptor_key: route, descriptor_value: all}}]
`,
		}},
	})
	answers := make(map[int]int)
	for range 130 {
		answers[ask(t, http.MethodGet, e.ports["local"], "/", "free")]++
	}
	if answers[http.StatusOK] != 90 || answers[http.StatusTooManyRequests] != 40 {
		t.Errorf("%v, want 90 that pass", answers)
	}
	if hits := s.metrics(t)[`ratelimitd_rule_hits_total{domain="local",rule="route"}`]; hits != 100 {
		t.Errorf("ratelimitd has counted %v hits, want the 100 that the local limit let through", hits)
	}
}
