package ruletest

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/config"
	"github.com/ratelimitd/ratelimitd/internal/testkit/racetest"
)

const shipped = "../../../config"

// The tests of the shipped rule files notice likely mistakes in changes of the rules. TestCookbookNoticesMutants has
// the cookbook.
func TestShippedTestsNoticeMutants(t *testing.T) {
	racetest.Sequential(t)
	files, _, err := Find([]string{shipped})
	if err != nil {
		t.Fatal(err)
	}
	files = slices.DeleteFunc(files, func(name string) bool { return filepath.Base(filepath.Dir(name)) == "cookbook" })
	r, err := Mutate(t.Context(), files)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%.1f%% of %d mutants noticed, %d more rejected by the rule language", 100*r.Share(), r.Killed+len(r.Survived), r.Rejected)
	for i := range r.Survived {
		t.Logf("survived: %s", &r.Survived[i])
	}
	if r.Killed < 50 {
		t.Errorf("only %d mutants: too few to say anything", r.Killed)
	}
	if r.Share() < 0.95 {
		t.Errorf("the tests notice %.1f%% of the mutants, want 95%%", 100*r.Share())
	}
}

func TestMutants(t *testing.T) {
	racetest.Sequential(t)
	const rules = `domain: d
descriptors:
  - key: k
    value: "10.*"
    share_threshold: true
    metadata: {unit: day}
    rate_limit: {unit: minute, requests_per_unit: 5, algorithm: token_bucket, burst: 1, name: n}
  - key: c
    value_cidr: 10.0.0.0/8
    rate_limit: {unit: year, requests_per_unit: 0, nodelay: all}
    cost: {c: {a: 3, "*": 1}}
`
	mutants, err := Mutants("r.yaml", []byte(rules))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, m := range mutants {
		got = append(got, m.What)
		if string(m.Data) == rules {
			t.Errorf("%s changes nothing", m.What)
		}
	}
	want := []string{
		"key: k -> kx", "value: 10.* -> 10.*x", "share_threshold: true -> false",
		"unit: minute -> second", "unit: minute -> hour", "requests_per_unit: 5 -> 6", "requests_per_unit: 5 -> 4",
		"algorithm: token_bucket -> fixed_window", "algorithm: token_bucket -> sliding_window",
		"algorithm: token_bucket -> sliding_log", "algorithm: token_bucket -> leaky_bucket", "algorithm: token_bucket -> concurrency",
		"burst: 1 -> 2", "burst: 1 -> 0", "name: n -> nx",
		"key: c -> cx", "value_cidr: 10.0.0.0/8 -> 10.0.0.0/7", "value_cidr: 10.0.0.0/8 -> 10.0.0.0/9",
		"algorithm: fixed_window -> sliding_window", "algorithm: fixed_window -> sliding_log",
		"algorithm: fixed_window -> token_bucket", "algorithm: fixed_window -> leaky_bucket", "algorithm: fixed_window -> concurrency",
		"unit: year -> month", "requests_per_unit: 0 -> 1", "nodelay: all -> 0", "a: 3 -> 4", "a: 3 -> 2", "*: 1 -> 2",
	}
	if !slices.Equal(got, want) {
		t.Errorf("mutants\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	// The value 7 is a text, so its mutant is another text.
	mutants, err = Mutants("r.yaml", []byte("domain: d\ndescriptors: [{key: k, value: 7, rate_limit: {unit: day, requests_per_unit: 1}}]"))
	if err != nil {
		t.Fatal(err)
	}
	tree, errs := config.Compile([]config.File{{Name: mutants[1].File, Data: mutants[1].Data}}, config.CompileOptions{})
	if len(errs) > 0 || tree.Rules[0].Path != "d.k_7x" {
		t.Errorf("%s: %v, %+v", mutants[1].What, errs, tree.Rules)
	}
}

// A weak test lets mutants survive. A test that already fails cannot measure anything.
func TestMutateSurvivors(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "r.yaml", "domain: d\ndescriptors:\n  - key: k\n    rate_limit: {unit: day, requests_per_unit: 5}\n")
	weak := write(t, dir, "r_test.yaml", "cases: [{name: n, steps: [{descriptors: k=v, repeat: 6, expect: {passed: 5}}]}]")
	r, err := Mutate(t.Context(), []string{weak})
	if err != nil {
		t.Fatal(err)
	}
	var survived []string
	for _, m := range r.Survived {
		survived = append(survived, m.What)
	}
	for _, want := range []string{"unit: day -> hour", "unit: day -> week"} {
		if !slices.Contains(survived, want) {
			t.Errorf("%s did not survive; %q did", want, survived)
		}
	}
	if r.Killed < 3 || r.Share() >= 0.95 { // key, plus one, minus one
		t.Errorf("%d killed, %q survived", r.Killed, survived)
	}
	bad := write(t, dir, "b_test.yaml", "rules: r.yaml\ncases: [{name: n, steps: [{descriptors: k=v, expect: OVER_LIMIT}]}]")
	if _, err := Mutate(t.Context(), []string{bad}); err == nil || !strings.Contains(err.Error(), "do not pass before") {
		t.Errorf("%v", err)
	}
}

// The tests of each cookbook file notice nearly every change to its rules.
func TestCookbookNoticesMutants(t *testing.T) {
	racetest.Sequential(t)
	tests, _, err := Find([]string{shipped + "/cookbook"})
	if err != nil {
		t.Fatal(err)
	}
	if len(tests) < 45 {
		t.Errorf("only %d test files", len(tests))
	}
	for _, test := range tests {
		t.Run(strings.TrimSuffix(filepath.Base(test), "_test.yaml"), func(t *testing.T) {
			r, err := Mutate(t.Context(), []string{test})
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("%.1f%% of %d mutants noticed, %d more rejected by the rule language", 100*r.Share(), r.Killed+len(r.Survived), r.Rejected)
			for i := range r.Survived {
				t.Logf("survived: %s", &r.Survived[i])
			}
			if r.Killed == 0 {
				t.Error("no mutants: nothing is shown")
			}
			if r.Share() < 0.95 {
				t.Errorf("the tests notice %.1f%% of the mutants, want 95%%", 100*r.Share())
			}
		})
	}
}
