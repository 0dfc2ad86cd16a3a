// Mutants changes one thing after another in a package, such as an operator, a condition or a constant, and lists the changes that the
// tests of the package do not notice.
//
//	go run ./workshop/scripts/mutants ./internal/backend/region
//
// A change that does not compile is not counted. A test that does not end counts as noticed.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

var (
	workers = flag.Int("workers", 2, "number of changes that are tried at the same time")
	first   = flag.String("first", "", "tests to run first, as in go test -run: quick ones that notice most changes")
	only    = flag.String("only", "", "try only changes whose place contains this, such as counter.go:12:")
	limit   = flag.Duration("limit", 2*time.Minute, "longest time of all tests")
)

// mutant is one change of one file.
type mutant struct {
	file     string
	from, to int // bytes that are replaced
	by       string
	place    string
	text     string // of what is replaced
}

func main() {
	flag.Parse()
	if err := run(flag.Arg(0)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(dir string) error {
	all, err := mutants(dir)
	if err != nil {
		return err
	}
	var mu sync.Mutex
	counts := make(map[string]int)
	work := make(chan mutant)
	var group sync.WaitGroup
	for range *workers {
		group.Go(func() {
			for m := range work {
				result := try(dir, m)
				mu.Lock()
				counts[result]++
				if result == "not noticed" || strings.HasPrefix(result, "error") {
					fmt.Printf("%s: %s: %q becomes %q\n", result, m.place, m.text, m.by)
				}
				mu.Unlock()
			}
		})
	}
	all = slices.DeleteFunc(all, func(m mutant) bool { return !strings.Contains(m.place, *only) })
	for i, m := range all {
		if i%100 == 0 {
			fmt.Fprintf(os.Stderr, "%d of %d\n", i, len(all))
		}
		work <- m
	}
	close(work)
	group.Wait()
	noticed := counts["noticed"]
	fmt.Printf("%d of %d changes are noticed; %d do not compile\n", noticed, noticed+counts["not noticed"], counts["does not compile"])
	return nil
}

// try builds the tests with a change, and runs them.
func try(dir string, m mutant) string {
	temp, err := os.MkdirTemp("", "mutant")
	if err != nil {
		return "error: " + err.Error()
	}
	defer func() { _ = os.RemoveAll(temp) }()
	source, err := os.ReadFile(m.file)
	if err != nil {
		return "error: " + err.Error()
	}
	changed := filepath.Join(temp, "changed.go")
	if err := os.WriteFile(changed, slices.Concat(source[:m.from], []byte(m.by), source[m.to:]), 0o600); err != nil {
		return "error: " + err.Error()
	}
	path, err := filepath.Abs(m.file)
	if err != nil {
		return "error: " + err.Error()
	}
	replaced := map[string]string{path: changed}
	if *first != "" { // without the tests of package x_test, which are not among the first: most changes need no more
		quick := map[string]string{path: changed}
		for _, name := range external(dir) {
			quick[name] = ""
		}
		if result := test(dir, temp, quick, "-test.run", *first); result != "not noticed" {
			return result
		}
		return test(dir, temp, replaced, "-test.skip", *first)
	}
	return test(dir, temp, replaced)
}

// external returns the files with tests of a package of their own.
func external(dir string) (names []string) {
	files, _ := filepath.Glob(filepath.Join(dir, "*_test.go"))
	for _, name := range files {
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.PackageClauseOnly)
		if path, failed := filepath.Abs(name); err == nil && failed == nil && strings.HasSuffix(f.Name.Name, "_test") {
			names = append(names, path)
		}
	}
	return names
}

// test builds the tests of a package with some files replaced, and runs them.
func test(dir, temp string, replaced map[string]string, args ...string) string {
	overlay, err := json.Marshal(map[string]map[string]string{"Replace": replaced})
	if err != nil {
		return "error: " + err.Error()
	}
	list, binary := filepath.Join(temp, "overlay.json"), filepath.Join(temp, "test")
	if err := os.WriteFile(list, overlay, 0o600); err != nil {
		return "error: " + err.Error()
	}
	build := exec.Command("go", "test", "-c", "-vet=off", "-ldflags=-s -w", "-overlay", list, "-o", binary, dir)
	if out, err := build.CombinedOutput(); err != nil {
		if bytes.HasPrefix(out, []byte("# ")) { // the name of the package that does not compile
			return "does not compile"
		}
		return "error: " + string(out)
	}
	ctx, cancel := context.WithTimeout(context.Background(), *limit)
	defer cancel()
	c := exec.CommandContext(ctx, binary, append(args, "-test.failfast", "-test.short")...)
	c.Dir = dir
	err = c.Run()
	var failed *exec.ExitError
	switch {
	case ctx.Err() != nil || errors.As(err, &failed):
		return "noticed"
	case err != nil:
		return "error: " + err.Error()
	}
	return "not noticed"
}

// mutants lists all changes of a package.
func mutants(dir string) ([]mutant, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		return nil, err
	}
	var all []mutant
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		source, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		fset := token.NewFileSet()
		file, err := parser.ParseFile(fset, name, source, 0)
		if err != nil {
			return nil, err
		}
		add := func(from, to token.Pos, by string) {
			f, t := fset.Position(from).Offset, fset.Position(to).Offset
			p := fset.Position(from)
			all = append(all, mutant{name, f, t, by, fmt.Sprintf("%s:%d:%d", filepath.Base(name), p.Line, p.Column), string(source[f:t])})
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if _, ok := n.(*ast.ImportSpec); ok {
				return false
			}
			change(n, add)
			return true
		})
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("%s has no Go files to change", dir)
	}
	return all, nil
}

// instead lists what an operator becomes.
var instead = map[token.Token][]token.Token{
	token.ADD: {token.SUB}, token.SUB: {token.ADD}, token.MUL: {token.QUO}, token.QUO: {token.MUL}, token.REM: {token.MUL},
	token.LSS: {token.LEQ, token.GEQ}, token.LEQ: {token.LSS, token.GTR}, token.GTR: {token.GEQ, token.LEQ}, token.GEQ: {token.GTR, token.LSS},
	token.EQL: {token.NEQ}, token.NEQ: {token.EQL}, token.LAND: {token.LOR}, token.LOR: {token.LAND},
	token.ADD_ASSIGN: {token.SUB_ASSIGN, token.ASSIGN}, token.SUB_ASSIGN: {token.ADD_ASSIGN, token.ASSIGN},
}

// change adds the changes of one node.
func change(n ast.Node, add func(from, to token.Pos, by string)) {
	switch n := n.(type) {
	case *ast.BinaryExpr:
		for _, op := range instead[n.Op] {
			add(n.OpPos, n.OpPos+token.Pos(len(n.Op.String())), op.String())
		}
	case *ast.UnaryExpr:
		if n.Op == token.NOT || n.Op == token.SUB {
			add(n.OpPos, n.OpPos+1, " ")
		}
	case *ast.AssignStmt:
		for _, op := range instead[n.Tok] {
			add(n.TokPos, n.TokPos+token.Pos(len(n.Tok.String())), op.String())
		}
		if n.Tok != token.DEFINE {
			add(n.Pos(), n.End(), "")
		}
	case *ast.IncDecStmt:
		add(n.Pos(), n.End(), "")
	case *ast.ExprStmt:
		add(n.Pos(), n.End(), "")
	case *ast.IfStmt:
		add(n.Cond.Pos(), n.Cond.End(), "true")
		add(n.Cond.Pos(), n.Cond.End(), "false")
	case *ast.Ident:
		switch n.Name {
		case "true":
			add(n.Pos(), n.End(), "false")
		case "false":
			add(n.Pos(), n.End(), "true")
		case "min":
			add(n.Pos(), n.End(), "max")
		case "max":
			add(n.Pos(), n.End(), "min")
		}
	case *ast.BasicLit:
		if v, err := strconv.ParseInt(strings.ReplaceAll(n.Value, "_", ""), 0, 64); n.Kind == token.INT && err == nil {
			add(n.Pos(), n.End(), strconv.FormatInt(v+1, 10))
			if v > 4 {
				add(n.Pos(), n.End(), strconv.FormatInt(v/2, 10))
			}
		}
	case *ast.BranchStmt:
		if n.Tok == token.CONTINUE {
			add(n.Pos(), n.End(), "break")
		}
	}
}
