package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/ruletest"
)

const cookbook = "../../config/domains/cookbook"

// Each file of the cookbook is held to what it says by its own tests: they notice nearly every change to its rules.
func TestCookbookNoticesMutants(t *testing.T) {
	tests, err := ruletest.Find([]string{cookbook})
	if err != nil {
		t.Fatal(err)
	}
	if len(tests) < 24 {
		t.Errorf("only %d test files", len(tests))
	}
	for _, test := range tests {
		t.Run(strings.TrimSuffix(filepath.Base(test), "_test.yaml"), func(t *testing.T) {
			r, err := ruletest.Mutate(t.Context(), []string{test})
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("%.1f%% of %d mutants noticed, %d more refused by the rule language", 100*r.Share(), r.Killed+len(r.Survived), r.Refused)
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

// The cookbook is loaded with everything else below config/domains: every file has a test, a domain that is named after
// it, so that no two clash, and a line in the index.
func TestCookbookIndex(t *testing.T) {
	index, err := os.ReadFile("../../docs/cookbook.md")
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(cookbook, "*.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	rules := 0
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".yaml")
		if strings.HasSuffix(name, "_test") {
			continue
		}
		rules++
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if want := "\ndomain: cookbook_" + name + "\n"; bytes.Count(data, []byte("\ndomain:")) != 1 || !bytes.Contains(data, []byte(want)) {
			t.Errorf("%s has not the one domain cookbook_%s", file, name)
		}
		if _, err := os.Stat(strings.TrimSuffix(file, ".yaml") + "_test.yaml"); err != nil {
			t.Error(err)
		}
		if n := bytes.Count(index, []byte("](../config/domains/cookbook/"+name+".yaml)")); n != 1 {
			t.Errorf("docs/cookbook.md links %s %d times, want once", name, n)
		}
	}
	if n := bytes.Count(index, []byte("](../config/domains/cookbook/")); n != rules {
		t.Errorf("docs/cookbook.md links %d files of %d", n, rules)
	}
}
