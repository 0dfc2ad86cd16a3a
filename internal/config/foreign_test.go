package config

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// A file that is not a rule file has one error: its kind, where its rules are, and how to fix it.
func TestForeignFiles(t *testing.T) {
	const rules = "domain: d\ndescriptors:\n- {key: k, rate_limit: {unit: day, requests_per_unit: 1}}\n"
	within := func(indent string) string {
		return indent + strings.ReplaceAll(strings.TrimSpace(rules), "\n", "\n"+indent) + "\n"
	}
	for _, c := range []struct{ text, want string }{
		{"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: rl}\ndata:\n  a.yaml: |\n" + within("    "),
			"a.yaml:1:1: this is a Kubernetes object (`kind: ConfigMap`), not a rule file: its rules are under `.data.a\\.yaml`; write that part to a file of its own, " +
				"such as with `kubectl get configmap rl -o jsonpath='{.data.a\\.yaml}' > rules.yaml`"},
		{"apiVersion: v1\nkind: Service\nspec: {}\n---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: $(x)}\ndata:\n  a: |\n" + within("    "),
			"a.yaml:5:1: this is a Kubernetes object (`kind: ConfigMap`), not a rule file: its rules are under `.data.a`; write that part to a file of its own, " +
				"such as with `kubectl get configmap NAME -o jsonpath='{.data.a}' > rules.yaml`"},
		{"apiVersion: v1\nkind: RateLimitConfig\nspec: {raw: {descriptors: []}}\n",
			"a.yaml:1:1: this is a Kubernetes object (`kind: RateLimitConfig`), not a rule file: its rules are under `.spec.raw`; write that part to a file of its own, with `domain: NAME` before it"},
		{"apiVersion: v1\nkind: Service\nspec: {}\n", "a.yaml:1:1: this is a Kubernetes object (`kind: Service`), not a rule file: its keys are `apiVersion`, `kind` and `spec`; " +
			"a rule file has `domain: NAME` and a list of `descriptors`"},
		{"replicaCount: 1\nratelimit:\n  config:\n" + within("    "), "a.yaml:1:1: this is not a rule file: its rules are under `.ratelimit.config`; write that part to a file of its own"},
		{"services: {web: {image: x}}\n", "a.yaml:1:1: this is a Compose file, not a rule file: its keys are `services`; a rule file has `domain: NAME` and a list of `descriptors`"},
		{`{"a": 1, "b": 2}`, "a.yaml:1:1: this is not a rule file: its keys are `a` and `b`; a rule file has `domain: NAME` and a list of `descriptors`"},
		{"cases: []\n", "a.yaml:1:1: this is a file of tests, not a rule file: run it with `ratelimitd test`"},
		{"domain: d\ndescriptors:\n- {key: k, rate_limit: {unit: day, requests_per_unit: {{ .Values.limit }}}}\n", "a.yaml:3:55: " + isTemplate},
		{"{{- if .Values.on }}\n" + rules + "{{- end }}\n", "a.yaml:1:1: " + isTemplate},
		{"# café\n{% if on %}\n" + rules + "{% endif %}\n", "a.yaml:2:1: " + isTemplate},
		{"domian: d\ndescriptors: []\n", "a.yaml:1:1: unknown key `domian`: did you mean `domain`?"},
		{"descriptor:\n- {key: k, descriptors: []}\n", "a.yaml:1:1: unknown key `descriptor`: did you mean `descriptors`?"},
		{strings.Replace(rules, "domain: d", "domain: \"{{ a }}\"", 1), ""},
	} {
		var got []string
		for _, lenient := range []bool{false, true} {
			got = nil
			for _, e := range readSource("a.yaml", []byte(c.text), lenient).errs {
				got = append(got, e.Error())
			}
			if diff := cmp.Diff(c.want, strings.Join(got, "\n")); diff != "" {
				t.Errorf("%s (lenient: %t):\n%s", c.text, lenient, diff)
			}
		}
	}
}

// Each warning states how envoyproxy/ratelimit treats the file, as observed with its binary.
func TestWarningsSayWhatTheReferenceDoes(t *testing.T) {
	const limit = "rate_limit: {unit: day, requests_per_unit: 1}"
	for text, want := range map[string]string{
		"- {key: k, " + limit + "}\n- {key: k, descriptors: [{key: l, " + limit + "}]}": "envoyproxy/ratelimit rejects the file",
		"- {key: k, key: l, " + limit + "}":                                             "envoyproxy/ratelimit reads it in the same way",
		"- {key: k, unit: day, " + limit + "}":                                          "envoyproxy/ratelimit reads it in the same way",
		"- {key: k, metadata: {a: 1, a: 2}, " + limit + "}":                             "envoyproxy/ratelimit reads it in the same way",
		"- {key: k, rate_limit: {unlimited: true, unit: fortnight}}":                    "envoyproxy/ratelimit reads it in the same way",
	} {
		s := readSource("a.yaml", []byte("domain: d\ndescriptors:\n"+text+"\n"), true)
		if len(s.errs) > 0 || len(s.warnings) != 1 || !strings.HasSuffix(s.warnings[0].Error(), "; "+want) {
			t.Errorf("%s: errors %v, warnings %v, want one that ends with %s", text, s.errs, s.warnings, want)
		}
	}
}
