package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The copied limiter was not edited: it equals the limiter in its commit.
func TestCopyIsOfItsCommit(t *testing.T) {
	top := filepath.Join("..", "..", "..")
	folder := filepath.Join(top, filepath.FromSlash(before))
	commit, err := os.ReadFile(filepath.Join(folder, "COMMIT"))
	if err != nil {
		t.Fatal(err)
	}
	revision := strings.TrimSpace(string(commit))
	if _, err := git(top, "cat-file", "-e", revision+"^{commit}"); err != nil {
		t.Skipf("the commit %s is not in this clone", revision)
	}
	files, err := copyOf(top, revision)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range files {
		if strings.HasPrefix(name, "adapter/") {
			continue // today's, where the commit has none
		}
		got, err := os.ReadFile(filepath.Join(folder, filepath.FromSlash(name)))
		if err != nil || string(got) != want {
			t.Errorf("%s/%s is not what the commit has (%v): run go run ./differential/refresh %s", before, name, err, revision)
		}
	}
}
