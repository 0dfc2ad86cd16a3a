package main

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// testRules runs `ratelimitd test` and returns its exit code and its output.
func testRules(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = run(t.Context(), append([]string{"test"}, args...), &out, &errs)
	return code, out.String(), errs.String()
}

func writeRules(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

const (
	someRules   = "domain: d\ndescriptors:\n  - key: a\n    rate_limit: {unit: day, requests_per_unit: 1}\n  - key: b\n    rate_limit: {unit: day, requests_per_unit: 1}\n"
	passingTest = "cases:\n  - name: once a day\n    steps:\n      - {descriptors: a=1, expect: OK}\n"
	failingTest = "cases:\n  - name: once a day\n    steps:\n      - {descriptors: a=1, expect: OVER_LIMIT}\n"
)

func TestTestCommand(t *testing.T) {
	passing := writeRules(t, map[string]string{"r.yaml": someRules, "r_test.yaml": passingTest})
	failing := writeRules(t, map[string]string{"r.yaml": someRules, "r_test.yaml": failingTest})
	bad := writeRules(t, map[string]string{"r.yaml": someRules, "r_test.yaml": "case: []"})
	untested := writeRules(t, map[string]string{"r.yaml": someRules, "r_test.yaml": passingTest, "s.yaml": "domain: e\ndescriptor: []"})
	none := writeRules(t, map[string]string{"r.yaml": strings.Replace(someRules, "domain: d", "domain: f", 1)})
	for _, c := range []struct {
		args   []string
		code   int
		stdout string // part of it
		stderr string
	}{
		{[]string{"--coverage", passing, none}, 0, none + "/r.yaml:3:5: no test reaches f.a\n" + none + "/r.yaml:5:5: no test reaches f.b\ncoverage: 25.0% (1 of 4 rules)", ""},
		{[]string{"--min-coverage", "26", passing, none}, 1, "no test reaches f.a", "the tests reach 25.0% of the rules"},
		{[]string{passing, none}, 2, "", "find tests in " + none + ": there is no file named *_test.yaml"},
		{[]string{"--coverage", none}, 2, "", "find tests in " + none + ": there is no file named *_test.yaml"},
		{[]string{"--coverage", passing, t.TempDir()}, 2, "", "there is no file named *_test.yaml"},
		{[]string{passing}, 0, "1 case passed, 1 request in", ""},
		{[]string{filepath.Join(passing, "r_test.yaml")}, 0, "ok    " + passing, ""},
		{[]string{"-v", passing}, 0, "  ok  once a day\n", ""},
		{[]string{"--color", "always", passing}, 0, "\x1b[32mok\x1b[0m", ""},
		{[]string{"--coverage", passing}, 0, "r.yaml:5:5: no test reaches d.b\ncoverage: 50.0% (1 of 2 rules)", ""},
		{[]string{"--min-coverage", "50", passing}, 0, "coverage: 50.0%", ""},
		{[]string{"--min-coverage", "51", passing}, 1, "no test reaches d.b", "the tests reach 50.0% of the rules, fewer than 51%"},
		{[]string{"--run", "once", passing}, 0, "1 case passed", ""},
		{[]string{failing}, 1, "r_test.yaml:4:36: code\n      - expected  OVER_LIMIT\n      + got       OK\n", "1 of 1 case failed"},
		{[]string{passing, failing}, 1, "1 of 2 cases failed", ""},
		{[]string{bad}, 2, "r_test.yaml:1:1: unknown key `case`: did you mean `cases`?", "1 of 1 test file cannot be run"},
		{[]string{failing, bad}, 2, "1 of 1 case failed, 1 file cannot be run", ""},
		{[]string{"--coverage", untested}, 2, "s.yaml:2:1: unknown key `descriptor`", "rules without tests cannot be used"},
		{[]string{filepath.Join(passing, "r.yaml")}, 2, "", "r.yaml is not a test file: did you mean"},
		{[]string{t.TempDir()}, 2, "", "there is no file named *_test.yaml"},
		{[]string{filepath.Join(passing, "gone")}, 2, "", "no such file"},
		{[]string{"--run", "twice", passing}, 2, "", "--run twice matches no case"},
		{[]string{"--run", "(", passing}, 2, "", "missing closing )"},
		{[]string{"--output", "xml", passing}, 2, "", "--output must be one of"},
		{[]string{"--junit", filepath.Join(passing, "no", "x.xml"), passing}, 2, "", "write JUnit XML"},
	} {
		code, stdout, stderr := testRules(t, c.args...)
		if code != c.code || !strings.Contains(stdout, c.stdout) || !strings.Contains(stderr, c.stderr) || c.stderr == "" && c.code == 0 && stderr != "" {
			t.Errorf("ratelimitd test %q exits with %d, want %d\nstdout (want %q)\n%s\nstderr (want %q)\n%s", c.args, code, c.code, c.stdout, stdout, c.stderr, stderr)
		}
	}
}

func TestTestCommandFormats(t *testing.T) {
	dir := writeRules(t, map[string]string{"r.yaml": someRules, "r_test.yaml": failingTest})
	junit := filepath.Join(dir, "junit.xml")
	code, stdout, _ := testRules(t, "--output", "json", "--junit", junit, dir)
	var report struct {
		Passed          bool
		CoveragePercent float64 `json:"coverage_percent"`
		Files           []struct {
			Cases []struct {
				Failures []struct {
					Line, Col   int
					Differences []struct{ What, Expected, Got string }
				}
			}
		}
	}
	if err := json.Unmarshal([]byte(stdout), &report); err != nil {
		t.Fatalf("%v\n%s", err, stdout)
	}
	f := report.Files[0].Cases[0].Failures[0]
	if code != 1 || report.Passed || report.CoveragePercent != 50 || f.Line != 4 || f.Col != 36 || f.Differences[0].Expected != "OVER_LIMIT" {
		t.Errorf("exit code %d\n%s", code, stdout)
	}
	data, err := os.ReadFile(junit)
	if err != nil {
		t.Fatal(err)
	}
	var suites struct {
		Failures int `xml:"failures,attr"`
	}
	if err := xml.Unmarshal(data, &suites); err != nil || suites.Failures != 1 {
		t.Errorf("%v\n%s", err, data)
	}
}

// The shipped rule files pass when the command runs in the project's top directory, as its documentation describes,
// with every rule covered.
func TestTestCommandDefault(t *testing.T) {
	t.Chdir("../..")
	if code, stdout, stderr := testRules(t, "--min-coverage", "100"); code != 0 {
		t.Errorf("exit code %d\n%s%s", code, stdout, stderr)
	}
}
