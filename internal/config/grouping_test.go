package config

import (
	"strings"
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// Rules with and without the keys: the grouped values, and the errors.
func TestGrouping(t *testing.T) {
	_, tree, errs := rulesOf(t, `
domain: d
descriptors:
  - {key: tenant, value: ACME, fold_case: true, rate_limit: {unit: day, requests_per_unit: 1}}
  - {key: tenant, values: [Red, BLUE], fold_case: true, rate_limit: {unit: day, requests_per_unit: 1}}
  - {key: tenant, value: X-*, fold_case: true, rate_limit: {unit: day, requests_per_unit: 1}}
  - {key: tenant, value_regex: 'T-(?P<id>[a-z]+)', fold_case: true, group: $1, rate_limit: {unit: day, requests_per_unit: 1}}
  - {key: tenant, fold_case: no, rate_limit: {unit: day, requests_per_unit: 1}}
  - {key: ip, group: "ipv4/24, ipv6/64", descriptors: [{key: user, fold_case: true, overridable: true, usage: true, rate_limit: {unit: day, requests_per_unit: 1}}]}
`)
	if errs != nil {
		t.Fatal(errs)
	}
	d := tree.Domain("d")
	for _, c := range []struct {
		entries []descriptor.Entry
		want    string
	}{
		{[]descriptor.Entry{{Key: "tenant", Value: "Acme"}}, "d.tenant_acme d|tenant=~=acme|f86400"},
		{[]descriptor.Entry{{Key: "tenant", Value: "rED"}}, "d.tenant_red,blue d|tenant~=blue=red=~=red|f86400"},
		{[]descriptor.Entry{{Key: "tenant", Value: "x-Y"}}, "d.tenant_x-* d|tenant~x-*=~=x-y|f86400"},
		{[]descriptor.Entry{{Key: "tenant", Value: "t-Q"}}, "d.tenant_T-(?P<id>[a-z]+) d|tenant~~T-(?P<id>[a-z]+)=~q|f86400"},
		{[]descriptor.Entry{{Key: "tenant", Value: "Other"}}, "d.tenant d|tenant=Other|f86400"},
		{[]descriptor.Entry{{Key: "ip", Value: "10.1.2.3"}, {Key: "user", Value: "Ann"}}, "d.ip.user d|ip=~10.1.2.0|user=~=ann|f86400"},
	} {
		rule := d.Match(c.entries)
		if rule == nil {
			t.Errorf("%v: no rule", c.entries)
			continue
		}
		for _, format := range []descriptor.KeyFormat{descriptor.KeysOwn, descriptor.KeysLyft} {
			if format == descriptor.KeysLyft && !rule.Grouped() {
				continue
			}
			got := rule.Path + " " + string(descriptor.KeyBuilder{Format: format}.AppendKey(nil, "d", rule.CountedEntries(c.entries), rule, &rule.Limits[0]))
			if got != c.want {
				t.Errorf("%v: %s, want %s", c.entries, got, c.want)
			}
		}
	}
}

func TestGroupingErrors(t *testing.T) {
	const limit = "rate_limit: {unit: day, requests_per_unit: 1}"
	for text, want := range map[string]string{
		"{key: a, group: ipv6/64, value: x, " + limit + "}":                                                                 "`group: ipv6/64` and exact values",
		"{key: a, group: ipv6/64, values: [x], " + limit + "}":                                                              "`group: ipv6/64` and exact values",
		"{key: a*, group: ipv6/64, " + limit + "}":                                                                          "`group` and a `key` with a * in it",
		"{key: a, group: ipv4/64, " + limit + "}":                                                                           "`group`: \"ipv4/64\": an address of ipv4 has networks of 1 to 32 bits",
		"{key: a, group: tenant, " + limit + "}":                                                                            "`group`: \"tenant\" is not a group: write",
		"{key: a, group: ipv4/8, value_cidr: 10.0.0.0/16, " + limit + "}":                                                   "`group: ipv4/8` is wider than the network 10.0.0.0/16",
		"{key: a, group: ipv6/64, value_cidr: 10.0.0.0/8, share_threshold: true, " + limit + "}":                            "`group` and `share_threshold`",
		"{key: a, group: ipv6/64, condition: true, " + limit + "}":                                                          "`group` and `condition`",
		"{key: a, group: $1, " + limit + "}":                                                                                "`group: $1` needs a `value_regex`",
		"{key: a, group: $1, value: x*, " + limit + "}":                                                                     "`group: $1` needs a `value_regex`",
		"{key: a, group: $2, value_regex: (x), " + limit + "}":                                                              "`group: $2` of \"(x)\": the expression has 1 capture groups, which are its parts in ( )",
		"{key: a, group: $1, value_regex: (x), overridable: true, " + limit + "}":                                           "`overridable` and `group: $...`",
		"{key: a, group: $1, value_regex: (x), usage: true, " + limit + "}":                                                 "`usage` and `group: $...`",
		"{key: a, group: $1, value_regex: (x), descriptors: [{key: b, usage: true, " + limit + "}]}":                        "`usage` and `group: $...`",
		"{key: a*, fold_case: true, " + limit + "}":                                                                         "`fold_case` and a `key` with a * in it",
		"{key: a, fold_case: true, value_cidr: 10.0.0.0/8, " + limit + "}":                                                  "`fold_case` and `value_cidr`",
		"{key: a, fold_case: true, group: ipv6/64, " + limit + "}":                                                          "`fold_case` and `group: ipv6/64`",
		"{key: a, fold_case: true, values: [x, X], " + limit + "}":                                                          "`fold_case`: \"x\" is in `values` twice",
		"{key: a, fold_case: true, value: X, " + limit + "}\n- {key: a, value: x, " + limit + "}":                           "duplicate descriptor: key \"a\" and value \"x\"",
		"{key: a, condition: true, " + limit + "}\n- {key: a, value: x, inherit: true}":                                     "`inherit`: the descriptor that is inherited from, on line 3, has `condition: true`, and the one on line 4 does not",
		"{key: a, " + limit + "}\n- {key: a, value: x, inherit: true, cost: 5}":                                             "`cost` and `inherit`, and no limit next to them: what is inherited keeps its own cost; write the `rate_limit` here too",
		"{key: a, fold_case: true, " + limit + "}\n- {key: a, value: x, inherit: true}":                                     "`inherit`: the descriptor that is inherited from, on line 3, has `fold_case: true`, and the one on line 4 does not",
		"{key: a, fold_case: true, values: [x], " + limit + "}\n- {key: a, fold_case: true, values: [X, y], " + limit + "}": "duplicate descriptor: key \"a\" and \"x\" among its `values`",
	} {
		_, _, errs := rulesOf(t, "domain: d\ndescriptors:\n- "+text)
		if len(errs) != 1 || !strings.Contains(errs[0], want) {
			t.Errorf("%s\ngot  %q\nwant %s", text, errs, want)
		}
	}
}

// A descriptor with fold_case inherits from one with it.
func TestInheritWithFoldCase(t *testing.T) {
	rules, tree, errs := rulesOf(t, `
domain: d
descriptors:
  - key: tenant
    fold_case: true
    rate_limit: {unit: day, requests_per_unit: 1}
    descriptors: [{key: path, rate_limit: {unit: day, requests_per_unit: 2}}]
  - {key: tenant, value: Acme, fold_case: true, inherit: true, rate_limit: {unit: day, requests_per_unit: 3}}
`)
	if errs != nil || rules["d.tenant_acme"] != "3/day " || rules["d.tenant_acme.path"] != "2/day " {
		t.Errorf("%v, %v", rules, errs)
	}
	if rule := tree.Domain("d").Match([]descriptor.Entry{{Key: "tenant", Value: "ACME"}, {Key: "path", Value: "/"}}); rule == nil || rule.Path != "d.tenant_acme.path" {
		t.Errorf("ACME matches %+v", rule)
	}
}
