package filter

import (
	"fmt"
	"strings"
	"testing"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
)

const anAction = `actions { generic_key { descriptor_value: "a" } } `

// Fields of an item other than its actions.
func TestPolicies(t *testing.T) {
	for _, c := range []struct{ item, want string }{
		{anAction + anAction, "generic_key=a, generic_key=a"},
		{anAction + `stage { value: 0 }`, "generic_key=a"},
		{anAction + `stage { value: 1 }`, "none"},
		{anAction + `hits_addend {}`, "generic_key=a"},
		{anAction + `hits_addend { number {} }`, "generic_key=a, hits 0"},
		{anAction + `hits_addend { number { value: 3 } is_negative_hits: true }`, "generic_key=a, hits 3, refund"},
		{anAction + `hits_addend { format: "%REQ(X-Cost)%" }`, "generic_key=a, hits 7"},
		{anAction + `hits_addend { format: "%REQ(x-other)%" }`, "none"},
		{anAction + `hits_addend { format: "%DYNAMIC_METADATA(e2e:number)%" }`, "generic_key=a, hits 7"},
		{anAction + `hits_addend { format: "%DYNAMIC_METADATA(e2e:area)%" }`, "none"},
		{anAction + `hits_addend { format: "%DYNAMIC_METADATA(e2e:other)%" }`, "none"},
		{anAction + `limit { rate_limit { requests_per_unit: 2 unit: DAY } }`, "generic_key=a, limit 2/4"},
		{`actions { request_headers { header_name: "x-other" descriptor_key: "k" } }` + anAction, "none"},
	} {
		if got := descriptorOf(t, full, c.item); got != c.want {
			t.Errorf("%s: %q, want %q", c.item, got, c.want)
		}
	}
}

// Hits are a number from 0 to a billion, as Envoy reads numbers.
func TestHitsInText(t *testing.T) {
	for text, want := range map[string]string{
		"5": "5", "0": "0", "+3": "3", "6.9": "6", "1e2": "100", "0x1F": "31", "1000000000": "1000000000",
		"": "none", "-1": "none", "1_0": "none", "0x": "none", "x": "none", "nan": "none", "inf": "none", "1000000001": "none", "1e400": "none",
	} {
		got := "none"
		if n, ok := textHits(text); ok {
			got = fmt.Sprint(n)
		}
		if got != want {
			t.Errorf("%q: %s, want %s", text, got, want)
		}
	}
}

// A policy that a module cannot obey is an error, which names the place and the reason.
func TestPoliciesRejected(t *testing.T) {
	matching := func(condition string) string {
		return `actions { header_value_match { descriptor_value: "a" headers { name: "x" ` + condition + ` } } }`
	}
	const key = `metadata_key { key: "a" path { key: "b" } `
	for _, c := range []struct{ item, says string }{
		{anAction + `disable_key: "k"`, "rate_limits[0]: disable_key is not supported: a module cannot draw by runtime keys"},
		{anAction + `apply_on_stream_done: true`, "rate_limits[0]: apply_on_stream_done is not supported"},
		{anAction + `x_ratelimit_option: OFF`, "x_ratelimit_option is not supported: use enable_x_ratelimit_headers"},
		{anAction + `limit { dynamic_metadata { ` + key + `} } }`, "limit.dynamic_metadata is not supported: a module reads only"},
		{anAction + `hits_addend { format: "%BYTES_RECEIVED%" }`, `"%BYTES_RECEIVED%" is not supported: a module can read %REQ(NAME)% and`},
		{anAction + `hits_addend { format: "%REQ(x?y)%" }`, `"%REQ(x?y)%" is not supported`},
		{anAction + `actions {}`, "rate_limits[0]: actions[1]: action_specifier is not set"},
		{anAction + `actions { extension { name: "a" } }`, "rate_limits[0]: actions[1]: extension is not supported"},
		{strings.Repeat(anAction, 257), "rate_limits[0]: 257 actions, more than 256"},
		{`actions { generic_key { descriptor_value: "%REQ(x)%" } }`, `actions[0]: descriptor_value "%REQ(x)%": % is not supported`},
		{`actions { metadata { descriptor_key: "a" ` + key + ` path { key: "c" } } } }`, "a path of several keys is not supported"},
		{`actions { metadata { descriptor_key: "a" source: 2 ` + key + `} } }`, "metadata from source 2 is not supported"},
		{`actions { remote_address_match { address_matcher { ranges { address_prefix: "ten" } } } }`, `ParseAddr("ten")`},
		{`actions { query_parameter_value_match { query_parameters { string_match {} } } }`, "query_parameters[0]: match_pattern is not set"},
		{matching(`exact_match: "a"`), "headers[0]: exact_match is not supported: use string_match"},
		{matching(`string_match { custom { name: "a" } }`), "headers[0]: custom is not supported"},
		{matching(`string_match {}`), "actions[0]: headers[0]: match_pattern is not set"},
		{matching(`string_match { safe_regex { regex: "(" } }`), "headers[0]: error parsing regexp: missing closing )"},
		{matching(`string_match { ignore_case: true safe_regex { regex: "a" } }`), "ignore_case has no effect on safe_regex: write (?i)"},
	} {
		if _, err := policiesOf(c.item); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%.200s: want %q, got %v", c.item, c.says, err)
		}
	}
	if _, err := compile(make([]*routev3.RateLimit, 257)); err == nil || err.Error() != "rate_limits: 257 items, more than 256" {
		t.Errorf("too many items: %v", err)
	}
}
