package accesslog

import (
	"os"
	"strings"
	"testing"
)

// pages returns the pages about mappings: the guide and the reference.
func pages(t *testing.T) string {
	t.Helper()
	var all string
	for _, page := range []string{"do/simulating.md", "reference/log-keys.md"} {
		text, err := os.ReadFile("../../../docs/" + page)
		if err != nil {
			t.Fatal(err)
		}
		all += string(text)
	}
	return all
}

// The examples of the documentation are mappings.
func TestDocumentedExamples(t *testing.T) {
	text := pages(t)
	blocks := strings.Split(text, "\n```yaml\n")[1:]
	if len(blocks) < 3 {
		t.Fatalf("only %d examples", len(blocks))
	}
	for _, block := range blocks {
		example, _, _ := strings.Cut(block, "\n```\n")
		if _, errs := ParseMapping("example", []byte(example)); len(errs) > 0 {
			t.Errorf("%s\n%q", example, errs)
		}
	}
	shipped, err := os.ReadFile("../../../examples/simulate/envoy.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(text, string(shipped)) {
		t.Error("docs/do/simulating.md does not show examples/simulate/envoy.yaml as it is")
	}
}

// Every key and every name of the language is explained.
func TestEverythingIsDocumented(t *testing.T) {
	text := pages(t)
	for _, names := range [][]string{
		mappingForm.Names(), timeForm.Names(), entryForm.Names(), conditionForm.Names(), descriptorForm.Names(), hitsForm.Names(),
		formatNames, partNames, layoutNames,
	} {
		for _, name := range names {
			if !strings.Contains(text, "`"+name+"`") && !strings.Contains(text, "`"+name+":") {
				t.Errorf("no page explains `%s`", name)
			}
		}
	}
}
