package files_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/platform/files"
)

// A read without an answer ends, and is not repeated before the answer. Many such files together cost little more than
// one.
func TestAFileDoesNotAnswer(t *testing.T) {
	dir := t.TempDir()
	name := func(i int) string {
		at := filepath.Join(dir, string(rune('a'+i)))
		if err := os.WriteFile(at, []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
		return at
	}
	synctest.Test(t, func(t *testing.T) {
		answer := make(chan struct{})
		hangs := func(*os.File) (int, error) { <-answer; return 1, nil }
		start := time.Now()
		for i := range 20 {
			at := name(i)
			if _, err := files.Use(at, hangs); !errors.Is(err, files.ErrNoAnswer) {
				t.Fatalf("file %d: %v", i, err)
			}
			if _, err := files.Read(at, 10); !errors.Is(err, files.ErrNoAnswer) {
				t.Errorf("file %d, again: %v", i, err)
			}
		}
		if took := time.Since(start); took > 15*time.Second {
			t.Errorf("20 files took %s", took)
		}
		close(answer)
		synctest.Wait()
		if data, err := files.Read(name(0), 10); err != nil || string(data) != "x" {
			t.Errorf("after it has answered: %q, %v", data, err)
		}
	})
}

func TestReadIsBounded(t *testing.T) {
	at := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(at, []byte("12345"), 0o600); err != nil {
		t.Fatal(err)
	}
	if data, err := files.Read(at, 5); err != nil || string(data) != "12345" {
		t.Errorf("%q, %v", data, err)
	}
	if _, err := files.Read(at, 4); err == nil {
		t.Error("a larger file is read")
	}
	if _, err := files.Read("/dev/zero", 1<<20); err == nil {
		t.Error("a device without an end is read")
	}
	if _, err := files.Read(at+"x", 4); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a missing file: %v", err)
	}
}

func TestLeaves(t *testing.T) {
	dir := t.TempDir()
	rules := filepath.Join(dir, "rules")
	for _, d := range []string{"rules/..2024", "rules/sub", "rules2"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range []string{"rules/own.yaml", "rules/..2024/map.yaml", "rules2/other.yaml"} {
		if err := os.WriteFile(filepath.Join(dir, f), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for name, to := range map[string]string{
		"..data": "..2024", "map.yaml": "..data/map.yaml", "sub/up.yaml": "../own.yaml", "out.yaml": "../rules2/other.yaml", "abs.yaml": filepath.Join(dir, "rules2/other.yaml"),
		"twice.yaml": "out.yaml", "around.yaml": "../rules/own.yaml", "outdir": "../rules2",
	} {
		if err := os.Symlink(to, filepath.Join(rules, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("rules", filepath.Join(dir, "current")); err != nil {
		t.Fatal(err)
	}
	for name, leaves := range map[string]bool{
		"own.yaml": false, "map.yaml": false, "sub/up.yaml": false, "around.yaml": false, "out.yaml": true, "abs.yaml": true, "twice.yaml": true, "outdir/other.yaml": true,
	} {
		for _, root := range []string{rules, filepath.Join(dir, "current")} {
			if got := files.Leaves(root, filepath.Join(root, name)); got != leaves {
				t.Errorf("%s of %s: %v", name, root, got)
			}
		}
	}
}
