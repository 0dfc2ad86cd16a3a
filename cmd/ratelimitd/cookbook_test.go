package main

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/testkit/racetest"
)

const cookbook = "../../config/cookbook"

// stated matches the comment that each cookbook file must have: the source of its limits, the date on which that was
// read, and the limits that rules cannot express.
var stated = regexp.MustCompile(`Source: (none\.|.*\bread on 20\d\d-\d\d-\d\d\b).*Not expressed: \w`)

// The cookbook loads together with everything else below config. Every file has a test, a line in the index, its
// source, and a domain named after the file, so that no two domains clash.
func TestCookbookIndex(t *testing.T) {
	racetest.Sequential(t)
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
		comment, _, _ := strings.Cut(string(data), "\ndomain:")
		if !stated.MatchString(strings.Join(strings.Fields(strings.ReplaceAll(comment, "\n#", " ")), " ")) {
			t.Errorf("%s does not say its source, when that was read, and what it leaves out", file)
		}
		if _, err := os.Stat(strings.TrimSuffix(file, ".yaml") + "_test.yaml"); err != nil {
			t.Error(err)
		}
		if n := bytes.Count(index, []byte("](../../config/cookbook/"+name+".yaml)")); n != 1 {
			t.Errorf("docs/do/cookbook.md links %s %d times, want once", name, n)
		}
	}
	if n := bytes.Count(index, []byte("](../../config/cookbook/")); n != rules {
		t.Errorf("docs/do/cookbook.md links %d files of %d", n, rules)
	}
}
