package rulecheck

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ratelimitd/ratelimitd/internal/config"
)

// noon is the time of these tests.
var noon = time.Date(2026, 3, 10, 12, 0, 0, 0, time.UTC)

// A limit that is tried out has room for any cost, and so has a soft one. A cost for all other values is checked too.
func TestCostsThatNeverPass(t *testing.T) {
	const day = "{name: d, unit: day, requests_per_unit: 200}"
	for text, want := range map[string]int{
		"{key: a, cost: 50, rate_limits: [" + day + ", {name: h, unit: hour, requests_per_unit: 40}]}":                   1,
		"{key: a, cost: 50, rate_limits: [" + day + ", {name: h, unit: hour, requests_per_unit: 40, shadow: true}]}":     0,
		"{key: a, cost: 50, rate_limits: [" + day + ", {name: h, unit: hour, requests_per_unit: 40, soft: true}]}":       0,
		"{key: a, condition: true, cost: {a: {small: 1, \"*\": 500}}, rate_limit: {unit: day, requests_per_unit: 200}}":  1,
		"{key: a, condition: true, cost: {a: {small: 1, \"*\": 200}}, rate_limit: {unit: day, requests_per_unit: 200}}":  0,
		"{key: a, condition: true, cost: {a: {small: 300, \"*\": 20}}, rate_limit: {unit: day, requests_per_unit: 200}}": 1,
	} {
		got := 0
		for _, f := range checkText("domain: d\ndescriptors:\n- " + text + "\n") {
			if f.Code == codeCostTooHigh {
				got++
			}
		}
		if got != want {
			t.Errorf("%s: %d warnings of a cost, want %d", text, got, want)
		}
	}
}

func checkText(texts ...string) []Finding {
	var files []config.File
	for i, text := range texts {
		files = append(files, config.File{Name: fmt.Sprintf("%c.yaml", 'a'+i), Data: []byte(text)})
	}
	return Check(files, &Options{Merge: true}, noon)
}

// brief formats findings as position and code. Findings of level info are left out unless info is set.
func brief(all []Finding, info bool) []string {
	var out []string
	for i := range all {
		f := &all[i]
		said := f.Code
		if f.Severity == Error {
			said = "error"
		}
		if info || f.Severity != Info {
			out = append(out, f.Position()+" "+said)
		}
	}
	return out
}

type ruleFileCase struct {
	Name  string
	Files []string
	Loads bool
	Note  string
}

func ruleFileCases(t testing.TB) []ruleFileCase {
	t.Helper()
	data, err := os.ReadFile("../../config/testdata/rule-files.json")
	if err != nil {
		t.Fatal(err)
	}
	var cases []ruleFileCase
	if err := json.Unmarshal(data, &cases); err != nil {
		t.Fatal(err)
	}
	return cases
}

// Rules that envoyproxy/ratelimit rejects are an error with a position. Rules that it accepts are not an error, but a
// warning if they are a mistake.
func TestRuleFiles(t *testing.T) {
	ours := map[string]bool{"zero-limit": true, "same-yaml-key-twice": false, "two-documents": true, "replaces-unknown": true, "too-many-requests": true}
	warned := map[string]string{
		"zero-limit":              "a.yaml:4:17 zero-limit",
		"zero-requests":           "a.yaml:4:48 zero-limit",
		"replaces-unknown":        "a.yaml:4:45 no-such-limit",
		"same-name-twice":         "a.yaml:6:24 name-twice",
		"unlimited-with-requests": "a.yaml:4:54 no-effect",
	}
	for _, c := range ruleFileCases(t) {
		want := c.Loads
		if chosen, is := ours[c.Name]; is {
			want = chosen
		}
		var files []config.File
		for i, text := range c.Files {
			files = append(files, config.File{Name: fmt.Sprintf("%c.yaml", 'a'+i), Data: []byte(text)})
		}
		all := Check(files, &Options{}, noon)
		rejected := slices.ContainsFunc(all, func(f Finding) bool { return f.Severity == Error })
		if rejected == want {
			t.Errorf("%s: rejected %v, want %v: %v", c.Name, rejected, !want, all)
		}
		for _, f := range all {
			if f.Line < 1 || f.Col < 1 || f.Message == "" || f.Col > len([]rune(f.Source))+1 {
				t.Errorf("%s: %+v", c.Name, f)
			}
		}
		if w := warned[c.Name]; w != "" && !slices.Contains(brief(all, false), w) {
			t.Errorf("%s: %q, want %s", c.Name, brief(all, true), w)
		}
	}
}

// The shipped rule files have no warnings except the warnings that a comment accepts.
func TestShippedDomains(t *testing.T) {
	r, err := Run(Options{Paths: []string{"../../../config"}})
	if err != nil {
		t.Fatal(err)
	}
	if n := r.Count(Error) + r.Count(Warning); n > 0 || r.Files < 4 || r.Count(Info) == 0 {
		t.Errorf("%d files: %q", r.Files, brief(r.Findings, false))
	}
}

func TestCheck(t *testing.T) {
	const limit = "rate_limit: {unit: minute, requests_per_unit: 10}"
	rules := func(lines ...string) string {
		return "domain: d\ndescriptors:\n" + strings.Join(lines, "\n") + "\n"
	}
	for _, c := range []struct {
		name string
		text string
		want []string
	}{
		{"nothing", rules("  - {key: k, " + limit + "}"), nil},
		{"quiet hours", rules("  - {key: k, rate_limit: {unit: day, requests_per_unit: 0, active: {hours: 21:00-08:00}}}"), nil},
		{"quiet hours without a number", rules("  - {key: k, rate_limit: {unit: day, active: {hours: 21:00-08:00}}}"), []string{"a.yaml:3:26 zero-limit"}},
		{"an expression that a wildcard takes everything from", rules(
			"  - {key: k, value: a*, "+limit+"}", "  - {key: k, value_regex: 'ab[0-9]', "+limit+"}", "  - {key: k, value_regex: '[ab]x', "+limit+"}", "  - {key: k, "+limit+"}"),
			[]string{"a.yaml:4:27 never-matches"}},
		{"an expression that takes everything from a wildcard", rules(
			"  - {key: k, value_regex: 'a.*z', "+limit+"}", "  - {key: k, value: ab*yz, "+limit+"}", "  - {key: k, value: a*y, "+limit+"}", "  - {key: k, "+limit+"}"),
			[]string{"a.yaml:4:21 never-matches", "a.yaml:4:21 star-inside", "a.yaml:5:21 star-inside"}},
		{"one that does not quite", rules(
			"  - {key: k, value_regex: 'a.+', "+limit+"}", "  - {key: k, value: a*, "+limit+"}", "  - {key: k, "+limit+"}"), nil},
		{"letter case", rules(
			"  - {key: k, value_regex: '(?i)a.*', "+limit+"}", "  - {key: k, value: a*, "+limit+"}", "  - {key: k, value_regex: '(?i)A.*', "+limit+"}", "  - {key: k, "+limit+"}"), nil},
		{"a later, wider one", rules("  - {key: k, value: ab*, "+limit+"}", "  - {key: k, value: a*, "+limit+"}", "  - {key: k, "+limit+"}"), nil},
		{"another key", rules("  - {key: j, value: a*, "+limit+"}", "  - {key: k, value: ab*, "+limit+"}"), nil},
		{"the same pattern, written otherwise", rules("  - {key: k, value: a*, "+limit+"}", "  - {key: k, value: a**, "+limit+"}", "  - {key: k, "+limit+"}"),
			[]string{"a.yaml:4:21 never-matches"}},
		{"a list whose values stand alone, too", rules("  - {key: k, values: [a, b], "+limit+"}", "  - {key: k, value: a, "+limit+"}", "  - {key: k, value: b, "+limit+"}"),
			[]string{"a.yaml:3:22 never-matches"}},
		{"an entry of a list that stands alone, too", rules("  - {key: k, values: [a, b], "+limit+"}", "  - {key: k, value: b, "+limit+"}"),
			[]string{"a.yaml:3:26 never-matches"}},
		{"a long value that reaches a higher limit", rules(
			`  - {key: k, value_regex: '/files/.*\.zip', rate_limit: {unit: minute, requests_per_unit: 1000}}`, "  - {key: k, "+limit+"}"), []string{"a.yaml:3:27 long-value"}},
		{"one that reaches it below", rules(
			`  - {key: k, value_regex: '/files/.*\.zip', descriptors: [{key: u, rate_limit: {unit: second, requests_per_unit: 1}}]}`, "  - {key: k, descriptors: [{key: u, "+limit+"}]}"), []string{"a.yaml:3:27 long-value"}},
		{"one of a wildcard and of an expression", rules(
			`  - {key: k, value_regex: '/a/.*x', rate_limit: {unit: second, requests_per_unit: 1}}`, `  - {key: k, value_regex: '/b/.*x', rate_limit: {unit: second, requests_per_unit: 1}}`,
			"  - {key: k, value: '/a/*/', "+limit+"}", "  - {key: k, value_regex: '/b/.*y', "+limit+"}"), []string{"a.yaml:3:27 long-value", "a.yaml:4:27 long-value", "a.yaml:5:21 star-inside"}},
		{"long values that reach no higher limit", rules(
			// as high
			`  - {key: a, value_regex: '/files/.*\.zip', rate_limit: {unit: hour, requests_per_unit: 600}}`, "  - {key: a, "+limit+"}",
			// is not reached
			`  - {key: b, value_regex: '/files/.*\.zip', rate_limit: {unlimited: true}}`, "  - {key: b, "+limit+"}",
			// the first bytes decide
			`  - {key: c, value_regex: '/files/.*', rate_limit: {unit: minute, requests_per_unit: 1000}}`, "  - {key: c, "+limit+"}",
			// is not long
			`  - {key: d, value_regex: '/files/[^/]{1,20}\.zip', rate_limit: {unit: minute, requests_per_unit: 1000}}`, "  - {key: d, "+limit+"}",
			// start differently
			`  - {key: e, value_regex: '/a/.*x', rate_limit: {unit: minute, requests_per_unit: 1000}}`, "  - {key: e, value: '/b/*', "+limit+"}",
			// is tried later
			"  - {key: f, value: '/a/*', "+limit+"}", `  - {key: f, value_regex: '/.*x', rate_limit: {unit: minute, requests_per_unit: 1000}}`), nil},
		{"an address that is a value, too", rules("  - {key: k, value_cidr: 10.0.0.1/32, "+limit+"}", "  - {key: k, value: 10.0.0.1, "+limit+"}"), nil},
		{"half a network", rules("  - {key: k, value_cidr: 10.0.0.0/8, "+limit+"}", "  - {key: k, value_cidr: 10.0.0.0/9, "+limit+"}"), []string{"a.yaml:4:26 cidr-overlap"}},
		{"half a network, with another limit", rules("  - {key: k, value_cidr: 10.0.0.0/8, "+limit+"}", "  - {key: k, value_cidr: 10.0.0.0/9, rate_limit: {unit: minute, requests_per_unit: 11}}"), nil},
		{"half a network, with one counter", rules("  - {key: k, value_cidr: 10.0.0.0/8, "+limit+"}", "  - {key: k, value_cidr: 10.0.0.0/9, share_threshold: true, "+limit+"}"), nil},
		{"half a network, with a name", rules("  - {key: k, value_cidr: 10.0.0.0/8, "+limit+"}", "  - {key: k, value_cidr: 10.0.0.0/9, rate_limit: {name: n, unit: minute, requests_per_unit: 10}}"), nil},
		{"all of a network of IPv6", rules("  - {key: k, value_cidr: '2001:db8::/32', "+limit+"}", "  - {key: k, value_cidr: '2001:db8::/33', "+limit+"}",
			"  - {key: k, value_cidr: '2001:db8:8000::/34', "+limit+"}", "  - {key: k, value_cidr: '2001:db8:c000::/34', "+limit+"}"), []string{"a.yaml:3:26 never-matches"}},
		{"one counter for all", rules("  - {key: k, value: '*', share_threshold: true, " + limit + "}"), nil},
		{"a version", rules("  - {key: version, value: 1.2.*, " + limit + "}"), nil},
		{"a piece of an address", rules("  - {key: ip, value: 10.0.0.1*, " + limit + "}"), []string{"a.yaml:3:22 star-address"}},
		{"a beginning of an IPv6 address", rules("  - {key: ip, value: '2001:db8:*', " + limit + "}"), []string{"a.yaml:3:22 star-address"}},
		{"no address", rules("  - {key: ip, value: '999.*', " + limit + "}"), nil},
		{"stars with separators", rules("  - {key: p, value: /api/*, "+limit+"}", "  - {key: h, value: '*.example.com', "+limit+"}", "  - {key: r, value: report_*, "+limit+"}", "  - {key: w, value: '*word*', "+limit+"}"), nil},
		{"commas", rules("  - {key: k, value: 'a, b', " + limit + "}"), []string{"a.yaml:3:21 value-literal"}},
		{"spaces", rules("  - {key: 'k ', value: ' a', " + limit + "}"), []string{"a.yaml:3:11 value-literal", "a.yaml:3:24 value-literal"}},
		{"a time with a colon is no template", rules("  - {key: k, value: '12:30', " + limit + "}"), nil},
		{"an expression's dots that are meant", rules(`  - {key: k, value_regex: 'a.*|a\.b|[a.b]+|\d.5|a.+b', ` + limit + "}"), nil},
		{"one that goes on below, and one without limits", rules("  - {key: k, descriptors: [{key: j, "+limit+"}]}", "  - {key: k, value: a, descriptors: [{key: j, value: x, "+limit+"}]}",
			"  - {key: k, value: b, rate_limit: {unlimited: true}}"), nil},
		{"callers that are shut out", rules("  - {key: ip, value: a, rate_limit: {unit: day, requests_per_unit: 0}}", "  - {key: ip, value: b, rate_limit: {unit: day, requests_per_unit: 0}}"), nil},
		{"callers that are named, and all others", rules("  - {key: user, value: a, "+limit+"}", "  - {key: user, value: b, "+limit+"}", "  - {key: user, "+limit+"}"), nil},
		{"a name behind an alias", rules("  - {key: a, rate_limit: &l {name: n, unit: minute, requests_per_unit: 10}}", "  - {key: b, rate_limit: *l}"), []string{"a.yaml:4:5 name-twice"}},
		{"one text of two descriptors", rules("  - {key: '__*', "+limit+"}", "  - {key: _, value: '*', "+limit+"}", "  - {key: a, value: b_c, descriptors: [{key: d, "+limit+"}, {key: d_e, "+limit+"}, {key: d, value: e, "+limit+"}]}", "  - {key: a_b, value: c, "+limit+"}"),
			[]string{"a.yaml:4:5 same-text", "a.yaml:4:21 star-alone", "a.yaml:5:164 same-text", "a.yaml:6:5 same-text"}},
		{"texts of keys of our own", rules("  - {key: a, value: b, "+limit+"}", "  - {key: a, value_regex: b, "+limit+"}", "  - {key: a_b, descriptors: [{key: a, value: b, "+limit+"}]}"), []string{"a.yaml:5:5 same-text"}},
		{"an alias is reported once", rules("  - {key: a, rate_limit: &l {unit: minute}}", "  - {key: b, rate_limit: {<<: *l, requests_per_unit: 5}}", "  - {key: c, descriptors: &d [{key: e, value: /x*, "+limit+"}]}", "  - {key: f, descriptors: *d}"),
			[]string{"a.yaml:3:26 zero-limit", "a.yaml:5:47 star-boundary"}},
		{"merged keys", rules("  - &one {key: a, value: /x*, shadow_mode: true}", "  - {<<: *one, key: b, "+limit+"}"),
			[]string{"a.yaml:3:5 no-limit", "a.yaml:3:26 star-boundary", "a.yaml:3:44 no-effect"}},
		{"the network that Envoy sends as text", rules("  - {key: masked_remote_address, value: 192.168.0.0/16, " + limit + "}"), nil},
		{"a network under another key", rules("  - {key: address, value: 192.168.0.0/16, " + limit + "}"), []string{"a.yaml:3:27 value-literal"}},
		{"shadow mode on the levels above shadow rules", rules("  - {key: a, value: b, shadow_mode: true, descriptors: [{key: c, shadow_mode: true, descriptors: [{key: d, shadow_mode: true, " + limit + "}]}]}"), nil},
		{"shadow mode above a rule that is enforced", rules("  - {key: a, value: b, shadow_mode: true, descriptors: [{key: c, shadow_mode: true, " + limit + "}, {key: d, " + limit + "}]}"), []string{"a.yaml:3:37 no-effect"}},
		{"several limits, each of use", rules("  - key: k", "    rate_limits:", "      - {name: a, unit: minute, requests_per_unit: 10}", "      - {name: b, unit: hour, requests_per_unit: 599}"), nil},
		{"several limits, the long one of no use", rules("  - key: k", "    rate_limits:", "      - {name: a, unit: minute, requests_per_unit: 10}", "      - {name: b, unit: hour, requests_per_unit: 600}"), []string{"a.yaml:6:9 never-denies"}},
		{"several limits, the short one of no use", rules("  - key: k", "    rate_limits:", "      - {name: a, unit: minute, requests_per_unit: 100}", "      - {name: b, unit: hour, requests_per_unit: 100}"), []string{"a.yaml:5:9 never-denies"}},
		{"several limits, one of which is replaced at times", rules("  - key: k", "    rate_limits:", "      - {name: a, unit: minute, requests_per_unit: 100}", "      - {name: b, unit: hour, requests_per_unit: 100}",
			"  - {key: j, rate_limit: {unlimited: true, replaces: [{name: b}]}}"), nil},
		{"evenly spaced", rules("  - {key: k, rate_limit: {unit: second, requests_per_unit: 100, algorithm: token_bucket, burst: 1}}"), nil},
		{"a bucket of half a second", rules("  - {key: k, rate_limit: {unit: second, requests_per_unit: 100, algorithm: token_bucket, burst: 50}}"), []string{"a.yaml:3:97 small-burst"}},
		{"accepted", rules("  - {key: k, value: /x*, "+limit+"} # check: ok star-boundary meant", "  # check: ok star-boundary,never-matches they are kept apart elsewhere", "  # and it stays so", "  - {key: k, value: /xy*, "+limit+"}"), nil},
		{"accepted for nothing", rules("  - {key: k, " + limit + "} # check: ok star-boundary meant"), []string{"a.yaml:3:65 directive"}},
		{"accepted, misspelt", rules("  - {key: k, value: /x*, "+limit+"} # check: ok star-bounds meant", "  - {key: j, "+limit+"} # check: off"),
			[]string{"a.yaml:3:21 star-boundary", "a.yaml:3:77 directive", "a.yaml:4:65 directive"}},
		{"errors cannot be accepted", rules("  - {key: k, unit: day} # check: ok no-limit no"), []string{"a.yaml:3:14 error"}},
		{"a file with errors has no warnings", rules("  - {key: k, value: /x*, unit: day}"), []string{"a.yaml:3:26 error"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			all := checkText(c.text)
			if diff := cmp.Diff(c.want, brief(all, false)); diff != "" {
				t.Errorf("(-want +got):\n%s\n%v", diff, all)
			}
		})
	}
}

// Files with the same domain are checked together. Errors in another file do not matter.
func TestCheckTogether(t *testing.T) {
	got := brief(checkText(
		"domain: d\ndescriptors:\n  - {key: k, value: a*, rate_limit: {name: n, unit: day, requests_per_unit: 1}}\n",
		"domain: d\ndescriptors:\n  - {key: k, value: ab*, rate_limit: {name: n, unit: day, requests_per_unit: 1, replaces: [{name: m}]}}\n",
		"domain: e\ndescriptors:\n  - {key: k, rate_limit: {name: m, unit: day, requests_per_unit: 1}}\n",
		"domain: f\nnothing: 1\n",
	), false)
	want := []string{"b.yaml:3:21 never-matches", "b.yaml:3:45 name-twice", "b.yaml:3:99 no-such-limit", "d.yaml:2:1 error"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestOncePerFile(t *testing.T) {
	var text strings.Builder
	text.WriteString("domain: d\ndescriptors:\n")
	for i := range 10 {
		fmt.Fprintf(&text, "  - {key: k%d, rate_limit: {unit: second, requests_per_unit: 1}}\n", i)
	}
	all := checkText(text.String())
	if len(all) != 1 || all[0].Line != 3 || !strings.Contains(all[0].Message, "(and 9 more in this file)") {
		t.Errorf("%+v", all)
	}
}

func TestRun(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	one := "domain: one\ndescriptors: [{key: k, rate_limit: {unit: day}}]\n"
	live := write("live/a.yaml", one)
	write("live/a_test.yaml", "cases: []")
	write("live/.hidden", "x")
	write("live/sub/b.yaml", "domain: one\n")
	staging := write("staging/a.yaml", one)
	if err := os.Symlink(filepath.Join(dir, "gone"), filepath.Join(dir, "live", "link.yaml")); err != nil {
		t.Fatal(err)
	}

	for _, c := range []struct {
		o     Options
		files int
		want  []string
	}{
		{Options{Paths: []string{filepath.Join(dir, "live")}}, 3, []string{
			"live/a.yaml:2:36 zero-limit", "live/link.yaml error", "live/sub/b.yaml:1:9 error"}},
		{Options{Paths: []string{filepath.Join(dir, "live")}, Merge: true, Disable: []string{"zero-limit"}}, 3, []string{
			"live/link.yaml error"}},
		{Options{Paths: []string{live, staging, live}}, 2, []string{"live/a.yaml:2:36 zero-limit", "staging/a.yaml:2:36 zero-limit"}},
		{Options{Paths: []string{filepath.Join(dir, "staging"), staging}}, 2, []string{"staging/a.yaml:2:36 zero-limit"}},
	} {
		r, err := Run(c.o)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, line := range brief(r.Findings, false) {
			got = append(got, strings.TrimPrefix(line, dir+"/"))
		}
		if diff := cmp.Diff(c.want, got); diff != "" || r.Files != c.files {
			t.Errorf("%+v: %d files, want %d (-want +got):\n%s", c.o, r.Files, c.files, diff)
		}
	}
	for _, o := range []Options{
		{Paths: []string{filepath.Join(dir, "gone")}},
		{Paths: []string{t.TempDir()}},
		{Paths: []string{live}, Disable: []string{"zero-limits"}},
		{Paths: []string{live}, Disable: []string{""}},
	} {
		if _, err := Run(o); err == nil {
			t.Errorf("%+v: no error", o)
		}
	}
}

func TestExcerpt(t *testing.T) {
	for _, c := range []struct {
		line, shown string
		col, before int
	}{
		{"key: a", "key: a", 6, 5},
		{"\tkey: a", " key: a", 7, 6},
		{"{ユーザー, x}", "{ユーザー, x}", 8, 11},
		{"e\u0301, x", "e\u0301, x", 5, 3},
		{"short", "short", 99, 5},
		{"", "", 1, 0},
	} {
		if shown, before := excerpt(c.line, c.col); shown != c.shown || len(before) != c.before {
			t.Errorf("%q at %d: %q and %d before the caret, want %q and %d", c.line, c.col, shown, len(before), c.shown, c.before)
		}
	}
}

// The report has lines that try to control the terminal, exceed its width, and break out of an annotation.
func TestFormats(t *testing.T) {
	r := &Report{Files: 2, Findings: []Finding{
		{File: "a,b.yaml", Line: 3, Col: 7, Severity: Error, Message: "100% \x1b[31mred", Source: "\tkey: \x1b[2Jx"},
		{File: "b.yaml", Line: 1, Col: 205, Severity: Warning, Code: "star-alone", Message: "line one\nline two", Fix: "write less", Source: strings.Repeat("ab", 100) + "key: '*'" + strings.Repeat("c", 300)},
		{File: "c.yaml", Severity: Info, Code: "per-second", Message: "slow"},
	}}
	for name, c := range map[string]struct {
		write func(*bytes.Buffer) error
		want  string
	}{
		"text": {func(b *bytes.Buffer) error { return WriteText(b, r, TextOptions{}) }, `a,b.yaml:3:7: error: 100% ` + "\ufffd" + `[31mred
    3 |  key: ` + "\ufffd" + `[2Jx
      |       ^

b.yaml:1:205: warning: line one` + "\ufffd" + `line two [star-alone]
    1 | ...` + strings.Repeat("ab", 28) + `key: '*'` + strings.Repeat("c", 56) + `...
      |    ` + strings.Repeat(" ", 60) + `^
      = write less

2 files: 1 error, 1 warning, 1 note (--info shows them)
`},
		"plain": {func(b *bytes.Buffer) error { return WritePlain(b, r, true) }, "a,b.yaml:3:7: error: 100% \ufffd[31mred\n" +
			"b.yaml:1:205: warning: line one\ufffdline two; write less [star-alone]\nc.yaml: info: slow [per-second]\n"},
		"github": {func(b *bytes.Buffer) error { return WriteGitHub(b, r, true) }, "::error file=a%2Cb.yaml,line=3,col=7::100%25 \x1b[31mred\n" +
			"::warning file=b.yaml,line=1,col=205,title=star-alone::line one%0Aline two; write less\n::notice file=c.yaml,title=per-second::slow\n"},
	} {
		var b bytes.Buffer
		if err := c.write(&b); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(c.want, b.String()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	var b bytes.Buffer
	if err := WriteText(&b, r, TextOptions{Color: true, Info: true}); err != nil || !strings.Contains(b.String(), "\x1b[31merror:\x1b[0m") || !strings.Contains(b.String(), "slow") {
		t.Errorf("%v %q", err, &b)
	}
	b.Reset()
	if err := WriteJSON(&b, r, false); err != nil {
		t.Fatal(err)
	}
	var read struct {
		Files, Errors, Warnings, Infos int
		Findings                       []Finding
	}
	if err := json.Unmarshal(b.Bytes(), &read); err != nil || read.Files != 2 || read.Errors != 1 || read.Warnings != 1 || read.Infos != 1 {
		t.Errorf("%v %+v", err, read)
	}
	if diff := cmp.Diff(r.Findings[:2], read.Findings); diff != "" {
		t.Error(diff)
	}
	b.Reset()
	if err := WriteText(&b, &Report{Files: 1}, TextOptions{}); err != nil || b.String() != "1 file: no errors, no warnings\n" {
		t.Errorf("%q", &b)
	}
}

// The service reads probable mistakes as envoyproxy/ratelimit does. An error of such a file mentions it; one of a file
// that is not loaded does not.
func TestErrorsThatTheServiceTolerates(t *testing.T) {
	const twice = "domain: %s\ndescriptors:\n  - key: k\n    key: k\n    rate_limit: {unit: day, requests_per_unit: 1%s}\n"
	found := Check([]config.File{
		{Name: "a.yaml", Data: fmt.Appendf(nil, twice, "a", "")},
		{Name: "b.yaml", Data: fmt.Appendf(nil, twice, "b", ", burst: x")},
	}, &Options{}, time.Now())
	said := make(map[string][]bool)
	for _, f := range found {
		said[f.File] = append(said[f.File], strings.Contains(f.Text(), "the service loads this with a warning, unless RATELIMITD_STRICT_RULES is set; envoyproxy/ratelimit reads it in the same way"))
	}
	if diff := cmp.Diff(map[string][]bool{"a.yaml": {true}, "b.yaml": {false, false}}, said); diff != "" {
		t.Errorf("%s\n%+v", diff, found)
	}
}
