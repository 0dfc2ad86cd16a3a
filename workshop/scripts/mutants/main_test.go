package main

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// A package with one function that its test checks in part.
func writePackage(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"go.mod":      "module example\n\ngo 1.26\n",
		"big.go":      "package example\n\nfunc big(n int) bool { return n > 10 }\n",
		"big_test.go": "package example\n\nimport \"testing\"\n\nfunc TestBig(t *testing.T) {\n\tif big(9) || !big(11) {\n\t\tt.Error(\"wrong\")\n\t}\n}\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestMutants(t *testing.T) {
	t.Chdir(writePackage(t))
	all, err := mutants(".")
	if err != nil {
		t.Fatal(err)
	}
	got := make(map[string]string)
	for _, m := range all {
		got[m.text+" "+m.by] = try(".", m)
	}
	// 10 is not tested: >= 10 and > 10 differ there, and so do 10 and 11 at 11.
	want := map[string]string{"> >=": "not noticed", "> <=": "noticed", "10 11": "noticed", "10 5": "noticed"}
	for change, result := range want {
		if got[change] != result {
			t.Errorf("%s: %q, want %q", change, got[change], result)
		}
	}
	if len(got) != len(want) {
		t.Errorf("changes: %v", got)
	}
	if result := try(".", mutant{file: "big.go", from: 0, to: 7, by: "nonsense"}); result != "does not compile" {
		t.Errorf("a change that does not compile: %q", result)
	}
	if _, err := mutants(t.TempDir()); err == nil {
		t.Error("an empty folder has changes")
	}
	places := make([]string, 0, len(all))
	for _, m := range all {
		places = append(places, m.place)
	}
	if !slices.Contains(places, "big.go:3:33") {
		t.Errorf("places: %q", places)
	}
}
