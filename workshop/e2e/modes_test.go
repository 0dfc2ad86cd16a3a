package e2e

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
)

// byHeaders is a listener that makes a descriptor for each of the headers x-KEY that a request has.
func byHeaders(filter string, keys ...string) listener {
	l := listener{Name: "main", Filter: filter, Routes: `
- match: {prefix: /}
  route:
    cluster: upstream
    rate_limits:`}
	for _, key := range keys {
		l.Routes += "\n    - actions: [{request_headers: {header_name: x-" + key + ", descriptor_key: " + key + "}}]"
	}
	return l
}

// With SHADOW_MODE no request is denied and clients notice nothing, but metrics count the requests that would be
// denied.
func TestShadowMode(t *testing.T) {
	f := startFleet(t, "headers: [ratelimit, retry-after]\n"+perUser(1), "SHADOW_MODE=true")
	e := startEnvoy(t, bootstrap{Clusters: f.clusters(), Listeners: []listener{byUser("failure_mode_deny: true")}})
	if got := e.codes(t, 4, "main", "/", "x-user", "u"); !slices.Equal(got, []int{200, 200, 200, 200}) {
		t.Errorf("got %v", got)
	}
	has(t, e.get(t, "main", "/", "x-user", "u"), "retry-after")
	shadowed := 0.0
	for _, s := range f.services {
		shadowed += s.metrics(t)["ratelimitd_global_shadow_mode_total"]
	}
	if shadowed != 4 {
		t.Errorf("%v requests would have been denied, want 4", shadowed)
	}
	f.agree(t, []*envoy{e}, "main")
}

// In quota mode, a request passes if one of several descriptors has room.
func TestQuotaMode(t *testing.T) {
	f := startFleet(t, `
domain: e2e
descriptors:
  - {key: small, quota_mode: true, rate_limit: {unit: day, requests_per_unit: 1}}
  - {key: large, quota_mode: true, rate_limit: {unit: day, requests_per_unit: 3}}
`)
	e := startEnvoy(t, bootstrap{Clusters: f.clusters(), Listeners: []listener{byHeaders("failure_mode_deny: true", "small", "large")}})
	if got := e.codes(t, 4, "main", "/", "x-small", "s", "x-large", "l"); !slices.Equal(got, []int{200, 200, 200, 429}) {
		t.Errorf("got %v", got)
	}
	f.agree(t, []*envoy{e}, "main")
}

// With admission: all_or_nothing, a request that one limit denies charges no other limit.
func TestAllOrNothing(t *testing.T) {
	f := startFleet(t, `
domain: e2e
admission: all_or_nothing
descriptors:
  - {key: customer, rate_limit: {unit: day, requests_per_unit: 1}}
  - {key: all, rate_limit: {unit: day, requests_per_unit: 2}}
`)
	e := startEnvoy(t, bootstrap{Clusters: f.clusters(), Listeners: []listener{byHeaders("failure_mode_deny: true", "customer", "all")}})
	if got := e.codes(t, 5, "main", "/", "x-customer", "greedy", "x-all", "a"); !slices.Equal(got, []int{200, 429, 429, 429, 429}) {
		t.Errorf("got %v", got)
	}
	if got := e.codes(t, 2, "main", "/", "x-customer", "modest", "x-all", "a"); !slices.Equal(got, []int{200, 429}) {
		t.Errorf("got %v: the greedy one has drained what is for all", got)
	}
	f.agree(t, []*envoy{e}, "main")
}

// The filter can have limits in its own settings, without routes. Envoy can use Google's gRPC client instead of its
// own.
func TestFilterSettings(t *testing.T) {
	f := startFleet(t, perUser(1))
	const noLimits = `
- match: {prefix: /}
  route: {cluster: upstream}
`
	google := byUser("failure_mode_deny: true")
	google.Name, google.Call = "google", "google_grpc: {target_uri: "+f.services[0].GRPC+", stat_prefix: google}"
	e := startEnvoy(t, bootstrap{Clusters: f.clusters(), Listeners: []listener{
		{Name: "filter", Routes: noLimits, Filter: "rate_limits: [{actions: [{request_headers: {header_name: x-user, descriptor_key: user}}]}]"},
		google,
	}})
	for _, listener := range []string{"filter", "google"} {
		if got := e.codes(t, 2, listener, "/", "x-user", listener); !slices.Equal(got, []int{200, 429}) {
			t.Errorf("%s: %v", listener, got)
		}
	}
	f.agree(t, []*envoy{e}, "filter", "google")
}

// limitedConnections are the rule and the filter that docs/do/envoy.md shows for TCP connections.
const (
	limitedConnections = `
domain: tcp
descriptors:
  - {key: connections_of, rate_limit: {unit: minute, requests_per_unit: 60}}
`
	limitsConnections = `
- name: envoy.filters.network.ratelimit
  typed_config:
    "@type": type.googleapis.com/envoy.extensions.filters.network.ratelimit.v3.RateLimit
    stat_prefix: tcp
    domain: tcp
    timeout: 0.1s
    descriptors: [{entries: [{key: connections_of, value: "%DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT%"}]}]
    rate_limit_service:
      transport_api_version: V3
      grpc_service: {envoy_grpc: {cluster_name: ratelimitd}}
`
)

// shows fails the test if a page does not show these settings.
func shows(t *testing.T, page string, settings ...string) {
	t.Helper()
	text, err := os.ReadFile("../../docs/do/" + page)
	if err != nil {
		t.Fatal(err)
	}
	for _, shown := range settings {
		if !strings.Contains(string(text), "```yaml"+shown+"```") {
			t.Errorf("docs/do/%s shows other settings than these:%s", page, shown)
		}
	}
}

const deniesWhenFull = `
overload_manager:
  refresh_interval: 0.25s
  resource_monitors:
    - name: envoy.resource_monitors.fixed_heap
      typed_config:
        "@type": type.googleapis.com/envoy.extensions.resource_monitors.fixed_heap.v3.FixedHeapConfig
        max_heap_size_bytes: 2147483648
  actions:
    - name: envoy.overload_actions.stop_accepting_requests
      triggers:
        - name: envoy.resource_monitors.fixed_heap
          threshold: {value: 0.95}
`

// An Envoy without memory denies requests itself, and asks no service.
func TestOverloadedEnvoy(t *testing.T) {
	shows(t, "envoy.md", deniesWhenFull)
	f := startFleet(t, perUser(1_000_000))
	full := strings.Replace(deniesWhenFull, "max_heap_size_bytes: 2147483648", "max_heap_size_bytes: 1", 1)
	e := startEnvoy(t, bootstrap{Clusters: f.clusters(), Listeners: []listener{byUser("")}, More: full})
	await(t, "Envoy to find that it is full", func(context.Context) error {
		if r := e.get(t, "main", "/", "x-user", "ann"); r.code != http.StatusServiceUnavailable {
			return fmt.Errorf("status %d", r.code)
		}
		return nil
	})
	before := answered(t, f.services...)
	for range 5 {
		if r := e.get(t, "main", "/", "x-user", "ann"); r.code != http.StatusServiceUnavailable {
			t.Errorf("status %d, want 503", r.code)
		}
	}
	if got := answered(t, f.services...); got != before {
		t.Errorf("the services answered %+v, and %+v before", got, before)
	}
}

// TCP connections are limited too: Envoy closes the denied ones.
func TestTCP(t *testing.T) {
	shows(t, "envoy.md", limitedConnections, limitsConnections)
	f := startFleet(t, strings.Replace(limitedConnections, "unit: minute, requests_per_unit: 60", "unit: day, requests_per_unit: 2", 1))
	patiently := strings.NewReplacer("timeout: 0.1s", "timeout: 10s", "cluster_name: ratelimitd", "cluster_name: rls").Replace(limitsConnections)
	e := startEnvoy(t, bootstrap{Clusters: f.clusters(), Listeners: []listener{{Name: "main", NetworkFilters: patiently + `
- name: envoy.filters.network.tcp_proxy
  typed_config:
    "@type": type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy
    stat_prefix: tcp
    cluster: upstream
`}}})
	for i := range 4 {
		// a new connection for each request
		client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: patience}
		res, err := client.Get("http://" + e.ports["main"])
		if err == nil {
			_ = res.Body.Close()
		}
		if passed := err == nil; passed != (i < 2) {
			t.Errorf("connection %d: %v", i+1, err)
		}
	}
	stats := e.stats(t, "ratelimit.tcp")
	for name, want := range map[string]int{"total": 4, "ok": 2, "over_limit": 2, "cx_closed": 2, "error": 0} {
		if got := stats["ratelimit.tcp."+name]; got != want {
			t.Errorf("Envoy counted %d %s, want %d", got, name, want)
		}
	}
	if got, want := answered(t, f.services...), (answers{OK: 2, OverLimit: 2}); got != want {
		t.Errorf("the services answered %+v, want %+v", got, want)
	}
}
