package rulecheck

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// check shows no content of a file behind a link out of the directory, unless it is a valid rule file: in CI, the
// author of a pull request could otherwise print any file of the machine.
func TestNothingOfAnotherFileIsShown(t *testing.T) {
	for name, text := range map[string]string{"a.yaml": "SECRET=s3cret\x00OTHER=s3cret", "b.yaml": "root:s3cret:0:0\n", "README.md": "s3cret\n"} {
		dir, other := t.TempDir(), filepath.Join(t.TempDir(), "f")
		if err := os.WriteFile(other, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "good.yaml"), []byte("domain: d\ndescriptors: []\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		link := filepath.Join(dir, name)
		if err := os.Symlink(other, link); err != nil {
			t.Fatal(err)
		}
		for _, path := range []string{dir, link} {
			r, err := Run(Options{Paths: []string{path}})
			if err != nil {
				t.Fatal(err)
			}
			if shown := fmt.Sprintf("%+v", r.Findings); strings.Contains(shown, "s3cret") || !strings.HasSuffix(name, ".md") && r.Count(Error) == 0 {
				t.Errorf("%s: %s", path, shown)
			}
		}
	}
}
