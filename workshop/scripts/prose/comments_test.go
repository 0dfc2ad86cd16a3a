package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// A comment names the thing: neither with "what" nor by continuing the name before it.
func TestComments(t *testing.T) {
	const code = `package p

// A returns what is left.
// What happens after that? It returns what it has.
func A() {}

// B asks what happens, and what kind of answer comes.
type B struct {
	number int64 // of the connection
	size   int   // in bytes
	wait   int64 // time until the next attempt, in µs
	since  int64 /* of the start */
}

// of the group: a line of its own may start like this
var text = "// of no comment, what is"
`
	name := filepath.Join(t.TempDir(), "p.go")
	if err := os.WriteFile(name, []byte(code), 0o600); err != nil {
		t.Fatal(err)
	}
	found, err := inComments(name)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, f := range found {
		got = append(got, strings.TrimPrefix(f, name+":"))
	}
	want := []string{
		`3:1:Comments: name the thing instead of "what"`,
		`4:1:Comments: name the thing instead of "what"`,
		`9:15:Comments: write a whole noun, not a continuation of the name: "of the connection"`,
	}
	if !slices.Equal(got, want) {
		t.Errorf("found\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}
