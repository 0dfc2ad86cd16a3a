package filter

import (
	"fmt"
	"strings"
	"testing"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/encoding/prototext"
)

// full is a request that has everything, and bare one that has nothing: its client came over a unix socket.
var (
	full = &testRequest{
		headers: map[string][]string{":path": {"/?q=a%20b&none=&q=c"}, "x-user": {"bob"}, "x-none": {""}, "x-list": {"a", "b"}, "x-cost": {"7"}},
		address: "10.1.2.3:80", cluster: "upstream",
		metadata: map[Source]map[string]any{
			DynamicMetadata: {"e2e/area": "billing", "e2e/number": 7.9, "e2e/none": ""}, RouteMetadata: {"e2e/area": "route"},
		},
	}
	bare = &testRequest{address: "/run/socket"}
)

// policiesOf compiles one item of rate_limits.
func policiesOf(text string) ([]policy, error) {
	one := new(routev3.RateLimit)
	if err := prototext.Unmarshal([]byte(text), one); err != nil {
		return nil, err
	}
	return compile([]*routev3.RateLimit{one})
}

// descriptorOf returns the descriptor that an item builds from a request, or "none".
func descriptorOf(t *testing.T, r *testRequest, item string) string {
	t.Helper()
	policies, err := policiesOf(item)
	if err != nil {
		t.Fatalf("%s: %v", item, err)
	}
	b := building{stream: r, sourceCluster: "here"}
	b.build(policies, 0)
	if len(b.descriptors) == 0 {
		if len(b.entries)+len(b.spans)+len(b.text) > 0 {
			t.Errorf("%s: parts of the descriptor are left", item)
		}
		return "none"
	}
	d := &b.descriptors[0]
	var all []string
	for _, e := range d.Entries {
		all = append(all, e.Key+"="+e.Value)
	}
	if d.HasHits {
		all = append(all, fmt.Sprint("hits ", d.Hits))
	}
	if d.Refund {
		all = append(all, "refund")
	}
	if d.HasLimit {
		all = append(all, fmt.Sprint("limit ", d.Limit.Requests, "/", d.Limit.Unit))
	}
	return strings.Join(all, ", ")
}

// Each action adds an entry, adds none, or drops the descriptor.
func TestActions(t *testing.T) {
	const (
		ten   = `ranges { address_prefix: "10.0.0.0" prefix_len { value: 8 } }`
		one   = `ranges { address_prefix: "10.1.2.3" prefix_len { value: 64 } }` // more bits than it has
		other = `ranges { address_prefix: "2001:db8::" prefix_len { value: 32 } }`
		area  = `metadata_key { key: "e2e" path { key: "area" } }`
		empty = `metadata_key { key: "e2e" path { key: "none" } }`
	)
	for _, c := range []struct{ action, full, bare string }{
		{`source_cluster {}`, "source_cluster=here", "source_cluster=here"},
		{`destination_cluster {}`, "destination_cluster=upstream", "none"},
		{`request_headers { header_name: "X-User" descriptor_key: "user" }`, "user=bob", "none"},
		{`request_headers { header_name: "x-user" descriptor_key: "user" skip_if_absent: true }`, "user=bob", ""},
		{`request_headers { header_name: "x-none" descriptor_key: "user" }`, "user=", "none"},
		{`request_headers { header_name: "x-list" descriptor_key: "first" }`, "first=a", "none"},
		{`query_parameters { query_parameter_name: "q" descriptor_key: "q" }`, "q=a b", "none"},
		{`query_parameters { query_parameter_name: "none" descriptor_key: "q" skip_if_absent: true }`, "q=", ""},
		{`remote_address {}`, "remote_address=10.1.2.3", "none"},
		{`masked_remote_address {}`, "masked_remote_address=10.1.2.3/32", "none"},
		{`masked_remote_address { v4_prefix_mask_len { value: 12 } }`, "masked_remote_address=10.0.0.0/12", "none"},
		{`remote_address_match { descriptor_value: "in" address_matcher { ` + other + ten + ` } }`, "remote_address_match=in", "none"},
		{`remote_address_match { descriptor_value: "in" address_matcher { ` + one + ` } }`, "remote_address_match=in", "none"},
		{`remote_address_match { descriptor_value: "in" address_matcher { ` + other + ` } }`, "none", "none"},
		{`remote_address_match { descriptor_value: "out" address_matcher { invert_match: true ` + ten + ` } }`, "none", "none"},
		{`remote_address_match { descriptor_key: "k" address_matcher { invert_match: true ` + other + ` } }`, "k=", "none"},
		{`generic_key { descriptor_value: "a" }`, "generic_key=a", "generic_key=a"},
		{`generic_key { descriptor_value: "a" descriptor_key: "k" }`, "k=a", "k=a"},
		{`header_value_match { descriptor_value: "a" headers { name: "x-user" } }`, "header_match=a", "none"},
		{`header_value_match { descriptor_value: "a" expect_match {} descriptor_key: "k" headers { name: "x-user" } }`, "none", "k=a"},
		{`query_parameter_value_match { descriptor_value: "a" query_parameters { name: "q" } }`, "query_match=a", "none"},
		{`query_parameter_value_match { descriptor_value: "a" expect_match {} query_parameters { name: "q" } }`, "none", "query_match=a"},
		{`query_parameter_value_match { descriptor_value: "a" descriptor_key: "k" query_parameters { name: "q" } }`, "k=a", "none"},
		{`metadata { descriptor_key: "area" ` + area + ` }`, "area=billing", "none"},
		{`metadata { descriptor_key: "area" source: ROUTE_ENTRY ` + area + ` }`, "area=route", "none"},
		{`metadata { descriptor_key: "area" skip_if_absent: true ` + empty + ` }`, "", ""},
		{`metadata { descriptor_key: "area" default_value: "other" ` + empty + ` }`, "area=other", "area=other"},
	} {
		item := "actions { " + c.action + " }"
		if got := descriptorOf(t, full, item); got != c.full {
			t.Errorf("%s: %q of a request with everything, want %q", c.action, got, c.full)
		}
		if got := descriptorOf(t, bare, item); got != c.bare {
			t.Errorf("%s: %q of a request with nothing, want %q", c.action, got, c.bare)
		}
	}
	six := &testRequest{address: "[2001:db8:1:2:3::4]:80"}
	got := descriptorOf(t, six, "actions { masked_remote_address { v6_prefix_mask_len { value: 50 } } }")
	if got != "masked_remote_address=2001:db8:1::/50" {
		t.Errorf("a network of IPv6: %s", got)
	}
}
