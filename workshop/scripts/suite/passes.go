package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// pass is one call of go test in a module.
type pass struct {
	args     []string // before the packages
	packages []string
	race     bool
}

// passes splits the tests of a module, so that each runs where it can find something: with the race detector, and without it where
// the detector has nothing to find or changes what is measured. Without a C compiler all run without it.
func passes(module string) ([]pass, error) {
	if !raceDetectorWorks() {
		return []pass{{packages: []string{"./..."}}}, nil
	}
	all, err := folders(module)
	if err != nil {
		return nil, err
	}
	race, whole, some := pass{race: true, args: []string{"-race"}}, pass{}, pass{}
	var names []string
	for _, folder := range all {
		if !isConcurrent(filepath.Join(module, folder)) {
			whole.packages = append(whole.packages, "./"+folder)
			continue
		}
		race.packages = append(race.packages, "./"+folder)
		tests, err := plainTests(filepath.Join(module, folder))
		if err != nil {
			return nil, err
		}
		if len(tests) > 0 {
			some.packages = append(some.packages, "./"+folder)
			names = append(names, tests...)
		}
	}
	slices.Sort(names)
	some.args = []string{"-run", "^(" + strings.Join(slices.Compact(names), "|") + ")$"}
	return slices.DeleteFunc([]pass{whole, some, race}, func(p pass) bool { return len(p.packages) == 0 }), nil
}

// raceDetectorWorks reports whether this machine can build with the race detector, which needs a C compiler.
func raceDetectorWorks() bool {
	out, err := exec.Command("go", "env", "CC").Output()
	if err != nil || os.Getenv("CGO_ENABLED") == "0" {
		return false
	}
	_, err = exec.LookPath(strings.TrimSpace(string(out)))
	return err == nil
}

// plainTests returns the tests of a directory that are worth running without the race detector too: tests that are skipped under it
// (racetest.Sequential), and tests that leave a check out under it, such as counts of allocations.
func plainTests(folder string) (tests []string, err error) {
	files, err := filepath.Glob(filepath.Join(folder, "*_test.go"))
	if err != nil {
		return nil, err
	}
	for _, name := range files {
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, fmt.Errorf("find tests: %w", err)
		}
		for _, d := range f.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok || fn.Recv != nil || fn.Body == nil || !strings.HasPrefix(fn.Name.Name, "Test") {
				continue
			}
			ast.Inspect(fn.Body, func(n ast.Node) bool {
				id, ok := n.(*ast.Ident)
				if ok && slices.Contains([]string{"racetest", "raceDetector", "RaceDetector", "AllocsPerRun"}, id.Name) {
					tests = append(tests, fn.Name.Name)
				}
				return true
			})
		}
	}
	return tests, nil
}
