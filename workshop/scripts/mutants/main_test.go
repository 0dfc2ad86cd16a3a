package main

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// writePackage writes a package with functions that its test checks in part.
func writePackage(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"go.mod": "module example\n\ngo 1.26\n",
		"big.go": `package example

const most = 20

var calls int

func big(n int) bool {
	calls++
	if n < 0 {
		n = -n
	}
	switch {
	case n > most:
		return true
	}
	return n > 10
}

func first(c chan int) int {
	select {
	case n := <-c:
		return n
	case <-make(chan int):
		return 0
	}
}
`,
		"big_test.go": `package example

import "testing"

func TestBig(t *testing.T) {
	for n, want := range map[int]bool{9: false, 11: true, 21: true, -11: true, -9: false} {
		if big(n) != want {
			t.Error("wrong")
		}
	}
}

func TestFirst(t *testing.T) {
	c := make(chan int, 1)
	c <- 5
	if first(c) != 5 {
		t.Error("wrong")
	}
}
`,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestMutants(t *testing.T) {
	dir := writePackage(t)
	temp := t.TempDir()
	c, err := changes(dir)
	if err != nil {
		t.Fatal(err)
	}
	tested := []string{dir}
	if err := build(tested, temp, c.files); err != nil {
		t.Fatal(err)
	}
	if !pass(tested, temp, 0) {
		t.Fatal("the tests fail without a change")
	}
	got := make(map[string]bool)
	for i := range c.mutants {
		m := &c.mutants[i]
		got[m.place+" "+m.text+" "+m.by] = try(tested, temp, m)
	}
	want := map[string]bool{
		"big.go:3:14 20 21": false, "big.go:3:14 20 10": false, // every number above 20 is above 10 too
		"big.go:8:2 calls++ ": false,
		"big.go:9:7 < <=":     false, "big.go:9:7 < >=": true, "big.go:9:9 0 0+1": false,
		"big.go:10:3 n = -n ": true, "big.go:10:7 - ": true,
		"big.go:13:9 > >=": false, "big.go:13:9 > <=": true, "big.go:13:11 most most+1": false,
		"big.go:14:10 true !true": true,
		"big.go:24:10 0 0+1":      false,
		"big.go:16:11 > >=":       false, "big.go:16:11 > <=": true, "big.go:16:13 10 10+1": true,
	}
	if !maps.Equal(got, want) {
		for _, k := range slices.Sorted(maps.Keys(got)) {
			if w, ok := want[k]; !ok || w != got[k] {
				t.Errorf("%q: %v", k, got[k])
			}
		}
		t.Errorf("%d changes, want %d", len(got), len(want))
	}
	if _, err := changes(t.TempDir()); err == nil {
		t.Error("an empty directory has changes")
	}
}
