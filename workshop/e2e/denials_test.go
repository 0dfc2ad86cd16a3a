package e2e

import (
	"fmt"
	"strings"
	"testing"
)

// A request is denied by the limit of its second descriptor, which has some hits left, but too few for this request.
// The limit of its first descriptor lets it pass, and has fewer left. Envoy's x-ratelimit headers show the limit that
// denied it, under every algorithm and admission. The case comes from users of a gateway: their clients repeated
// requests every minute although an hour's limit denied them.
func TestEnvoyShowsTheLimitThatDenied(t *testing.T) {
	limits := map[string]string{
		"fixed_window":   "unit: hour, requests_per_unit: 100",
		"sliding_window": "unit: hour, requests_per_unit: 100, algorithm: sliding_window",
		"sliding_log":    "unit: hour, requests_per_unit: 100, algorithm: sliding_log",
		"token_bucket":   "unit: hour, requests_per_unit: 100, algorithm: token_bucket",
		"leaky_bucket":   "unit: hour, requests_per_unit: 100, algorithm: leaky_bucket, burst: 99, nodelay: all",
		"concurrency":    "algorithm: concurrency, max_in_flight: 100, ttl: 1h",
		"reservations":   "unit: hour, requests_per_unit: 100}, reservations: {max_share: 1",
	}
	var rule, routes strings.Builder
	for _, admission := range []string{"independent", "all_or_nothing"} {
		for name, limit := range limits {
			fmt.Fprintf(&rule, `---
domain: %[1]s-%[2]s
admission: %[1]s
descriptors:
  - {key: requests, rate_limit: {unit: day, requests_per_unit: 4}}
  - {key: spend, rate_limit: {name: spend, %[3]s}}
`, admission, name, limit)
			routes.WriteString(heavy(admission+"-"+name, name == "reservations"))
		}
	}
	f := startFleet(t, strings.TrimPrefix(rule.String(), "---\n"))
	e := startEnvoy(t, bootstrap{
		Clusters:  f.clusters(),
		Listeners: []listener{{Name: "envoy", Filter: "enable_x_ratelimit_headers: DRAFT_VERSION_03", Routes: routes.String()}},
	})
	for _, admission := range []string{"independent", "all_or_nothing"} {
		for name := range limits {
			t.Run(name+", "+admission, func(t *testing.T) {
				path := "/" + admission + "-" + name
				ok, denied := e.get(t, "envoy", path, "x-cost", "94"), e.get(t, "envoy", path, "x-cost", "10")
				if ok.code != 200 || denied.code != 429 {
					t.Fatalf("got %d and %d", ok.code, denied.code)
				}
				limit := `4;w=86400, 100;w=3600;name="spend"`
				if name == "concurrency" {
					limit = "4;w=86400" // Envoy lists no limit without a window
				}
				has(t, ok, "x-ratelimit-limit", "4, "+limit)
				has(t, ok, "x-ratelimit-remaining", "3")
				has(t, denied, "x-ratelimit-limit", "100, "+limit)
				has(t, denied, "x-ratelimit-remaining", "0")
				// in a sliding window, 94 hits of this hour count in the next one, too
				hasSeconds(t, denied, "x-ratelimit-reset", 1, 2*3600)
			})
		}
	}
}

// heavy is a route /DOMAIN. Each request counts once under one descriptor, and as many times as a header says under
// another, which may be a reservation.
func heavy(domain string, reserved bool) string {
	reserve := ""
	if reserved {
		reserve = `
          - request_headers: {header_name: x-request-id, descriptor_key: reserve_id}`
	}
	return `
- match: {prefix: /` + domain + `}
  route: {cluster: upstream}
  typed_per_filter_config:
    envoy.filters.http.ratelimit:
      "@type": type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimitPerRoute
      domain: ` + domain + `
      rate_limits:
      - actions:
          - generic_key: {descriptor_key: requests, descriptor_value: u}
      - actions:
          - generic_key: {descriptor_key: spend, descriptor_value: u}` + reserve + `
        hits_addend: {format: "%REQ(x-cost)%"}
`
}
