package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
)

// column is a kind of file.
type column int

const (
	code column = iota
	tests
	scripts
	lua
	javascript
	words
	columns
)

var titles = [columns]string{"Go", "tests", "scripts", "Lua", "JS", "words"}

// kits are packages that only tests use.
var kits = []string{
	"middleware/internal/gate/gatetest", "internal/testkit/backendtest", "internal/testkit/otlptest", "internal/lending/quota/envoymodel", "internal/testkit/racetest", "internal/testkit/rapidtest", "internal/testkit/redistest",
	"internal/testkit/servicetest", "internal/testkit/tlstest",
}

// service are the wings whose Go code is the service and its libraries.
var service = []string{"cmd", "internal", "limits", "ratelimit", "client", "middleware"}

// columnOf is the column that a file counts in; false: none.
func columnOf(name string, f file) (column, bool) {
	switch {
	case f.Generated || f.Minified || recorded(name) || strings.HasPrefix(name, "internal/platform/javascript/"): // the last are libraries
		return 0, false
	case f.Language == "Go" && (strings.HasSuffix(name, "_test.go") || inKit(name)):
		return tests, true
	case f.Language == "Go":
		return code, true
	case f.Language == "Shell" || f.Language == "BASH" || f.Language == "Makefile":
		return scripts, true
	case f.Language == "Lua":
		return lua, true
	case f.Language == "JavaScript" || f.Language == "TypeScript":
		return javascript, true
	}
	return 0, false
}

// recorded reports whether a file is data of tests.
func recorded(name string) bool { return strings.Contains(name, "/testdata/") }

func inKit(name string) bool {
	return slices.ContainsFunc(kits, func(kit string) bool { return strings.HasPrefix(name, kit+"/") })
}

// wing is a directory of the top level, or one below internal or workshop.
func wing(name string) string {
	parts := strings.Split(name, "/")
	switch {
	case len(parts) == 1:
		return "."
	case (parts[0] == "internal" || parts[0] == "workshop") && len(parts) > 2:
		return parts[0] + "/" + parts[1]
	}
	return parts[0]
}

// table has the sums.
type table struct {
	wings map[string]*[columns]int
	all   [columns]int
	total file // Go code of the service
}

func (t *table) add(name string, c column, f file) {
	if t.wings == nil {
		t.wings = make(map[string]*[columns]int)
	}
	w := wing(name)
	if t.wings[w] == nil {
		t.wings[w] = new([columns]int)
	}
	t.wings[w][c] += f.Code
	t.all[c] += f.Code
	if top, _, _ := strings.Cut(name, "/"); c == code && slices.Contains(service, top) {
		t.total.Code += f.Code
		t.total.Lines += f.Lines
	}
}

func (t *table) print(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	row := func(name string, cells []string) { fmt.Fprintf(w, "%s\t%s\t\n", strings.Join(cells, "\t"), name) }
	row("", titles[:])
	numbers := func(n *[columns]int) (cells []string) {
		for _, v := range n {
			cells = append(cells, fmt.Sprint(v))
		}
		return cells
	}
	for _, name := range slices.Sorted(maps.Keys(t.wings)) {
		row(name, numbers(t.wings[name]))
	}
	row("all", numbers(&t.all))
	if err := w.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(out, "%d hand-written lines of code, %d with comments and blank lines, in %s, without tests, test kits and generated files\n",
		t.total.Code, t.total.Lines, strings.Join(service, ", "))
	return err
}
