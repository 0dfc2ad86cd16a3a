package accesslog

import (
	"os"
	"strings"
	"testing"
)

// The examples of the documentation are mappings.
func TestDocumentedExamples(t *testing.T) {
	text, err := os.ReadFile("../../../docs/do/simulating.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := strings.Split(string(text), "\n```yaml\n")[1:]
	if len(blocks) < 4 {
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
	if !strings.Contains(string(text), string(shipped)) {
		t.Error("docs/do/simulating.md does not show examples/simulate/envoy.yaml as it is")
	}
}

// Every key and every name of the language is explained.
func TestEverythingIsDocumented(t *testing.T) {
	text, err := os.ReadFile("../../../docs/do/simulating.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, names := range [][]string{
		mappingForm.Names(), timeForm.Names(), entryForm.Names(), conditionForm.Names(), descriptorForm.Names(), hitsForm.Names(),
		formatNames, partNames, layoutNames,
	} {
		for _, name := range names {
			if !strings.Contains(string(text), "`"+name+"`") && !strings.Contains(string(text), "`"+name+":") {
				t.Errorf("docs/do/simulating.md does not explain `%s`", name)
			}
		}
	}
}
