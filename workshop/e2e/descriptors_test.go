package e2e

import (
	"slices"
	"testing"
)

// The descriptors that each Envoy action makes of a request, and the rule that they match. Every scenario has its own
// counters; all share one Envoy, and two ratelimitd on one Redis.
func TestDescriptors(t *testing.T) {
	f := startFleet(t, `
domain: e2e
descriptors:
  - {key: user, rate_limit: {unit: day, requests_per_unit: 2}}
  - {key: remote_address, rate_limit: {unit: day, requests_per_unit: 2}}
  - {key: remote_address, value_cidr: 10.9.0.0/16, share_threshold: true, rate_limit: {unit: day, requests_per_unit: 3}}
  - {key: masked_remote_address, rate_limit: {unit: day, requests_per_unit: 2}}
  - {key: masked_remote_address, value_cidr: 10.8.0.0/15, rate_limit: {unlimited: true}}
  - {key: masked_remote_address, value_cidr: 10.10.10.0/24, rate_limit: {unit: day, requests_per_unit: 1}}
  - {key: generic_key, value: static, rate_limit: {unit: day, requests_per_unit: 2}}
  - {key: generic_key, value: open, rate_limit: {unlimited: true}}
  - {key: plan, value: free, rate_limit: {unit: day, requests_per_unit: 1}}
  - {key: header_match, value: bot, rate_limit: {unit: day, requests_per_unit: 1}}
  - {key: query, value: expensive, rate_limit: {unit: day, requests_per_unit: 1}}
  - {key: destination_cluster, value: upstream, rate_limit: {unit: day, requests_per_unit: 1}}
  - {key: method_metadata, value: billing, rate_limit: {unit: day, requests_per_unit: 1}}
  - {key: scope, value: all, rate_limit: {unit: day, requests_per_unit: 3}}
  - {key: customer, rate_limit: {unit: day, requests_per_unit: 2}}
  - key: route
    value: nested
    rate_limit: {unit: day, requests_per_unit: 4}
    descriptors:
      - key: tenant
        rate_limit: {unit: day, requests_per_unit: 1}
      - key: tenant
        value: big
        rate_limit: {unit: day, requests_per_unit: 3}
        descriptors:
          - {key: remote_address, rate_limit: {unit: day, requests_per_unit: 2}}
---
domain: other
descriptors:
  - {key: generic_key, value: static, rate_limit: {unit: day, requests_per_unit: 1}}
`)
	e := startEnvoy(t, bootstrap{
		Clusters: f.clusters(),
		Listeners: []listener{{
			Name: "main",
			FiltersBefore: `
- name: envoy.filters.http.set_metadata
  typed_config:
    "@type": type.googleapis.com/envoy.extensions.filters.http.set_metadata.v3.Config
    metadata: [{metadata_namespace: e2e, value: {area: billing}}]
`,
			Routes: `
- match: {prefix: /header}
  route:
    cluster: upstream
    rate_limits:
    - actions: [{request_headers: {header_name: x-user, descriptor_key: user}}]
- match: {prefix: /remote-address}
  route:
    cluster: upstream
    rate_limits:
    - actions: [{remote_address: {}}]
- match: {prefix: /masked}
  route:
    cluster: upstream
    rate_limits:
    - actions: [{masked_remote_address: {v4_prefix_mask_len: 16, v6_prefix_mask_len: 64}}]
- match: {prefix: /of-one-address}
  route:
    cluster: upstream
    rate_limits:
    - actions: [{masked_remote_address: {}}]
- match: {prefix: /static}
  route:
    cluster: upstream
    rate_limits:
    - actions: [{generic_key: {descriptor_value: static}}]
- match: {prefix: /other-domain}
  typed_per_filter_config:
    envoy.filters.http.ratelimit:
      "@type": type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimitPerRoute
      domain: other
  route:
    cluster: upstream
    rate_limits:
    - actions: [{generic_key: {descriptor_value: static}}]
- match: {prefix: /open}
  route:
    cluster: upstream
    rate_limits:
    - actions: [{generic_key: {descriptor_value: open}}]
- match: {prefix: /plan}
  route:
    cluster: upstream
    rate_limits:
    - actions: [{generic_key: {descriptor_key: plan, descriptor_value: free}}]
- match: {prefix: /match-header}
  route:
    cluster: upstream
    rate_limits:
    - actions: [{header_value_match: {descriptor_value: bot, headers: [{name: user-agent, string_match: {contains: crawler}}]}}]
- match: {prefix: /query}
  route:
    cluster: upstream
    rate_limits:
    - actions: [{query_parameters: {query_parameter_name: q, descriptor_key: query}}]
- match: {prefix: /destination}
  route:
    cluster: upstream
    rate_limits:
    - actions: [{destination_cluster: {}}]
- match: {prefix: /metadata}
  route:
    cluster: upstream
    rate_limits:
    - actions: [{metadata: {descriptor_key: method_metadata, metadata_key: {key: e2e, path: [{key: area}]}}}]
- match: {prefix: /several}
  route:
    cluster: upstream
    rate_limits:
    - actions: [{generic_key: {descriptor_key: scope, descriptor_value: all}}]
    - actions: [{request_headers: {header_name: x-customer, descriptor_key: customer}}]
- match: {prefix: /nested}
  route:
    cluster: upstream
    rate_limits:
    - actions:
      - generic_key: {descriptor_key: route, descriptor_value: nested}
      - request_headers: {header_name: x-tenant, descriptor_key: tenant, skip_if_absent: true}
      - request_headers: {header_name: x-deep, descriptor_key: remote_address, skip_if_absent: true}
- match: {prefix: /no-rule}
  route:
    cluster: upstream
    rate_limits:
    - actions: [{generic_key: {descriptor_value: nobody-knows}}]
- match: {prefix: /}
  route: {cluster: upstream}
`,
		}},
	})

	// A step is a request that is sent several times, with the wanted status codes.
	type step struct {
		path    string
		headers []string
		want    []int
	}
	for name, steps := range map[string][]step{
		"header": {
			{"/header", []string{"x-user", "alice"}, []int{200, 200, 429}},
			{"/header", []string{"x-user", "bob"}, []int{200}}, // another counter
		},
		"remote_address": {
			{"/remote-address", []string{"x-forwarded-for", "10.1.2.3"}, []int{200, 200, 429}},
			{"/remote-address", []string{"x-forwarded-for", "10.1.2.4"}, []int{200}},
			{"/remote-address", []string{"x-forwarded-for", "2001:db8::1"}, []int{200, 200, 429}},
		},
		"remote_address in a network that shares a limit": {
			{"/remote-address", []string{"x-forwarded-for", "10.9.0.1"}, []int{200, 200}},
			{"/remote-address", []string{"x-forwarded-for", "10.9.200.2"}, []int{200, 429}},
		},
		"masked_remote_address": {
			{"/masked", []string{"x-forwarded-for", "10.1.2.3"}, []int{200}},
			{"/masked", []string{"x-forwarded-for", "10.1.200.1"}, []int{200, 429}}, // the same network
			{"/masked", []string{"x-forwarded-for", "10.2.2.3"}, []int{200}},
			{"/masked", []string{"x-forwarded-for", "2001:db8::1"}, []int{200}},
			{"/masked", []string{"x-forwarded-for", "2001:db8::ffff:1"}, []int{200, 429}},
		},
		"masked_remote_address in networks of rules": {
			{"/masked", []string{"x-forwarded-for", "10.8.2.3"}, []int{200, 200, 200}},
			{"/of-one-address", []string{"x-forwarded-for", "10.9.2.3"}, []int{200, 200, 200}},
			{"/of-one-address", []string{"x-forwarded-for", "10.10.10.1"}, []int{200, 429}},
			{"/of-one-address", []string{"x-forwarded-for", "10.10.10.2"}, []int{200, 429}},
			// 10.10.0.0/16 is larger than the network
			{"/masked", []string{"x-forwarded-for", "10.10.10.3"}, []int{200, 200, 429}},
		},
		"generic_key":                 {{"/static", nil, []int{200, 200, 429}}},
		"generic_key with a name":     {{"/plan", nil, []int{200, 429}}},
		"a domain of the route's own": {{"/other-domain", nil, []int{200, 429}}},
		"header_value_match": {
			{"/match-header", []string{"user-agent", "a crawler"}, []int{200, 429}},
			{"/match-header", []string{"user-agent", "a browser"}, []int{200, 200}}, // no descriptor: no call
		},
		"query_parameters": {
			{"/query?q=expensive", nil, []int{200, 429}},
			{"/query?q=cheap", nil, []int{200, 200}},
		},
		"destination_cluster": {{"/destination", nil, []int{200, 429}}},
		"metadata":            {{"/metadata", nil, []int{200, 429}}},
		"several descriptors": {
			// the customer's limit; the denied request counted for the total too
			{"/several", []string{"x-customer", "one"}, []int{200, 200, 429}},
			{"/several", []string{"x-customer", "two"}, []int{429}}, // the total limit
		},
		"nested rules": {
			{"/nested", []string{"x-tenant", "small"}, []int{200, 429}},         // any tenant
			{"/nested", []string{"x-tenant", "big"}, []int{200, 200, 200, 429}}, // a rule for its value
			// one level deeper, with its own counter
			{"/nested", []string{"x-tenant", "big", "x-deep", "v"}, []int{200, 200, 429}},
			{"/nested", []string{"x-tenant", "small", "x-deep", "v"}, []int{200, 200}}, // no rule at this depth
			{"/nested", nil, []int{200, 200, 200, 200, 429}},                           // the level above
		},
		"an unlimited rule": {{"/open", nil, []int{200, 200, 200}}},
		"no rule":           {{"/no-rule", nil, []int{200, 200, 200}}},
	} {
		t.Run(name, func(t *testing.T) {
			for _, s := range steps {
				if got := e.codes(t, len(s.want), "main", s.path, s.headers...); !slices.Equal(got, s.want) {
					t.Errorf("%s %v: %v, want %v", s.path, s.headers, got, s.want)
				}
			}
		})
	}

	t.Run("nothing to ask about", func(t *testing.T) {
		before := e.verdicts(t, "main")
		for _, path := range []string{"/", "/header"} { // a route without limits; a header that is absent
			if got := e.codes(t, 2, "main", path); !slices.Equal(got, []int{200, 200}) {
				t.Errorf("%s: %v", path, got)
			}
		}
		if asked := e.verdicts(t, "main").minus(before); asked.sum() != 0 {
			t.Errorf("Envoy asked: %+v", asked)
		}
	})
	f.agree(t, []*envoy{e}, "main")
}
