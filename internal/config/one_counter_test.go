package config

import (
	"fmt"
	"strings"
	"testing"
)

// Rules with different conditions that share counters must agree on how the counters are stored. All other settings may
// differ.
func TestRulesOfOneCounter(t *testing.T) {
	plans := func(free, pro string) string {
		const plan = "  - key: plan\n    value: %s\n    condition: true\n    descriptors:\n      - key: customer\n        %s\n"
		return "domain: d\ndescriptors:\n" + fmt.Sprintf(plan, "free", free) + fmt.Sprintf(plan, "pro", pro)
	}
	reserved := func(ttl string) string {
		return "reservations: {ttl: " + ttl + "}\n        rate_limit: {unit: day, requests_per_unit: 10}"
	}
	limit := func(more string) string { return "rate_limit: {unit: day, requests_per_unit: 10" + more + "}" }
	for name, test := range map[string]struct{ free, pro, want string }{
		"lease":                {limit(", lease: true"), limit(""), "`lease`"},
		"reservations":         {limit(""), reserved("1m"), "`reservations`"},
		"other reservations":   {reserved("2m"), reserved("1m"), "`reservations`"},
		"penalty":              {limit(", penalty: 10m"), limit(""), "`penalty`"},
		"home":                 {limit(", regions: {home: eu}"), limit(", regions: {home: us}"), "`regions`"},
		"regional":             {limit(", regions: {home: eu}"), limit(""), "`regions`"},
		"numbers and names":    {limit(", name: a"), limit(", name: b, count_denied: false"), ""},
		"another window":       {limit(", lease: true"), "rate_limit: {unit: hour, requests_per_unit: 10}", ""},
		"another algorithm":    {limit(", penalty: 10m"), limit(", algorithm: sliding_log"), ""},
		"a trial":              {limit(", penalty: 10m"), limit(", shadow: true"), ""},
		"the second of limits": {"rate_limits: [{name: a, unit: hour, requests_per_unit: 5}, {name: b, unit: day, requests_per_unit: 5, lease: true}]", limit(""), "`lease`"},
	} {
		t.Run(name, func(t *testing.T) {
			_, errs := Compile([]File{{Name: "r.yaml", Data: []byte(plans(test.free, test.pro))}}, CompileOptions{})
			switch {
			case test.want == "" && len(errs) > 0:
				t.Error(errs)
			case test.want != "" && (len(errs) != 1 || !strings.Contains(errs[0].Error(), test.want) || !strings.Contains(errs[0].Error(), "the one at r.yaml:7")):
				t.Errorf("%v, want one error about %s", errs, test.want)
			}
		})
	}
}

// A key with a star can match the key of another rule. In files that share a domain, the later file is rejected.
func TestRulesOfOneCounterInSeveralFiles(t *testing.T) {
	file := func(name, plan, key, more string) File {
		return File{Name: name, Data: fmt.Appendf(nil, "domain: d\ndescriptors:\n  - key: plan\n    value: %s\n    condition: true\n    descriptors:\n      - key: %s\n        rate_limit: {unit: day, requests_per_unit: 10%s}\n", plan, key, more)}
	}
	for name, files := range map[string][]File{
		"the same key": {file("a.yaml", "free", "customer", ", lease: true"), file("b.yaml", "pro", "customer", "")},
		"a star":       {file("a.yaml", "free", "customer", ", lease: true"), file("b.yaml", "pro", "cust*", "")},
	} {
		tree, errs := Compile(files, CompileOptions{Merge: true})
		if len(errs) != 1 || errs[0].File != "b.yaml" || !strings.Contains(errs[0].Error(), "a.yaml:7") || len(tree.Rules) != 1 {
			t.Errorf("%s: %v, %d rules", name, errs, len(tree.Rules))
		}
	}
	if _, errs := Compile([]File{file("a.yaml", "free", "customer", ", lease: true"), file("b.yaml", "pro", "team", "")}, CompileOptions{Merge: true}); len(errs) > 0 {
		t.Errorf("other keys: %v", errs)
	}
}
