package e2e

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

// The configuration that Envoy AI Gateway 1.1 writes into Envoy works with ratelimitd as its rate limit service: the
// rules and rate_limits of a QuotaPolicy with a bucket for one header and a default bucket, and those of a
// BackendTrafficPolicy for llmRequestCosts. The gateway's own filter counts the tokens and writes them as metadata.
// Here the metadata has a fixed number of tokens.
func TestAIGateway(t *testing.T) {
	page, err := os.ReadFile(budgetsPage)
	if err != nil {
		t.Fatal(err)
	}
	_, costs, _ := strings.Cut(string(page), "<!-- gateway: costs -->\n```yaml")
	costs, _, found := strings.Cut(costs, "```\n")
	if !found {
		t.Fatal("the page has no rate_limits of Envoy AI Gateway")
	}
	s := startService(t, "ratelimitd", rules(t, `
domain: ai-gateway-quota
descriptors:
  - key: backend_name
    value: default/openai
    descriptors:
      - key: model_name_override
        value: small
        descriptors:
          - key: rule-0-x-tier|premium-match-0
            value: rule-0-x-tier|premium-match-0
            quota_mode: true
            rate_limit: {unit: day, requests_per_unit: 200}
          - key: rule-1-match--1
            value: rule-1-match--1
            quota_mode: true
            rate_limit: {unit: day, requests_per_unit: 100}
`, `
domain: default/eg/http
descriptors:
  - key: httproute/default/models/rule/0
    value: httproute/default/models/rule/0
    descriptors:
      - {key: rule-0-match-0, rate_limit: {unit: day, requests_per_unit: 100}}
`))
	const (
		backend    = "generic_key: {descriptor_key: backend_name, descriptor_value: default/openai}"
		model      = "generic_key: {descriptor_key: model_name_override, descriptor_value: small}"
		premium    = "header_value_match: {descriptor_key: rule-0-x-tier|premium-match-0, descriptor_value: rule-0-x-tier|premium-match-0, expect_match: true, headers: [{name: x-tier, string_match: {exact: premium}}]}"
		rest       = "generic_key: {descriptor_key: rule-1-match--1, descriptor_value: rule-1-match--1}"
		named      = "metadata: {descriptor_key: backend_name, source: DYNAMIC, metadata_key: {key: io.envoy.ai_gateway, path: [{key: ai_service_backend_name}]}}"
		overridden = "metadata: {descriptor_key: model_name_override, source: DYNAMIC, metadata_key: {key: io.envoy.ai_gateway, path: [{key: model_name_override}]}}"
	)
	item := func(more string, actions ...string) string {
		return "\n- actions: [{" + strings.Join(actions, "}, {") + "}]" + more
	}
	const cost = "\n  apply_on_stream_done: true\n  hits_addend: {format: \"%DYNAMIC_METADATA(io.envoy.ai_gateway:quota_cost)%\"}"
	ofDomain := func(prefix, domain, limits string) string {
		return strings.Replace(perRoute(prefix, limits), "      rate_limits:", "      domain: "+domain+"\n      rate_limits:", 1)
	}
	e := startEnvoy(t, bootstrap{Clusters: []cluster{upstreamCluster(startUpstream(t)), rls(s)}, Listeners: []listener{{
		Name: "main",
		FiltersBefore: `
- name: envoy.filters.http.set_metadata
  typed_config:
    "@type": type.googleapis.com/envoy.extensions.filters.http.set_metadata.v3.Config
    metadata: [{metadata_namespace: io.envoy.ai_gateway, value: {ai_service_backend_name: default/openai, model_name_override: small, quota_cost: 40, llm_total_token: 40}}]
`,
		Routes: ofDomain("/quota", "ai-gateway-quota", item("", backend, model, premium)+item("", backend, model, rest)+
			item(cost, named, overridden, premium)+item(cost, named, overridden, rest)) +
			ofDomain("/costs", "default/eg/http", costs),
	}}})
	send := func(path string, want []int, headers ...string) {
		t.Helper()
		for i, code := range want {
			before := answered(t, s)
			if got := e.codes(t, 1, "main", path, headers...); got[0] != code {
				t.Errorf("%s %v, request %d: %d, want %d", path, headers, i+1, got[0], code)
			}
			await(t, "the call at the stream's end", func(context.Context) error {
				if n := answered(t, s).sum() - before.sum(); n != 2 {
					return fmt.Errorf("%d calls", n)
				}
				return nil
			})
		}
	}
	// Each request counts 1 at its start and 40 at its end: the default bucket is empty after three requests, and the
	// bucket of premium requests after five. A premium request uses both, and is denied when both are empty.
	send("/quota", []int{200, 200, 200, 429})
	send("/quota", []int{200, 200, 200, 200, 200, 429}, "x-tier", "premium")
	// A request only looks at its start, and charges 40 at its end.
	send("/costs", []int{200, 200, 200, 429}, "x-user", "ada")
	send("/costs", []int{200}, "x-user", "bob")
}

// Envoy's metadata_namespace is the name under which our metadata appear. Without it, that is the filter's name.
func TestMetadataNamespace(t *testing.T) {
	f := startFleet(t, perUser(1), "RESPONSE_DYNAMIC_METADATA=true")
	var all []listener
	for _, namespace := range []string{"envoy.filters.http.ratelimit", "limits"} {
		l := byUser("failure_mode_deny: true")
		l.Name = strings.ReplaceAll(namespace, ".", "_")
		if namespace == "limits" {
			l.Filter += "\nmetadata_namespace: limits"
		}
		l.VirtualHost = `response_headers_to_add: [{header: {key: x-metadata, value: "%DYNAMIC_METADATA(` + namespace + `)%"}}]`
		all = append(all, l)
	}
	e := startEnvoy(t, bootstrap{Clusters: f.clusters(), Listeners: all})
	var shown []string
	for _, l := range all {
		answer := e.get(t, l.Name, "/", "x-user", l.Name)
		shown = append(shown, strings.ReplaceAll(answer.header.Get("x-metadata"), l.Name, "ada"))
	}
	if len(shown[0]) < 10 || !slices.Equal(shown[:1], shown[1:]) {
		t.Errorf("the metadata are\n%s\nand with a namespace\n%s", shown[0], shown[1])
	}
}
