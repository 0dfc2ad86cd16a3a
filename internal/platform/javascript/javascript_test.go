package javascript

import (
	"crypto/sha256"
	"encoding/hex"
	"io/fs"
	"os"
	"strings"
	"testing"
)

// Every file matches VERSIONS, so that libraries are not changed by hand.
func TestFilesAreAsPublished(t *testing.T) {
	list, err := os.ReadFile("VERSIONS")
	if err != nil {
		t.Fatal(err)
	}
	sums := make(map[string]string)
	for line := range strings.Lines(string(list)) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		row := strings.Fields(line)
		if len(row) != 5 {
			t.Fatalf("%q: want file, package, version, path, SHA-256", line)
		}
		sums[row[0]] = row[4]
	}
	err = fs.WalkDir(Files, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := Files.ReadFile(name)
		sum := sha256.Sum256(text)
		if got := hex.EncodeToString(sum[:]); got != sums[name] {
			t.Errorf("%s: SHA-256 %s, VERSIONS has %q: workshop/scripts/javascript", name, got, sums[name])
		}
		delete(sums, name)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for name := range sums {
		t.Errorf("%s is missing", name)
	}
}
