package config

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/testkit/racetest"
)

// rulesOf compiles one rule file. It returns the path of each rule, with the limit, and the errors.
func rulesOf(t *testing.T, text string) (rules map[string]string, tree *descriptor.Tree, errs []string) {
	t.Helper()
	tree, failed := Compile([]File{{Name: "f.yaml", Data: []byte(text)}}, CompileOptions{})
	for _, err := range failed {
		errs = append(errs, err.Error())
	}
	rules = make(map[string]string)
	for _, r := range tree.Rules {
		for i := range r.Limits {
			rules[r.Path] += fmt.Sprint(r.Limits[i].Requests, "/", r.Limits[i].Window.Unit, " ")
		}
	}
	return rules, tree, errs
}

const plans = `
domain: api
descriptors:
  - key: plan
    value: pro
    descriptors:
      - key: api_key
        rate_limit: {unit: minute, requests_per_unit: 600}
        descriptors:
          - {key: endpoint, value: search, rate_limit: {unit: minute, requests_per_unit: 300}}
          - key: endpoint
            value: export
            rate_limit: {unit: hour, requests_per_unit: 10}
            descriptors:
              - {key: format, value: csv, rate_limit: {unit: hour, requests_per_unit: 5}}
      - key: api_key
        value: acme
        inherit: true
        rate_limit: {unit: minute, requests_per_unit: 5000}
        descriptors:
          - {key: endpoint, value: export, rate_limit: {unit: hour, requests_per_unit: 99}}
          - {key: endpoint, value: import, rate_limit: {unit: hour, requests_per_unit: 7}}
      - key: api_key
        value: small
        inherit: true
`

func TestInherit(t *testing.T) {
	rules, tree, errs := rulesOf(t, plans)
	if errs != nil {
		t.Fatal(errs)
	}
	for path, want := range map[string]string{
		"api_key":                                  "600/minute ",
		"api_key.endpoint_search":                  "300/minute ",
		"api_key.endpoint_export":                  "10/hour ",
		"api_key.endpoint_export.format_csv":       "5/hour ",
		"api_key_acme":                             "5000/minute ",
		"api_key_acme.endpoint_search":             "300/minute ",
		"api_key_acme.endpoint_export":             "99/hour ",
		"api_key_acme.endpoint_export.format_csv":  "5/hour ",
		"api_key_acme.endpoint_import":             "7/hour ",
		"api_key_small":                            "600/minute ",
		"api_key_small.endpoint_search":            "300/minute ",
		"api_key_small.endpoint_export":            "10/hour ",
		"api_key_small.endpoint_export.format_csv": "5/hour ",
	} {
		path = "api.plan_pro." + path
		if rules[path] != want {
			t.Errorf("%s: %q, want %q", path, rules[path], want)
		}
		delete(rules, path)
	}
	for path, limit := range rules {
		t.Errorf("%s: %s, want no such rule", path, limit)
	}

	// Hits counted under the common rule stay counted when a customer gets a descriptor.
	key := func(tree *descriptor.Tree) string {
		entries := []descriptor.Entry{{Key: "plan", Value: "pro"}, {Key: "api_key", Value: "acme"}, {Key: "endpoint", Value: "search"}}
		d := tree.Domain("api")
		rule := d.Match(entries)
		return string(descriptor.KeyBuilder{}.AppendKey(nil, d.Name, entries, rule, &rule.Limits[0]))
	}
	_, before, _ := rulesOf(t, plans[:strings.Index(plans, "      - key: api_key\n        value: acme")])
	if a, b := key(before), key(tree); a != b {
		t.Errorf("the counter has the key %s, and %s before", b, a)
	}
}

// A descriptor inherits within inherited rules, as if it was written there.
func TestInheritWithinInherited(t *testing.T) {
	rules, _, errs := rulesOf(t, `
domain: d
descriptors:
  - key: tenant
    descriptors:
      - key: path
        descriptors: [{key: method, value: POST, rate_limit: {unit: minute, requests_per_unit: 1}}]
      - {key: path, value: /big, inherit: true, rate_limit: {unit: minute, requests_per_unit: 2}}
  - key: tenant
    value: acme
    inherit: true
    descriptors:
      - key: path
        descriptors: [{key: method, value: PUT, rate_limit: {unit: minute, requests_per_unit: 3}}]
`)
	if errs != nil {
		t.Fatal(errs)
	}
	for path, want := range map[string]string{
		"d.tenant.path.method_POST": "1/minute ", "d.tenant.path_/big": "2/minute ", "d.tenant.path_/big.method_POST": "1/minute ",
		"d.tenant_acme.path.method_POST": "1/minute ", "d.tenant_acme.path.method_PUT": "3/minute ", "d.tenant_acme.path_/big": "2/minute ",
		"d.tenant_acme.path_/big.method_POST": "1/minute ", "d.tenant_acme.path_/big.method_PUT": "3/minute ",
	} {
		if rules[path] != want {
			t.Errorf("%s: %q, want %q", path, rules[path], want)
		}
	}
	if len(rules) != 8 {
		t.Errorf("%d rules, want 8: %v", len(rules), rules)
	}
}

// A descriptor also inherits the rules that its source inherited, where both have a descriptor for the same value.
func TestInheritWhatInherits(t *testing.T) {
	rules, tree, errs := rulesOf(t, `
domain: llm
descriptors:
  - key: customer
    descriptors:
      - key: tokens
        reservations: {ttl: 5m}
        rate_limit: {unit: minute, requests_per_unit: 100}
        descriptors:
          - {key: stream, rate_limit: {unit: minute, requests_per_unit: 1}}
      - {key: tokens, value: large, inherit: true, rate_limit: {unit: minute, requests_per_unit: 30}}
  - key: customer
    value: acme
    inherit: true
    descriptors:
      - {key: tokens, value: large, rate_limit: {unit: minute, requests_per_unit: 60}}
`)
	if errs != nil {
		t.Fatal(errs)
	}
	if rules["llm.customer_acme.tokens_large"] != "60/minute " || rules["llm.customer_acme.tokens_large.stream"] != "1/minute " {
		t.Errorf("%v", rules)
	}
	for _, r := range tree.Rules {
		if reserves := strings.HasSuffix(r.Path, "stream"); r.Reservable() == reserves {
			t.Errorf("%s: reservable %t", r.Path, r.Reservable())
		}
	}
}

func TestInheritErrors(t *testing.T) {
	const limit = "rate_limit: {unit: day, requests_per_unit: 1}"
	for text, want := range map[string]string{
		"- {key: a, value: x, inherit: true, " + limit + "}":                                  `3:31: ` + "`inherit`: there is no descriptor next to this one with the key \"a\" and no value",
		"- {key: a, inherit: true, " + limit + "}":                                            "`inherit` needs a `value`",
		"- {key: a*, value: x, inherit: true, " + limit + "}":                                 "`inherit` cannot be used with a * in `key`",
		"- {key: a, " + limit + "}\n- {key: a, value: x, inherit: yes please, " + limit + "}": "`inherit`",
		"- {key: a, descriptors: [{key: b, values: [x, y], " + limit + "}]}\n- {key: a, value: x, inherit: true, descriptors: [{key: b, values: [y, z], " + limit + "}]}": "`inherit`: \"y\" is among the `values`",
	} {
		_, _, errs := rulesOf(t, "domain: d\ndescriptors:\n"+text)
		if len(errs) != 1 || !strings.Contains(errs[0], want) {
			t.Errorf("%s\ngot  %q\nwant %s", text, errs, want)
		}
	}
}

// Inherited limits identify customers as at the place that they come from. They must be allowed where they are
// inherited.
func TestInheritErrorsOfGroups(t *testing.T) {
	const limit = "rate_limit: {unit: day, requests_per_unit: 1}"
	const grouped = "{key: ip, group: ipv6/64, " + limit + "}\n- "
	for text, want := range map[string]string{
		grouped + "{key: ip, value_cidr: 2001:db8::/32, inherit: true}": "4:49: `inherit`: the descriptor that is inherited from, on line 3, has `group: ipv6/64`, and the one on line 4 has no `group`",
		grouped + "{key: ip, value: '2001:*', inherit: true}":           "has no `group`: write one there too",
		"{key: a, descriptors: [{key: ip, group: ipv4/24, " + limit + "}]}\n- {key: a, value: x, inherit: true, descriptors: [{key: ip, " + limit + "}]}":                                  "on line 3, has `group: ipv4/24`, and the one on line 4 has no `group`",
		"{key: a, descriptors: [{key: b, value_regex: (x).*, group: $1, " + limit + "}]}\n- {key: a, value: x, inherit: true, descriptors: [{key: b, value_regex: (x).*, " + limit + "}]}": "has `group: $1`",
		"{key: a, descriptors: [{key: b, value: x, fold_case: true, " + limit + "}]}\n- {key: a, value: x, inherit: true, descriptors: [{key: b, value: x, " + limit + "}]}":               "has `fold_case: true`",
		"{key: a, overridable: true, " + limit + "}\n- {key: a, value_regex: (x).*, group: $1, inherit: true}":                                                                             "`inherit` takes the limit on line 3: `overridable` and `group: $...`",
		"{key: a, usage: true, " + limit + "}\n- {key: a, value_regex: (x).*, group: $1, inherit: true}":                                                                                   "`inherit` takes the limit on line 3: `usage` and `group: $...`",
		"{key: a, descriptors: [{key: b, overridable: true, " + limit + "}]}\n- {key: a, value_regex: (x).*, group: $1, inherit: true}":                                                    "`overridable` and `group: $...`",
		"{key: a, overridable: true, " + limit + "}\n- {key: a, value: x*, share_threshold: true, inherit: true}":                                                                          "`overridable` and `share_threshold`",
		"{key: a, descriptors: [{key: b, usage: true, " + limit + "}]}\n- {key: a, value: x*, share_threshold: true, inherit: true}":                                                       "`usage` and `share_threshold`",
		"{key: a, descriptors: [{key: b, value: y*, overridable: true, " + limit + "}]}\n- {key: a, value: x, inherit: true, descriptors: [{key: b, value: y*, share_threshold: true}]}":   "`overridable` and `share_threshold`",
		"{key: a, reservations: true, " + limit + "}\n- {key: a, value: x, inherit: true, descriptors: [{key: reserve_id, " + limit + "}]}":                                                "the key `reserve_id` on line 4 below it",
		"{key: a, reservations: true, " + limit + "}\n- {key: a, value: x, inherit: true, rate_limit: {unit: day, requests_per_unit: 2}, descriptors: [{key: commit_id, " + limit + "}]}":  "the key `commit_id` on line 4 below it",
		grouped + "{key: ip, value_cidr: 2001:db8::/32, group: ipv6/56, inherit: true}":                                                                                                    "",
		grouped + "{key: ip, value_cidr: 2001:db8::/32, share_threshold: true, inherit: true}":                                                                                             "",
		grouped + "{key: ip, values: ['2001:db8::1', 10.0.0.1], inherit: true}":                                                                                                            "",
		"{key: a, fold_case: true, " + limit + "}\n- {key: a, value_cidr: 10.0.0.0/8, inherit: true}":                                                                                      "",
		"{key: a, overridable: true, " + limit + "}\n- {key: a, value: x*, share_threshold: true, inherit: true, rate_limit: {unit: day, requests_per_unit: 2}}":                           "",
	} {
		_, _, errs := rulesOf(t, "domain: d\ndescriptors:\n- "+text)
		if want == "" && len(errs) == 0 {
			continue
		}
		if len(errs) != 1 || want == "" || !strings.Contains(errs[0], want) {
			t.Errorf("%s\ngot  %q\nwant %s", text, errs, want)
		}
	}
}

// A limit that replaces an inherited one still gets the reservations: otherwise a request that reserves would match no
// rule there, and pass.
func TestInheritReservations(t *testing.T) {
	const limit = ", rate_limit: {unit: day, requests_per_unit: 2}"
	for text, want := range map[string]bool{
		"inherit: true":         true,
		"inherit: true" + limit: true,
		"inherit: true, rate_limits: [{name: a, unit: day}, {name: b, unit: hour, algorithm: token_bucket, requests_per_unit: 1}]": true,
		"inherit: true, reservations: false" + limit:                                                 false,
		"inherit: true, reservations: {ttl: 2s}" + limit:                                             true,
		"inherit: true, rate_limit: {unlimited: true}":                                               false,
		"inherit: true, rate_limit: {unit: day, requests_per_unit: 2, algorithm: leaky_bucket}":      false,
		"inherit: true, rate_limit: {unit: day, requests_per_unit: 2, lease: true}":                  false,
		"inherit: true, rate_limit: {unit: day, requests_per_unit: 2, count_denied: true}":           false,
		"inherit: true, rate_limit: {unit: day, requests_per_unit: 2, active: {weekdays: [monday]}}": false,
		"inherit: false" + limit: false,
	} {
		_, tree, errs := rulesOf(t, "domain: d\ndescriptors:\n- {key: a, reservations: {ttl: 7s}, cost: {input: 3}, rate_limit: {unit: day, requests_per_unit: 1}}\n- {key: a, value: x, "+text+"}")
		if errs != nil {
			t.Errorf("%s: %q", text, errs)
			continue
		}
		rule := tree.Domain("d").Match([]descriptor.Entry{{Key: "a", Value: "x"}})
		if rule.Reservable() != want {
			t.Errorf("%s: its limits can be reserved: %t, want %t", text, rule.Reservable(), want)
		}
		if !want || strings.Contains(text, "2s") {
			continue
		}
		for i := range rule.Limits {
			l := &rule.Limits[i]
			if l.Reservations.TTL != 7*time.Second || len(l.Reservations.Cost) != 1 || l.Has(descriptor.SettingCountDenied) && l.CountDenied != descriptor.DeniedDrop {
				t.Errorf("%s: limit %d has %+v and counts denied hits as %d", text, i, l.Reservations, l.CountDenied)
			}
		}
	}
}

// A short file may ask for very many descriptors, with many limits each.
func TestInheritIsBounded(t *testing.T) {
	racetest.Sequential(t)
	text, indent := "domain: d\ndescriptors:\n", ""
	for range 12 {
		for _, v := range []string{"x", "y", "z"} {
			text += indent + "- {key: a, value: " + v + ", inherit: true}\n"
		}
		text += indent + "- key: a\n" + indent + "  rate_limit: {unit: day, requests_per_unit: 1}\n" + indent + "  descriptors:\n"
		indent += "    "
	}
	_, _, errs := rulesOf(t, text+indent+"- {key: a}\n")
	if len(errs) != 1 || !strings.Contains(errs[0], "`inherit` makes more than 1000000 descriptors, limits and costs") {
		t.Errorf("errors: %q", errs)
	}
}

// A short file may ask for very many copies of a long cost table, because aliases repeat it.
func TestInheritedCostsAreBounded(t *testing.T) {
	var text strings.Builder
	text.WriteString("domain: d\ndescriptors:\n- key: a\n  descriptors:\n")
	table := "&c {a: {\"*\": 1"
	for i := range 999 {
		table += fmt.Sprintf(", v%d: 2", i)
	}
	table += "}}"
	for i := range 100 {
		fmt.Fprintf(&text, "  - {key: b, value: v%d, cost: %s, rate_limit: {unit: day, requests_per_unit: 1}}\n", i, table)
		table = "*c"
	}
	for i := range 11 {
		fmt.Fprintf(&text, "- {key: a, value: v%d, inherit: true}\n", i)
	}
	_, _, errs := rulesOf(t, text.String())
	if len(errs) != 1 || !strings.Contains(errs[0], "`inherit` makes more than 1000000 descriptors, limits and costs") {
		t.Errorf("errors: %q", errs)
	}
}

// Many descriptors inherit from the last one of their list.
func TestInheritManyTimes(t *testing.T) {
	racetest.Sequential(t)
	const many = 60_000 // a search for each would take minutes
	var text strings.Builder
	text.WriteString("domain: d\ndescriptors:\n")
	for i := range many {
		fmt.Fprintf(&text, "- {key: k, value: v%d, inherit: true}\n", i)
	}
	text.WriteString("- {key: k, rate_limit: {unit: day, requests_per_unit: 1}}\n")
	if s := readSource("f.yaml", []byte(text.String()), false); s.rules != many+1 {
		t.Errorf("%d rules, want %d; errors: %v", s.rules, many+1, s.errs)
	}
}

// Envoy Gateway writes the limit and the descriptors of one level twice.
func TestInheritOfTheSecondOfTwo(t *testing.T) {
	s := readSource("f.yaml", []byte(`
domain: d
descriptors:
  - {key: a, rate_limit: {unit: day, requests_per_unit: 1}, descriptors: [{key: b, rate_limit: {unit: day, requests_per_unit: 1}}]}
  - {key: a, value: x, rate_limit: {unit: day, requests_per_unit: 2}}
  - {key: a, value: x, inherit: true, descriptors: [{key: c, rate_limit: {unit: day, requests_per_unit: 1}}]}
`), true)
	if len(s.errs) > 0 || s.rules != 5 {
		t.Errorf("%d rules, want 5; errors %v", s.rules, s.errs)
	}
}

// A condition decides which rule applies, and is not part of the counter.
func TestCondition(t *testing.T) {
	_, tree, errs := rulesOf(t, `
domain: d
descriptors:
  - {key: plan, value: free, condition: true, descriptors: [{key: user, rate_limit: {unit: day, requests_per_unit: 10}}]}
  - {key: plan, value: pro, condition: true, descriptors: [{key: user, rate_limit: {unit: day, requests_per_unit: 1000}}]}
  - {key: plan, value: none, descriptors: [{key: user, rate_limit: {unit: day, requests_per_unit: 10}}]}
  - {key: user, rate_limit: {unit: day, requests_per_unit: 10}}
`)
	if errs != nil {
		t.Fatal(errs)
	}
	keys := make(map[string][]string)
	for _, plan := range []string{"free", "pro", "none", ""} {
		entries := []descriptor.Entry{{Key: "plan", Value: plan}, {Key: "user", Value: "ann"}}
		if plan == "" {
			entries = entries[1:]
		}
		rule := tree.Domain("d").Match(entries)
		for _, format := range []descriptor.KeyFormat{descriptor.KeysOwn, descriptor.KeysLyft} {
			k := string(descriptor.KeyBuilder{Format: format}.AppendKey(nil, "d", entries, rule, &rule.Limits[0]))
			keys[k] = append(keys[k], plan)
		}
	}
	if got := keys["d|plan~|user=ann|"+tagOf(t, tree)]; fmt.Sprint(got) != "[free free pro pro]" {
		t.Errorf("the plans %q share the counter; all: %v", got, keys)
	}
	if len(keys) != 5 {
		t.Errorf("%d counters, want 5: %v", len(keys), keys)
	}
}

// tagOf is the end of the keys of a tree's first rule.
func tagOf(t *testing.T, tree *descriptor.Tree) string {
	t.Helper()
	r := tree.Rules[0]
	key := string(descriptor.KeyBuilder{}.AppendKey(nil, "d", nil, r, &r.Limits[0]))
	return key[strings.LastIndexByte(key, '|')+1:]
}
