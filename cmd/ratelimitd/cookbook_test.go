package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const cookbook = "../../config/domains/cookbook"

// The cookbook loads together with everything else below config/domains. Every file has a test, a line in the index, and a
// domain named after the file, so that no two domains clash.
func TestCookbookIndex(t *testing.T) {
	index, err := os.ReadFile("../../docs/do/cookbook.md")
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
		if n := bytes.Count(index, []byte("](../../config/domains/cookbook/"+name+".yaml)")); n != 1 {
			t.Errorf("docs/do/cookbook.md links %s %d times, want once", name, n)
		}
	}
	if n := bytes.Count(index, []byte("](../../config/domains/cookbook/")); n != rules {
		t.Errorf("docs/do/cookbook.md links %d files of %d", n, rules)
	}
}
