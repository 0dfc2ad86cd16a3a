package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/ratelimitd/ratelimitd/workshop/e2e/build"
)

var buildModule = sync.OnceValue(func() error { return build.EnvoyModule(built) })

// needsModule builds the module for Envoy, and returns the environment in which Envoy finds it. It skips the test if
// Envoy or a C compiler is missing.
func needsModule(t *testing.T) []string {
	t.Helper()
	needsEnvoy(t)
	needsCompiler(t)
	if err := buildModule(); err != nil {
		t.Fatal(err)
	}
	return []string{"ENVOY_DYNAMIC_MODULES_SEARCH_PATH=" + built}
}

func needsCompiler(t *testing.T) {
	t.Helper()
	cc, err := exec.Command("go", "env", "CC").Output()
	if err == nil {
		_, err = exec.LookPath(strings.TrimSpace(string(cc)))
	}
	switch {
	case err == nil:
	case os.Getenv("CI") != "":
		t.Fatal("no C compiler: run workshop/scripts/install-cc. In CI this test has to run")
	default:
		t.Skip("NOT RUN without a C compiler: workshop/scripts/install-cc gets one")
	}
}

// perModuleRoute is a route with limits in the module's settings for this route. More settings may follow the limits.
func perModuleRoute(prefix, limits string) string {
	return `
- match: {prefix: ` + prefix + `}
  metadata: {filter_metadata: {routes: {owner: billing, empty: ""}}}
  route: {cluster: upstream, timeout: 60s}
  typed_per_filter_config:
    ratelimitd:
      "@type": type.googleapis.com/envoy.extensions.filters.http.dynamic_modules.v3.DynamicModuleFilterPerRoute
      dynamic_module_config: {name: ratelimitd, do_not_close: true}
      filter_name: ratelimitd
      filter_config:
        "@type": type.googleapis.com/google.protobuf.Struct
        value:
          rate_limits:` + indent(10, limits)
}

// sameLimits are rate_limits, of which each must make the same descriptors in the module as in Envoy's own filter.
var sameLimits = []string{
	`{request_headers: {header_name: x-user, descriptor_key: user}}`,
	`{request_headers: {header_name: X-User, descriptor_key: user, skip_if_absent: true}}, {generic_key: {descriptor_value: behind}}`,
	`{request_headers: {header_name: ":path", descriptor_key: path}}, {request_headers: {header_name: ":method", descriptor_key: method}}`,
	`{remote_address: {}}`,
	`{masked_remote_address: {}}`,
	`{masked_remote_address: {v4_prefix_mask_len: 12, v6_prefix_mask_len: 50}}`,
	`{remote_address_match: {descriptor_value: inside, address_matcher: {ranges: [` +
		`{address_prefix: 10.0.0.0, prefix_len: 8}, {address_prefix: "2001:db8::", prefix_len: 32}]}}}`,
	`{remote_address_match: {descriptor_value: outside, descriptor_key: where, address_matcher: {` +
		`ranges: [{address_prefix: 10.0.0.0, prefix_len: 8}], invert_match: true}}}`,
	`{remote_address_match: {descriptor_value: long, address_matcher: {ranges: [{address_prefix: 10.1.2.3, prefix_len: 64}]}}}`,
	`{generic_key: {descriptor_value: all}}`,
	`{generic_key: {descriptor_value: all, descriptor_key: scope}}, {destination_cluster: {}}`,
	`{source_cluster: {}}`,
	`{header_value_match: {descriptor_value: named, headers: [{name: x-user}]}}`,
	`{header_value_match: {descriptor_value: nameless, expect_match: false, headers: [{name: x-user}]}}`,
	`{header_value_match: {descriptor_value: absent, headers: [{name: x-user, present_match: false}]}}`,
	`{header_value_match: {descriptor_value: absent, headers: [{name: x-user, present_match: true, invert_match: true}]}}`,
	`{header_value_match: {descriptor_value: b, descriptor_key: k, headers: [{name: x-user, string_match: {prefix: B, ignore_case: true}}]}}`,
	`{header_value_match: {descriptor_value: not, headers: [{name: x-user, string_match: {exact: bob}, invert_match: true}]}}`,
	`{header_value_match: {descriptor_value: not, headers: [` +
		`{name: x-user, string_match: {exact: bob}, invert_match: true, treat_missing_header_as_empty: true}]}}`,
	`{header_value_match: {descriptor_value: list, headers: [{name: x-list, string_match: {exact: "a,b"}}]}}`,
	`{header_value_match: {descriptor_value: contains, headers: [` +
		`{name: x-list, string_match: {contains: b}}, {name: x-user, string_match: {suffix: ob}}]}}`,
	`{header_value_match: {descriptor_value: expression, headers: [{name: x-user, string_match: {safe_regex: {regex: "b.|eve"}}}]}}`,
	`{header_value_match: {descriptor_value: range, headers: [{name: x-cost, range_match: {start: -2, end: 7}}]}}`,
	`{query_parameters: {query_parameter_name: "sort by", descriptor_key: sort}}`,
	`{query_parameters: {query_parameter_name: q, descriptor_key: q, skip_if_absent: true}}, {generic_key: {descriptor_value: behind}}`,
	`{query_parameter_value_match: {descriptor_value: slow, query_parameters: [{name: q, string_match: {exact: "a b"}}]}}`,
	`{query_parameter_value_match: {descriptor_value: any, expect_match: false, query_parameters: [{name: q, present_match: true}]}}`,
	`{query_parameter_value_match: {descriptor_value: none, query_parameters: [{name: q, present_match: false}]}}`,
	`{metadata: {descriptor_key: area, metadata_key: {key: e2e, path: [{key: area}]}}}`,
	`{metadata: {descriptor_key: area, metadata_key: {key: e2e, path: [{key: number}]}}}`,
	`{metadata: {descriptor_key: area, default_value: none, metadata_key: {key: e2e, path: [{key: empty}]}}}`,
	`{metadata: {descriptor_key: area, skip_if_absent: true, metadata_key: {key: e2e, path: [{key: other}]}}}, ` +
		`{generic_key: {descriptor_value: behind}}`,
	`{metadata: {descriptor_key: owner, source: ROUTE_ENTRY, metadata_key: {key: routes, path: [{key: owner}]}}}`,
	`{request_headers: {header_name: x-list, descriptor_key: list}}`,
}

// sameItems are more fields of rate_limits.
var sameItems = []string{
	`{actions: [{generic_key: {descriptor_value: a}}], hits_addend: {number: 3}}`,
	`{actions: [{generic_key: {descriptor_value: a}}], hits_addend: {number: 0}}`,
	`{actions: [{generic_key: {descriptor_value: a}}], hits_addend: {format: "%REQ(X-Cost)%"}}`,
	`{actions: [{generic_key: {descriptor_value: a}}], hits_addend: {format: "%DYNAMIC_METADATA(e2e:number)%"}}`,
	`{actions: [{generic_key: {descriptor_value: a}}], hits_addend: {format: "%DYNAMIC_METADATA(e2e:area)%"}}`,
	`{actions: [{generic_key: {descriptor_value: a}}], hits_addend: {number: 2, is_negative_hits: true}}`,
	`{actions: [{generic_key: {descriptor_value: own}}], limit: {rate_limit: {requests_per_unit: 2, unit: DAY}}}`,
	`{actions: [{generic_key: {descriptor_value: few}}]}`,
}

// sameRequests are paths below the path of the route, and headers.
var sameRequests = [][]string{
	{""},
	{"?q=a%20b&sort%20by=x+y", "x-user", "bob", "x-cost", "5"},
	{"?q&sort+by=z", "x-user", "Bill", "x-cost", "-1"},
	{"?q=&q=2", "x-user", "", "x-cost", "1000000001"},
	{"?Q=%4", "x-user", "eve", "x-user", "bob", "x-cost", "7"},
	{"?a=b?q=c&sort%20by", "x-user", "ob", "x-list", "a", "x-list", "b", "x-cost", "6.5"},
	{"%20", "x-forwarded-for", "10.1.2.3", "x-list", "a,b"},
	{"", "x-forwarded-for", "2001:db8:1:2:3::4", "x-list", "b", "x-cost", "1e2"},
	{"?q=%zz%41%2", "x-forwarded-for", "192.0.2.7, 10.20.30.40", "x-cost", "0x1F", "x-list", "B"},
	{"?%71=a+b", "x-forwarded-for", "::ffff:10.1.2.3", "x-cost", " +3 "},
	{"?=&&q=a%20b", "x-forwarded-for", "2001:db8::10.1.2.3", "x-cost", "1_0"},
}

// The module makes the same descriptors of a request as Envoy's own filter, and the same answers. Its descriptors are
// visible in the dynamic metadata, which both set.
func TestModuleIsTheFilter(t *testing.T) {
	env := needsModule(t)
	dir := rules(t, `
domain: e2e
descriptors:
  - {key: user, rate_limit: {unit: day, requests_per_unit: 7}}
  - {key: generic_key, value: few, rate_limit: {name: few, unit: week, unit_multiplier: 2, requests_per_unit: 5}}
  - {key: generic_key, rate_limit: {unit: day, requests_per_unit: 1000000}}
`)
	s := startService(t, "ratelimitd", dir, "RESPONSE_DYNAMIC_METADATA=true", "RATELIMITD_DECISION_METADATA=true")
	logs := map[string]string{"filter": filepath.Join(t.TempDir(), "filter"), "module": filepath.Join(t.TempDir(), "module")}
	b := bootstrap{Clusters: []cluster{upstreamCluster(startUpstream(t)), rls(s)}, Env: env}
	for name, file := range logs {
		l := listener{
			Name: name, Timeout: "10s", Filter: `
enable_x_ratelimit_headers: DRAFT_VERSION_03
enable_retry_after_header: true
response_headers_to_add:
- {header: {key: X-Envoy-Ratelimited, value: "yes"}, append_action: OVERWRITE_IF_EXISTS_OR_ADD}
- {header: {key: x-ratelimit-limit, value: other}, append_action: ADD_IF_ABSENT}
- {header: {key: x-absent, value: absent}, append_action: ADD_IF_ABSENT}
- {header: {key: x-absent, value: present}, append_action: OVERWRITE_IF_EXISTS}
- {header: {key: x-nobody, value: set}, append_action: OVERWRITE_IF_EXISTS}
- {header: {key: x-ratelimit-remaining, value: more}}`,
			FiltersBefore: `
- name: envoy.filters.http.set_metadata
  typed_config:
    "@type": type.googleapis.com/envoy.extensions.filters.http.set_metadata.v3.Config
    metadata: [{metadata_namespace: e2e, value: {area: billing, number: 7, empty: ""}}]
`,
			Connections: `
access_log:
- name: envoy.access_loggers.file
  typed_config:
    "@type": type.googleapis.com/envoy.extensions.access_loggers.file.v3.FileAccessLog
    path: ` + file + `
    log_format: {text_format_source: {inline_string: "%RESPONSE_CODE% %RESPONSE_CODE_DETAILS% \
      %RESP(x-ratelimit-limit)% %RESP(x-ratelimit-remaining)% %RESP(x-envoy-ratelimited)% %RESP(x-absent)% %RESP(x-nobody)% \
      %DYNAMIC_METADATA(envoy.filters.http.ratelimit)%\n"}}
`}
		if name == "module" {
			l.Module = "domain: e2e\nrules: " + dir + "\nresponse_dynamic_metadata: true\ndecision_metadata: true\ntimeout: 10s" +
				"\nsource_cluster: e2e\n" + l.Filter
		}
		for i, item := range sameRateLimits() {
			if prefix := fmt.Sprintf("/%d/", i); name == "module" {
				l.Routes += perModuleRoute(prefix, "- "+item)
			} else {
				const owner = "\n  metadata: {filter_metadata: {routes: {owner: billing}}}"
				l.Routes += strings.Replace(perRoute(prefix, "- "+item), "\n  route:", owner+"\n  route:", 1)
			}
		}
		b.Listeners = append(b.Listeners, l)
	}
	e := startEnvoy(t, b)
	var asked []string
	for i, item := range sameRateLimits() {
		for _, r := range sameRequests {
			asked = append(asked, fmt.Sprintf("%s\n%q", item, r))
			for name := range logs {
				e.get(t, name, fmt.Sprintf("/%d/%s", i, r[0]), r[1:]...)
			}
		}
	}
	lines := func(name string) (all []string) {
		await(t, "the access log of "+name, func(context.Context) error {
			text, err := os.ReadFile(logs[name])
			if all = strings.Split(strings.TrimSpace(string(text)), "\n"); len(all) < len(asked) {
				return fmt.Errorf("%d lines: %w", len(all), err)
			}
			return nil
		})
		return all
	}
	filter, module := lines("filter"), lines("module")
	passing := regexp.MustCompile(`"retry_after_ms":\d+,`)
	for i, request := range asked {
		if passing.ReplaceAllString(filter[i], "") != passing.ReplaceAllString(module[i], "") {
			t.Errorf("%s\nfilter %s\nmodule %s", request, filter[i], module[i])
		}
	}
	if !slices.ContainsFunc(module, func(line string) bool { return strings.HasPrefix(line, "429 request_rate_limited") }) {
		t.Error("no request was denied")
	}
}

func sameRateLimits() (all []string) {
	for _, actions := range sameLimits {
		all = append(all, "{actions: ["+actions+"]}")
	}
	return append(all, sameItems...)
}
