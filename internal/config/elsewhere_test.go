package config

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// A link out of the directory is followed. If it leads to a file that does not contain rules, no error shows its
// content.
func TestNothingOfAnotherFileIsShown(t *testing.T) {
	for name, text := range map[string]string{
		"not YAML": "SECRET=s3cret\x00OTHER=s3cret", "a key": "s3cret: 1\n", "a line": "root:s3cret:0:0\n", "a list": "- s3cret\n",
		"a value": "domain: d\ndescriptors:\n  - key: k\n    rate_limit: {unit: s3cret, requests_per_unit: 1}\n", "rules": "domain: d\ndescriptors: []\n",
	} {
		dir, other := t.TempDir(), t.TempDir()
		if err := os.WriteFile(filepath.Join(other, "f"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(filepath.Join(other, "f"), filepath.Join(dir, "a.yaml")); err != nil {
			t.Fatal(err)
		}
		var log strings.Builder
		r, err := NewDirectory(Options{Dir: dir, Logger: slog.New(slog.NewTextHandler(&log, nil))}).Load()
		if err != nil {
			t.Fatal(err)
		}
		loaded := r.Files[0].State == descriptor.FileLoaded
		if loaded != (name == "rules") || strings.Contains(log.String()+strings.Join(r.Files[0].Errors, ""), "s3cret") {
			t.Errorf("%s: %+v\n%s", name, r.Files, log.String())
		}
	}
}
