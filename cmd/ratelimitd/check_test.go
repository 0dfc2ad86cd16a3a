package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/testkit/racetest"
)

// checkRules runs `ratelimitd check` and returns its exit code and its output.
func checkRules(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = run(t.Context(), append([]string{"check"}, args...), &out, &errs)
	return code, out.String(), errs.String()
}

func TestCheckCommand(t *testing.T) {
	racetest.Sequential(t)
	good := writeRules(t, map[string]string{"r.yaml": someRules})
	odd := writeRules(t, map[string]string{"r.yaml": "domain: d\ndescriptors:\n  - {key: k, value: /x*, rate_limit: {unit: second, requests_per_unit: 1}}\n"})
	bad := writeRules(t, map[string]string{"r.yaml": "domain: d\ndescriptor: []\n", "s.yaml": someRules})
	twice := writeRules(t, map[string]string{"r.yaml": "domain: d\ndescriptors: [{key: x, rate_limit: {unit: day, requests_per_unit: 1}}]\n", "s.yaml": someRules})
	months := writeRules(t, map[string]string{"r.yaml": "domain: d\ndescriptors:\n  - key: k\n    rate_limits: [{name: a, unit: day, requests_per_unit: 10}, {name: b, unit: month, requests_per_unit: 305}]\n"})
	overridable := writeRules(t, map[string]string{"r.yaml": "domain: d\ndescriptors:\n  - {key: k, overridable: {max: 100}, rate_limit: {unit: day, requests_per_unit: 10}}\n"})
	overrides := func(items string) string {
		return filepath.Join(writeRules(t, map[string]string{"o.yaml": "overrides:\n" + items}), "o.yaml")
	}
	fits := overrides("  - {domain: d, rule: d.k, entries: k=v, requests_per_unit: 100}\n")
	misfits := overrides("  - {domain: d, rule: d.k, entries: k=v, factor: 11}\n  - {domain: d, rule: d.j, entries: k=v, factor: 2}\n  - {domain: e, rule: d.k, entries: k=v, factor: 2}\n  - {domain: d, rule: k, entries: k=v, faktor: 2}\n")
	for _, c := range []struct {
		args   []string
		code   int
		stdout string // part of it
		stderr string
	}{
		{[]string{"--strict", months}, 1, "[never-denies]", "warnings about rule files: 1"}, // 30 days of 10
		{[]string{"--strict", "--use-calendar-month-rate-limit", months}, 0, "no warnings", ""},
		{[]string{good}, 0, "1 file: no errors, no warnings\n", ""},
		{[]string{filepath.Join(good, "r.yaml"), good}, 0, "2 files: no errors", ""},
		{[]string{odd}, 0, "r.yaml:3:21: warning: \"/x*\" also matches longer names", ""},
		{[]string{odd}, 0, "    3 |   - {key: k, value: /x*, rate_limit: {unit: second, requests_per_unit: 1}}\n      |                     ^\n      = write \"/x/*\"", ""},
		{[]string{odd}, 0, "1 file: no errors, 1 warning, 2 notes (--info shows them)\n", ""},
		{[]string{"--info", odd}, 0, "r.yaml:3:45: info: a limit per second", ""},
		{[]string{"--strict", odd}, 1, "[star-boundary]", "warnings about rule files: 1, and --strict is given"},
		{[]string{"--strict", "--disable", "star-boundary", odd}, 0, "no warnings", ""},
		{[]string{"--strict", "--disable", "no-limit,star-boundary", odd}, 0, "no warnings", ""},
		{[]string{"--color", "always", odd}, 0, "\x1b[33mwarning:\x1b[0m", ""},
		{[]string{"--output", "plain", odd}, 0, "also matches longer names, such as \"/xx\"; write \"/x/*\", and \"/x\" in its own descriptor [star-boundary]\n", ""},
		{[]string{"--output", "github", odd}, 0, ",line=3,col=21,title=star-boundary::", ""},
		{[]string{bad}, 1, "r.yaml:2:1: error: unknown key `descriptor`: did you mean `descriptors`?", "errors in rule files: 1"},
		{[]string{twice}, 1, "s.yaml:1:9: error: duplicate domain \"d\"", ""},
		{[]string{"--merge-domain-config", twice}, 0, "2 files: no errors", ""},
		{[]string{"-config_dir", twice}, 1, "s.yaml:1:9: error: duplicate domain \"d\"", ""},
		{[]string{"-config_dir=" + twice, "-merge_domain_configs"}, 0, "2 files: no errors", ""},
		{[]string{"--config_dir", twice, "--merge_domain_configs=true"}, 0, "2 files: no errors", ""},
		{[]string{"--overrides", fits, overridable}, 0, "2 files: no errors, no warnings\n", ""},
		// good comes first
		{[]string{"--overrides", fits, good, overridable}, 1, "o.yaml:2:5: error: rule: there is no \"d.k\" in domain `d`: did you mean `d.a`?", ""},
		{[]string{"--overrides", misfits, overridable}, 1, "o.yaml:2:5: error: factor: 11 makes 110 of 10, and overrides of the rule `d.k` are bounded by 100", "errors in rule files: 4"},
		{[]string{"--overrides", misfits, overridable}, 1, "o.yaml:3:5: error: rule: there is no \"d.j\" in domain `d`: the entries match `d.k`", ""},
		{[]string{"--overrides", misfits, overridable}, 1, "o.yaml:4:5: error: domain: there is no \"e\"", ""},
		{[]string{"--overrides", misfits, overridable}, 1, "o.yaml:5:40: error: unknown key `faktor`: did you mean `factor`?", ""},
		{[]string{"--overrides", misfits, bad}, 1, "o.yaml:5:40: error: unknown key `faktor`: did you mean `factor`?", "errors in rule files: 2"},
		{[]string{"--overrides", filepath.Join(good, "gone"), good}, 1, "gone: error: cannot be read", ""},
		{[]string{filepath.Join(good, "gone")}, 2, "", "no such file"},
		{[]string{t.TempDir()}, 2, "", "there is none in"},
		{[]string{"--disable", "star-bounds", odd}, 2, "", "unknown code \"star-bounds\": did you mean star-boundary?"},
		{[]string{"--output", "xml", odd}, 2, "", "--output must be one of"},
		{[]string{"--strickt", odd}, 2, "", "unknown flag --strickt"},
	} {
		code, stdout, stderr := checkRules(t, c.args...)
		if code != c.code || !strings.Contains(stdout, c.stdout) || !strings.Contains(stderr, c.stderr) || c.code == 0 && stderr != "" {
			t.Errorf("ratelimitd check %q exits with %d, want %d\nstdout (want %q)\n%s\nstderr (want %q)\n%s", c.args, code, c.code, c.stdout, stdout, c.stderr, stderr)
		}
	}
	t.Setenv("MERGE_DOMAIN_CONFIG", "true")
	if code, stdout, _ := checkRules(t, twice); code != 0 {
		t.Errorf("with MERGE_DOMAIN_CONFIG, exit code %d\n%s", code, stdout)
	}
}

func TestCheckCommandJSON(t *testing.T) {
	racetest.Sequential(t)
	dir := writeRules(t, map[string]string{"r.yaml": "domain: d\ndescriptors:\n  - {key: k, value: /x*, rate_limit: {unit: second, requests_per_unit: 1}}\n"})
	code, stdout, _ := checkRules(t, "--output", "json", dir)
	var report struct {
		Files, Errors, Warnings, Infos int
		Findings                       []struct {
			File, Severity, Code, Message, Fix, Source string
			Line, Col                                  int
		}
	}
	if err := json.Unmarshal([]byte(stdout), &report); err != nil {
		t.Fatalf("%v\n%s", err, stdout)
	}
	if code != 0 || report.Files != 1 || report.Errors != 0 || report.Warnings != 1 || report.Infos != 2 || len(report.Findings) != 1 {
		t.Fatalf("exit code %d\n%s", code, stdout)
	}
	f := report.Findings[0]
	if f.File != filepath.Join(dir, "r.yaml") || f.Line != 3 || f.Col != 21 || f.Severity != "warning" || f.Code != "star-boundary" ||
		f.Message == "" || f.Fix == "" || !strings.HasPrefix(f.Source, "  - {key: k") {
		t.Errorf("%+v", f)
	}
}

// The shipped rule files have no warnings when the command runs in the project's top directory, as the documentation
// describes.
func TestCheckCommandDefault(t *testing.T) {
	racetest.Sequential(t)
	t.Chdir("../..")
	if code, stdout, stderr := checkRules(t, "--strict"); code != 0 {
		t.Errorf("exit code %d\n%s%s", code, stdout, stderr)
	}
}

// With the names of the regions, from the flag or from serve's variable, a home outside the list is an error.
func TestCheckRegions(t *testing.T) {
	const rule = "domain: d\ndescriptors:\n  - {key: k, rate_limit: {unit: day, requests_per_unit: 5, regions: {home: %s}}}\n"
	for _, c := range []struct {
		home, flag, variable string
		code                 int
		want                 string
	}{
		{"us", "eu,us", "", 0, ""},
		{"us", "", "", 0, ""},
		{"hash", "eu,us", "", 0, ""},
		{"mars", "eu,us", "", 1, `"mars" is the home of the rule "d.k", but not a region: the regions are eu, us`},
		{"mars", "", "eu=localhost:1,us=localhost:2", 1, "the regions are eu, us"},
		{"us", "eu,ap", "us=localhost:1", 1, "the regions are eu, ap"},
		{"us", "EU", "", 2, `--regions (RATELIMITD_REGIONS): "EU" is no region`},
	} {
		t.Setenv("RATELIMITD_REGIONS", c.variable)
		args := []string{"check", file(t, fmt.Sprintf(rule, c.home))}
		if c.flag != "" {
			args = append(args, "--regions", c.flag)
		}
		if code, out, stderr := asks(t, args...); code != c.code || !strings.Contains(out+stderr, c.want) {
			t.Errorf("%+v: %d\n%s%s", c, code, out, stderr)
		}
	}
	if code, out, _ := asks(t, "check", "--info", file(t, fmt.Sprintf(rule, "eu"))); code != 0 || !strings.Contains(out, `each request under the rule "d.k" outside eu waits for a round trip to the home, until the limit is used up [home-waits]`) {
		t.Errorf("%d\n%s", code, out)
	}
}
