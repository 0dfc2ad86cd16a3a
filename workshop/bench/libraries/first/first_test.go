package first

import (
	"context"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
)

// Each program allows ten requests of one customer, denies some request after them, and allows another customer.
func TestFirstLines(t *testing.T) {
	type check = func(context.Context, string) (bool, error)
	address := redistest.Start(t).Addr
	for name, open := range map[string]func() (check, error){
		"ratelimitd": ratelimitdMemory, "throttled": throttledMemory, "ulule/limiter": ululeMemory, "sethvargo/go-limiter": sethvargoMemory, "x/time/rate": xTime,
		"redis_rate": func() (check, error) { return redisRate(address) },
	} {
		allow, err := open()
		if err != nil {
			t.Fatal(name, err)
		}
		passes := func(customer string) bool {
			ok, err := allow(t.Context(), customer)
			if err != nil {
				t.Fatal(name, err)
			}
			return ok
		}
		passed := 0
		for passed < 100_000 && passes("ann") {
			passed++
		}
		if passed < 10 || passed == 100_000 || !passes("bob") {
			t.Errorf("%s: %d requests pass", name, passed)
		}
	}
}

// The page has the lines of each program, and the names of the library that it uses.
func TestPageHasTheLines(t *testing.T) {
	page, err := os.ReadFile("../../../../docs/contributing/libraries.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range []struct{ file, library string }{
		{"ratelimitd.go", "ratelimitd"}, {"redis_rate.go", "redis_rate"}, {"throttled.go", "throttled"}, {"ulule.go", "ulule/limiter"}, {"sethvargo.go", "sethvargo/go-limiter"}, {"xtime.go", "x/time/rate"},
	} {
		lines, names := read(t, p.file)
		row := fmt.Sprintf("| %s | %d | %d: %s |", p.library, lines, len(names), strings.Join(names, ", "))
		if !strings.Contains(string(page), row) {
			t.Errorf("the page lacks %s", row)
		}
	}
}

// read returns how many lines the function of a file has, and the names that it uses of the library: functions,
// methods, types and fields.
func read(t *testing.T, file string) (lines int, names []string) {
	t.Helper()
	set := token.NewFileSet()
	f, err := parser.ParseFile(set, file, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	add := func(name string) {
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl:
			lines += set.Position(n.End()).Line - set.Position(n.Pos()).Line + 1
		case *ast.SelectorExpr:
			if x, ok := n.X.(*ast.Ident); !ok || !slices.Contains([]string{"context", "sync", "time", "mu"}, x.Name) {
				add(n.Sel.Name)
			}
		case *ast.KeyValueExpr:
			if key, ok := n.Key.(*ast.Ident); ok {
				add(key.Name)
			}
		}
		return true
	})
	return lines, names
}
