package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/authoring/simulate"
)

// Commands that work on files use overrides: explain shows them, and simulate applies them.
func TestCommandsKnowOverrides(t *testing.T) {
	var log strings.Builder
	for i := range 8 {
		fmt.Fprintf(&log, "2026-03-01T12:00:%02dZ,acme\n2026-03-01T12:00:%02dZ,gone\n2026-03-01T12:00:%02dZ,other\n", i, i, i)
	}
	dir := writeRules(t, map[string]string{
		"rules.yaml":   "domain: api\ndescriptors:\n  - {key: tenant, overridable: {max: 50}, rate_limit: {name: per_tenant, unit: minute, requests_per_unit: 5}}\n",
		"new.yaml":     "domain: api\ndescriptors:\n  - {key: tenant, overridable: {max: 6}, rate_limit: {name: per_tenant, unit: minute, requests_per_unit: 4}}\n",
		"good.yaml":    "overrides:\n  - {domain: api, rule: api.tenant, entries: tenant=acme, requests_per_unit: 7}\n  - {domain: api, rule: api.tenant, entries: tenant=gone, blocked: true}\n",
		"named.yaml":   "overrides:\n  - {domain: api, rule: per_tenant, entries: tenant=acme, requests_per_unit: 7}\n",
		"misfits.yaml": "overrides:\n  - {domain: api, rule: api.tenant, entries: tenant=acme, factor: 100}\n",
		"bad.yaml":     "overrides:\n  - {domain: api, rule: api.tenant, entries: tenant=acme, facto: 2}\n",
		"map.yaml":     "format: text\npattern: '%when%,%tenant%'\ntime: when\ndomain: api\ndescriptors: [[{key: tenant, field: tenant}]]\n",
		"log.text":     log.String(),
	})
	in := func(name string) string { return filepath.Join(dir, name) }
	explain := func(overrides string) []string {
		return []string{"explain", "--rules", in("rules.yaml"), "--overrides", in(overrides), "-d", "api", "tenant=acme"}
	}
	replay := func(overrides string, more ...string) []string {
		return append([]string{"simulate", "--rules", in("rules.yaml"), "--mapping", in("map.yaml"), "--log", in("log.text"), "--overrides", in(overrides)}, more...)
	}
	for _, c := range []struct {
		args   []string
		code   int
		stdout string
		stderr string
	}{
		{explain("good.yaml"), 0, "override 7 requests per unit\nlimit    7 per minute, fixed window\n", ""},
		{append(explain("good.yaml"), "-o", "json"), 0, `"override": "7 requests per unit"`, ""},
		{explain("misfits.yaml"), 0, "limit    5 per minute", "misfits.yaml:2:5: factor: 100 makes 500 of 5, and overrides of the rule `api.tenant` are bounded by 50"},
		{explain("named.yaml"), 0, "limit    5 per minute", "named.yaml:2:5: rule: a file needs the path: write `api.tenant` instead of \"per_tenant\""},
		{explain("bad.yaml"), 2, "", "bad.yaml:2:59: unknown key `facto`: did you mean `factor`?"},
		{explain("absent.yaml"), 2, "", "read overrides: open "},
		{[]string{"explain", "-s", "localhost:1", "--overrides", in("good.yaml"), "-d", "api", "tenant=acme"}, 2, "", "--overrides needs --rules"},

		{replay("good.yaml"), 0, "16 requests decided with the overrides of " + in("good.yaml"), ""},
		{replay("good.yaml", "-o", "markdown"), 0, "are active: they decide **16 of 24 requests (66.7%)**.", ""},
		{replay("good.yaml", "--rules", in("new.yaml"), "--against", in("rules.yaml")), 0, "warning: with the rules of " + in("new.yaml") + " an override has no effect: " + in("good.yaml") + ":2:5: requests_per_unit: overrides of the rule `api.tenant` are bounded: write at most 6", ""},
		{replay("misfits.yaml"), 2, "", "no override fits the rules: " + in("misfits.yaml") + ":2:5: factor: 100"},
		{replay("bad.yaml"), 2, "", "did you mean `factor`?"},
		{[]string{"simulate", "--rules", "-", "--mapping", in("map.yaml"), "--log", in("log.text"), "--overrides", "-"}, 2, "", "--rules, --overrides are all -"},
	} {
		var out, errs bytes.Buffer
		if code := run(t.Context(), c.args, &out, &errs); code != c.code || !strings.Contains(out.String(), c.stdout) || !strings.Contains(errs.String(), c.stderr) {
			t.Errorf("%q exits with %d, want %d\nstdout (want %q)\n%s\nstderr (want %q)\n%s", c.args, code, c.code, c.stdout, out.String(), c.stderr, errs.String())
		}
	}

	var out, errs bytes.Buffer
	if code := run(t.Context(), replay("good.yaml", "-o", "json"), &out, &errs); code != 0 {
		t.Fatal(errs.String())
	}
	var r simulate.Report
	if err := json.Unmarshal(out.Bytes(), &r); err != nil {
		t.Fatal(err)
	}
	denied := make(map[string]simulate.Customer)
	for _, c := range r.Customers.Rows {
		denied[c.Customer] = c
	}
	for caller, want := range map[string]int64{"tenant=acme": 1, "tenant=gone": 8, "tenant=other": 3} {
		c := denied[caller]
		if c.Denied != want || len(c.DeniedBy) != 1 || c.DeniedBy[0].Overridden != (caller != "tenant=other") || c.DeniedBy[0].Name != "per_tenant" {
			t.Errorf("%s: %+v, want %d denied", caller, c, want)
		}
	}
	if l := r.ByRule[0].New.Limits; len(l) != 1 || l[0].Over != 12 {
		t.Errorf("%+v", l)
	}
}
