package ruletest

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ratelimitd/ratelimitd/internal/config/override"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/platform/junit"
	"github.com/ratelimitd/ratelimitd/internal/testkit/golden"
	"github.com/ratelimitd/ratelimitd/internal/testkit/racetest"
)

func write(t *testing.T, dir, name, text string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

func runAll(t *testing.T, o Options, paths ...string) *Report {
	t.Helper()
	files, _, err := Find(paths)
	if err != nil {
		t.Fatal(err)
	}
	r, err := Run(t.Context(), files, o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// A rule file cannot send commands to the terminal or to the reader of a CI log.
func TestReportsObeyNoText(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"r.yaml":      "domain: d\ndescriptors:\n- key: \"k\\e[2J\"\n  rate_limit: {unit: day, requests_per_unit: 1}\n- key: \"m\\e[2J\"\n  rate_limit: {unit: day, requests_per_unit: 1}\n",
		"r_test.yaml": "cases:\n- name: \"n\\e[2J\"\n  steps:\n  - {descriptors: \"k\\e[2J=v\", expect: {code: OVER_LIMIT, rule: \"x\\e[2J\", headers: {a: \"\\e[2J\"}}}\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	r := runAll(t, Options{}, dir)
	if r.Failed != 1 || len(r.Coverage.Missed) != 1 {
		t.Fatalf("%+v", r)
	}
	var text bytes.Buffer
	if err := WriteText(&text, r, TextOptions{Coverage: true, Verbose: true}); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(text.String(), "\x1b") || strings.Count(text.String(), "\ufffd[2J") < 5 {
		t.Errorf("%q", &text)
	}
}

// The shipped rule files decide as their comments describe. Every rule is tested.
func TestShippedDomains(t *testing.T) {
	rules, err := RuleFiles(shipped)
	if err != nil {
		t.Fatal(err)
	}
	r := runAll(t, Options{Rules: rules}, shipped)
	var text bytes.Buffer
	if err := WriteText(&text, r, TextOptions{Coverage: true}); err != nil {
		t.Fatal(err)
	}
	if !r.Passed() || r.Cases == 0 || r.Coverage.Percent() != 100 || len(r.Coverage.Errors) > 0 {
		t.Errorf("%s", &text)
	}
}

// Every test file in testdata/pass passes. Together they use the whole language.
func TestLanguage(t *testing.T) {
	r := runAll(t, Options{}, "testdata/pass")
	var text bytes.Buffer
	if err := WriteText(&text, r, TextOptions{}); err != nil {
		t.Fatal(err)
	}
	if !r.Passed() {
		t.Errorf("%s", &text)
	}
	used := ""
	names, err := filepath.Glob("testdata/pass/*_test.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		used += string(data)
	}
	for _, p := range places {
		for _, k := range p.Names() {
			if !regexp.MustCompile(`(?m)(^|[{,\s-])` + k + `:`).MatchString(used) {
				t.Errorf("no file in testdata/pass uses %s of %s", k, p.What)
			}
		}
	}
}

// testdata/reports has the reports of failing tests, one file for each format.
func TestReports(t *testing.T) {
	rules, err := RuleFiles("testdata/fail")
	if err != nil {
		t.Fatal(err)
	}
	r := runAll(t, Options{Rules: rules}, "testdata/fail")
	r.Elapsed = 1234 * time.Microsecond
	for i := range r.Files {
		r.Files[i].Elapsed = time.Millisecond
		for j := range r.Files[i].Cases {
			r.Files[i].Cases[j].Elapsed = time.Millisecond
		}
	}
	var text, color, asJSON, asXML bytes.Buffer
	for _, err := range []error{
		WriteText(&text, r, TextOptions{Coverage: true, Verbose: true}), WriteText(&color, r, TextOptions{Color: true}),
		WriteJSON(&asJSON, r), WriteJUnit(&asXML, r),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	golden.Compare(t, "testdata/reports/report.txt", text.String())
	golden.Compare(t, "testdata/reports/report.json", asJSON.String())
	golden.Compare(t, "testdata/reports/report.xml", asXML.String())

	if strings.Contains(text.String(), "\x1b") || !strings.Contains(color.String(), "\x1b[31m+ got       OVER_LIMIT\x1b[0m") {
		t.Errorf("colours: %q", color.String())
	}
	var back struct {
		Passed bool `json:"passed"`
		Report
	}
	if err := json.Unmarshal(asJSON.Bytes(), &back); err != nil || back.Passed || back.Failed != r.Failed {
		t.Errorf("JSON reads back as %+v, %v", back, err)
	}
	var suites junit.Suites
	if err := xml.Unmarshal(bytes.ReplaceAll(asXML.Bytes(), []byte(" time="), []byte(" t=")), &suites); err != nil || suites.Failures != r.Failed {
		t.Errorf("XML reads back as %+v, %v", suites, err)
	}
}

// Everything wrong with a test file is reported, with its position and the correction.
func TestBadFiles(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "r.yaml", "domain: d\ndescriptors:\n  - key: k\n    rate_limit: {unit: day, requests_per_unit: 5}\n")
	write(t, dir, "two.yaml", "domain: d\ndescriptors: [{key: k, rate_limit: {unit: day, requests_per_unit: 5}}]\n---\ndomain: e\ndescriptors: [{key: k, rate_limit: {unit: day, requests_per_unit: 5}}]\n")
	write(t, dir, "bad.yaml", "domain: d\ndescriptor: []\n")
	head := "rules: r.yaml\ncases:\n- name: n\n  steps:\n  - "
	for _, c := range []struct{ text, want string }{
		{"", "1:1: no tests in this file"},
		{"rules: r.yaml", "1:1: no `cases`"},
		{"cases: 7", "1:8: `cases` must be a list, not the number 7"},
		{"cases: []", "1:8: `cases` is empty"},
		{"cases: [", "not YAML"},
		{"cases:\n\t- name: a\n", "found character that cannot start any token: a tab cannot indent: use spaces"},
		{"a: b\n---\nc: d", "3:1: a second YAML document"},
		{"case: []", "1:1: unknown key `case`: did you mean `cases`?"},
		{"cases: [{name: n, step: []}]", "1:19: unknown key `step`: did you mean `steps`?"},
		{"cases: [{name: n}]", "1:9: a case without `steps`"},
		{"cases: [{steps: [{descriptors: k=v, expect: OK}]}]", "1:9: a case without a `name`"},
		{"cases: [{name: n, steps: []}]", "1:26: `steps` is empty"},
		{"cases: [{name: n, steps: [], shadow_mode: true}]", "1:30: `shadow_mode` does not belong in a case: it is a key of `settings`"},
		{"settings: {shadow_mod: true}\ncases: []", "1:12: unknown key `shadow_mod`: did you mean `shadow_mode`?"},
		{"settings: {shadow_mode: 1}\ncases: []", "1:25: `shadow_mode` must be true or false, not the number 1"},
		{"settings: {admission: all}\ncases: []", "1:23: unknown `admission` \"all\": write `independent` or `all_or_nothing`"},
		{"settings: {headers: [ietff]}\ncases: []", "1:22: unknown `headers` \"ietff\": did you mean `ietf`?"},
		{"start: yesterday\ncases: []", "1:8: `start` must be a time like"},
		{"start: 1969-12-31\ncases: []", "1:8: `start` must lie between 1970 and 2200"},
		{"cases: [&a {<<: *a}]", "1:17: the alias *a stands within its own anchor"},
		{"cases: &a\n- name: n\n  steps: [*a]", "3:11: a step must be a map of keys"},

		{"rules: r.yaml\noverrides: [{domain: d, rule: d.k, entries: k=v, factr: 2}]\ncases: []", "2:50: unknown key `factr`: did you mean `factor`?"},
		{"overrides: {}\ncases: []", "1:12: `overrides` must be a list"},
		{"rules: r.yaml\noverrides: [{domain: d, rule: d.k, entries: k=v, factor: 2}]\ncases: [{name: n, steps: [{descriptors: k=v, expect: OK}]}]", "2:13: rule: d.k allows no overrides: write `overridable: true`"},
		{"rules: r.yaml\ncases: [{name: n, overrides: [{domain: d, rule: d.k, entries: j=v, factor: 2}], steps: [{descriptors: k=v, expect: OK}]}]", "2:31: entries: \"j=v\" match no rule: `d.k` takes entries like `k=...`"},

		{head + "{descriptors: k=v}", "5:5: a step without `expect`"},
		{head + "{expect: OK}", "5:5: a step without `descriptors`"},
		{head + "{descriptors: k=v, expect: OVER}", "5:32: unknown `expect` \"OVER\": write `OK` or `OVER_LIMIT`"},
		{head + "{descriptors: k=v, expect: OVERLIMIT}", "did you mean `OVER_LIMIT`?"},
		{head + "{descriptors: k=v, expect: {}}", "5:32: `expect` is empty"},
		{head + "{descriptors: k=v, expect: {remain: 1}}", "5:33: unknown key `remain`: did you mean `remaining`?"},
		{head + "{descriptors: k=v, expect: {wait: 5}}", "5:39: `wait`: \"5\" is a duration without a unit: did you mean 5s?"},
		{head + "{descriptors: k=v, expect: {wait: soon}}", "5:39: `wait`: \"soon\" is not a duration"},
		{head + "{descriptors: k=v, expect: {wait: 5ns}}", "not a whole number of microseconds"},
		{head + "{descriptors: k=v, expect: {remaining: -1}}", "`remaining` must be a whole number from 0 to 9007199254740991"},
		{head + "{descriptors: k=v, repeat: 2, expect: {passed: 3}}", "`passed` is 3, and the step has 2 requests"},
		{head + "{descriptors: k=v, expect: {descriptors: [OK, OK]}}", "`descriptors` in `expect` has 2 entries, the request has 1 descriptors"},
		{head + "{descriptors: k=v, expect: {headers: {A: b, a: c}}}", "header \"a\" twice"},
		{head + "{descriptors: k=v, hits: 0, expect: OK}", "`hits: 0` of a request means 1: write `peek: true`"},
		{head + "{descriptors: k=v, hits: 2, peek: true, expect: OK}", "write only one of `hits`, `peek` and `refund`"},
		{head + "{descriptors: k=v, limit: {requests_per_unit: 1}, expect: OK}", "`limit` without a `unit`"},
		{head + "{descriptors: k=v, limit: {unit: days}, expect: OK}", "unknown `unit` \"days\": did you mean `day`?"},
		{head + "{descriptors: k, expect: OK}", "5:19: \"k\" has no value: write `k=value`"},
		{head + "{descriptors: k=v,l=w, expect: OK}", "5:23: unknown key `l=w`: within { } put a descriptor with commas in quotes"},
		{head + "{descriptors: {k: v}, expect: OK}", "a descriptor as a map needs `entries`"},
		{head + "{descriptors: [[k=v]], expect: OK}", "an entry of a descriptor must be a map like `key: value`"},
		{head + "{descriptors: 1.5, expect: OK}", "`descriptors` must be text, not the number 1.5"},
		{head + "{descriptors: k=v, every: 1s, expect: OK}", "`every` without `repeat`"},
		{head + "{descriptors: k=v, repeat: 0, expect: OK}", "`repeat` must be a whole number from 1 to 10000000"},
		{head + "{descriptors: k=v, repeat: 10000000, every: 1w, expect: OK}", "takes more than 100 years"},
		{head + "{descriptors: k=v, at: 290000d, expect: OK}", "longer than 292 years"},
		{head + "{descriptors: k=v, at: 100000d, expect: OK}", "starts more than 100 years after the start"},
		{head + "{descriptors: k=v, at: 1s, after: 1s, expect: OK}", "`after` and `at` in one step"},
		{head + "{descriptors: k=v, at: 1m, expect: OK}\n  - {descriptors: k=v, at: 30s, expect: OK}", "6:28: `at` is 30s after the start, and the step before ends 1m after it"},
		{head + "{descriptors: k=v, expect: OK}\n- {name: n, steps: [{descriptors: k=v, expect: OK}]}", "6:3: a case named \"n\" twice: the first is on line 3"},

		{"rules: no.yaml\ncases: [{name: n, steps: [{descriptors: k=v, expect: OK}]}]", "1:8: the rules cannot be read"},
		{"cases: [{name: n, steps: [{descriptors: k=v, expect: OK}]}]", "if the rules are elsewhere, write `rules: FILE`"},
		{"rules: bad.yaml\ncases: [{name: n, steps: [{descriptors: k=v, expect: OK}]}]", "bad.yaml:2:1: unknown key `descriptor`: did you mean `descriptors`?"},
		{"rules: two.yaml\ncases: [{name: n, steps: [{descriptors: k=v, expect: OK}]}]", "2:27: which domain? the rules are of `d` and `e`"},
		{"rules: r.yaml\ndomain: f\ncases: [{name: n, steps: [{descriptors: k=v, expect: OK}]}]", "no rules of a domain \"f\""},
	} {
		name := write(t, dir, "x_test.yaml", c.text)
		r := runAll(t, Options{}, name)
		var all []string
		for i := range r.Files[0].Errors {
			all = append(all, strings.TrimPrefix(r.Files[0].Errors[i].String(), dir+string(filepath.Separator)))
		}
		if r.Bad != 1 || r.Passed() || !strings.Contains(strings.Join(all, "\n"), c.want) {
			t.Errorf("%s\nerrors %q\nwant %q", c.text, all, c.want)
		}
	}
}

// A window of every unit starts at the default start.
func TestDefaultStart(t *testing.T) {
	for _, name := range descriptor.UnitNames {
		w := descriptor.Window{Unit: descriptor.ParseUnit(name)}
		if start, _ := w.Bounds(defaultStart.UnixMicro()); start != defaultStart.UnixMicro() {
			t.Errorf("%s is within a %s", defaultStart, name)
		}
	}
	if got := defaultStart.Format(time.DateOnly); got != "2011-12-22" { // docs/do/testing-rules.md has this date
		t.Errorf("%s", got)
	}
}

func TestSpans(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"0": 0, "0s": 0, "1d": day, "1w": 7 * day, "1d12h": 36 * time.Hour, "1.5d": 36 * time.Hour, "2.5s": 2500 * time.Millisecond,
		"1m30s": 90 * time.Second, "1us": time.Microsecond, "1h0.5s": time.Hour + 500*time.Millisecond,
	} {
		d, err := parseSpan(text)
		if err != nil || d != want {
			t.Errorf("%s is %s, %v", text, d, err)
		}
		if back, err := parseSpan(formatSpan(d)); err != nil || back != d {
			t.Errorf("%s is written %s, which is %s, %v", text, formatSpan(d), back, err)
		}
	}
	for _, text := range []string{"", "1", "-1s", "s", "1x", "1 s", "1s,", "1d2", "999999999999999999999d", "106752d", "1ns"} {
		if d, err := parseSpan(text); err == nil {
			t.Errorf("%q is %s", text, d)
		}
	}
	if got := formatSpan(25*time.Hour + 1500*time.Millisecond); got != "1d1h1.5s" {
		t.Error(got)
	}
}

func TestFind(t *testing.T) {
	dir := t.TempDir()
	a := write(t, dir, "a_test.yaml", "")
	b := write(t, dir, "sub/b_test.yml", "")
	rules := write(t, dir, "a.yaml", "")
	write(t, dir, ".hidden/c_test.yaml", "")
	write(t, dir, "empty/readme", "")
	empty := filepath.Join(dir, "empty")
	got, untested, err := Find([]string{dir, a, empty})
	if diff := cmp.Diff([]string{a, b}, got); diff != "" || err != nil || !slices.Equal(untested, []string{empty}) {
		t.Errorf("%v, without tests: %q\n%s", err, untested, diff)
	}
	for path, want := range map[string]string{
		rules:                      "is not a test file: did you mean " + a + "?",
		filepath.Join(dir, "gone"): "no such file",
	} {
		if _, _, err := Find([]string{path}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", path, err, want)
		}
	}
}

func TestMatchAndCoverage(t *testing.T) {
	r := runAll(t, Options{Match: regexp.MustCompile("messaging_test.yaml: a hundred")}, shipped)
	if r.Cases != 1 || !r.Passed() {
		t.Errorf("%d cases, %d failed", r.Cases, r.Failed)
	}
	missed := map[string]bool{}
	for _, m := range r.Coverage.Missed {
		missed[m.Rule] = true
	}
	if missed["messaging.to_number"] || !missed["messaging.message_type_marketing.to_number"] || r.Coverage.Reached != 1 {
		t.Errorf("%+v", r.Coverage)
	}
}

// A year of hourly requests takes milliseconds. The bound here is for a busy machine with the race detector.
func TestYearIsFast(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "r.yaml", "domain: d\ndescriptors: [{key: k, rate_limit: {unit: day, requests_per_unit: 12}}]")
	name := write(t, dir, "r_test.yaml", "cases: [{name: a year, steps: [{descriptors: k=v, repeat: 8760, every: 1h, expect: {passed: 4380}}]}]")
	r := runAll(t, Options{}, name)
	t.Logf("%d requests in %s", r.Requests, r.Elapsed)
	if !r.Passed() || r.Requests != 8760 || r.Elapsed > 5*time.Second {
		t.Errorf("%d of %d failed, %d requests in %s", r.Failed, r.Cases, r.Requests, r.Elapsed)
	}
}

// The documentation explains every key of the language, and its examples are valid.
func TestDocumented(t *testing.T) {
	racetest.Sequential(t)
	var data []byte
	for _, page := range []string{"do/testing-rules.md", "reference/test-keys.md"} {
		text, err := os.ReadFile("../../../docs/" + page)
		if err != nil {
			t.Fatal(err)
		}
		data = append(data, text...)
	}
	for _, p := range places {
		if p == override.Item() {
			continue // docs/do/overrides.md explains its keys
		}
		for _, k := range p.Names() {
			if !strings.Contains(string(data), "`"+k+"`") {
				t.Errorf("no page says what `%s` of %s is", k, p.What)
			}
		}
	}
	examples := regexp.MustCompile("(?s)(?:<!-- file: (\\S+) -->\n)?```yaml\n(.*?)```").FindAllSubmatch(data, -1)
	for _, e := range examples {
		if file := string(e[1]); file != "" && !strings.HasSuffix(file, "_test.yaml") {
			continue // rules
		}
		if _, errs := parse("messaging_test.yaml", e[2]); len(errs) > 0 {
			t.Errorf("%v in the example\n%s", errs[0], e[2])
		}
	}
	report, err := os.ReadFile("testdata/reports/report.txt")
	if err != nil {
		t.Fatal(err)
	}
	shown := regexp.MustCompile("(?s)```\n(  ---.*?)```").FindSubmatch(data)
	if len(examples) < 2 || shown == nil || !strings.Contains(string(report), string(shown[1])) {
		t.Errorf("the report in docs/do/testing-rules.md is not what testdata/reports/report.txt has")
	}
}

// No test file makes the process panic.
func FuzzParse(f *testing.F) {
	for _, pattern := range []string{"testdata/*/*_test.yaml", shipped + "/*/*_test.yaml"} {
		names, err := filepath.Glob(pattern)
		if err != nil {
			f.Fatal(err)
		}
		for _, name := range names {
			data, err := os.ReadFile(name)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(data)
		}
	}
	f.Add([]byte("cases: &a [{<<: *a, name: b}]"))
	f.Fuzz(func(t *testing.T, data []byte) {
		file, errs := parse("f_test.yaml", data)
		for _, e := range errs {
			if e.Line < 1 || e.Col < 1 || e.Msg == "" {
				t.Errorf("%v", e)
			}
		}
		if len(errs) > 0 {
			return
		}
		for _, c := range file.cases {
			last := time.Duration(0)
			for _, s := range c.steps {
				if s.offset < last || s.every < 0 || len(s.request.Descriptors) == 0 {
					t.Errorf("case %s: %+v", c.name, s)
				}
				last = s.offset
			}
		}
	})
}
