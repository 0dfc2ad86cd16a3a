package config

import (
	"os"
	"path/filepath"
	"testing"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func appendTo(t *testing.T, path, text string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	must(t, err)
	_, err = f.WriteString(text)
	must(t, err)
	must(t, f.Close())
}

// look loads the directory while a file may still be written.
func look(t *testing.T, f *Directory, quiet bool) (Result, bool) {
	t.Helper()
	found, err := f.Look(unseen{}, quiet)
	must(t, err)
	return found.Result, found.Growing
}

// Half of a file can be valid, with half of its limits. A changed file is read when two looks find it the same, or when
// events show that writing has stopped. Other files do not wait.
func TestAFileThatGrowsIsNotRead(t *testing.T) {
	dir := t.TempDir()
	a, b := filepath.Join(dir, "a.yaml"), filepath.Join(dir, "b.yaml")
	write(t, a, rules("a", 1)+"  #\n")
	write(t, b, rules("b", 1))
	f := NewDirectory(Options{Dir: dir, Logger: new(logged).logger()})
	load(t, f, "a.yaml=loaded", "b.yaml=loaded")

	const half = "domain: a\ndescriptors:\n  - {key: k, rate_limit: {unit: day, requests_per_unit: 2}}\n"
	write(t, a, half)
	if r, growing := look(t, f, false); !growing || r.Changed || requests(r.Tree, "a") != 1 {
		t.Fatalf("the first look at half a file: growing %t, %d", growing, requests(r.Tree, "a"))
	}
	appendTo(t, a, "  - {key: j, rate_limit: {unit: day, requests_per_unit: 3}}\n")
	if r, growing := look(t, f, true); !growing || requests(r.Tree, "a") != 1 {
		t.Fatal("it has grown between two looks, and was read")
	}
	appendTo(t, a, "  - {key: l, rate_limit: {unit: day, requests_per_unit: 4}}\n")
	if r, growing := look(t, f, false); !growing || requests(r.Tree, "a") != 1 {
		t.Fatal("it has grown again, and was read")
	}
	if r, growing := look(t, f, false); growing || requests(r.Tree, "a") != 2 || r.Tree.Domain("a").Rules != 3 {
		t.Fatalf("it has stopped growing: growing %t, %d", growing, requests(r.Tree, "a"))
	}

	// The same is true for a new file. When writing has stopped, the first look reads it.
	write(t, filepath.Join(dir, "c.yaml"), half)
	if r, growing := look(t, f, false); !growing || len(r.Files) != 2 {
		t.Fatalf("a new file: %v", states(r))
	}
	write(t, b, rules("b", 5))
	if r, growing := look(t, f, true); growing || requests(r.Tree, "b") != 5 || len(r.Files) != 3 {
		t.Fatalf("quiet: growing %t, %v", growing, states(r))
	}
}
