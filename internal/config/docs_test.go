package config

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/testkit/racetest"
)

// The examples in the documentation are valid rule files.
func TestDocumentedExamples(t *testing.T) {
	racetest.Sequential(t)
	for _, c := range []struct {
		page           string
		domains, rules int // smallest numbers to find
	}{
		{"do/rules.md", 5, 15}, {"do/plans.md", 2, 6}, {"do/weights.md", 4, 6}, {"do/headers.md", 2, 4}, {"do/block-or-exempt.md", 3, 12},
		{"reference/rule-file.md", 1, 11},
	} {
		t.Run(c.page, func(t *testing.T) { documentedExamples(t, c.page, c.domains, c.rules) })
	}
}

func documentedExamples(t *testing.T, page string, domains, rules int) {
	t.Helper()
	text, err := os.ReadFile("../../docs/" + page)
	must(t, err)
	var files []File
	for i, block := range strings.Split(string(text), "\n```yaml\n")[1:] {
		example, _, _ := strings.Cut(block, "\n```\n")
		if !strings.Contains(example, "domain: ") {
			continue // only a part of a rule file
		}
		files = append(files, File{Name: fmt.Sprintf("example %d", i+1), Data: []byte(example)})
	}
	if len(files) < domains {
		t.Fatalf("only %d examples", len(files))
	}
	tree, errs := Compile(files, CompileOptions{})
	for _, e := range errs {
		t.Error(e)
	}
	if tree.Domains() != len(files) || len(tree.Rules) < rules {
		t.Errorf("%d domains and %d rules of %d examples", tree.Domains(), len(tree.Rules), len(files))
	}
}

// The documentation explains every key of the rule language.
func TestEveryKeyIsDocumented(t *testing.T) {
	racetest.Sequential(t)
	text, err := os.ReadFile("../../docs/reference/rule-keys.md")
	must(t, err)
	for _, names := range [][]string{fileForm.Names(), descriptorForm.Names(), limitForm.Names()} {
		for _, name := range names {
			if !strings.Contains(string(text), "`"+name+"`") {
				t.Errorf("docs/reference/rule-keys.md does not explain `%s`", name)
			}
		}
	}
}

// The annotated rule file has every key, except those that the page lists as left out.
func TestSkeletonHasEveryKey(t *testing.T) {
	racetest.Sequential(t)
	text, err := os.ReadFile("../../docs/reference/rule-file.md")
	must(t, err)
	_, file, _ := strings.Cut(string(text), "\n```yaml\n")
	file, after, _ := strings.Cut(file, "\n```\n")
	for _, names := range [][]string{fileForm.Names(), descriptorForm.Names(), limitForm.Names()} {
		for _, name := range names {
			inFile := regexp.MustCompile(`(?m)(^[ -]*|[{ ])` + name + `: ?`).MatchString(file)
			if leftOut := strings.Contains(after, "`"+name+"`"); inFile == leftOut {
				t.Errorf("docs/reference/rule-file.md: the key %s is in the file: %t, and in the table of keys that the file leaves out: %t", name, inFile, leftOut)
			}
		}
	}
}
