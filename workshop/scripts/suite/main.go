// Command suite runs all tests of all modules of the repository. Its last lines list what was skipped and what failed,
// with a command for each failure. `make test` runs it. It needs only Go.
//
// It first tries to install the other programs that tests need (redis-server, twemproxy, promtool, Chromium, Envoy, TLC), with
// workshop/scripts/install-*. As root that installs packages; for other users it unpacks into .tools what needs no root. Tests
// whose program is missing are skipped, or fail if CI is set.
//
// Most tests run with the race detector; what runs without it: passes.go. Arguments go to go test as they are, and packages may
// be of any module: workshop/scripts/suite -race ./internal/server ./workshop/e2e/outages.
package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
)

// parts are what tests need besides Go. The C compiler is for the race detector, and for a Redis whose clock is set.
var parts = []string{"redis", "twemproxy", "promtool", "browser", "envoy", "nginx", "tlc", "cc"}

// modules are the directories with a go.mod and tests, the service's first.
var modules = []string{".", "workshop/e2e", "deploy", "workshop/bench/libraries"}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	args := os.Args[1:]
	ci := os.Getenv("CI") != ""
	root, err := os.Getwd()
	if err == nil {
		err = os.Setenv("PATH", filepath.Join(root, ".tools", "bin")+string(filepath.ListSeparator)+os.Getenv("PATH"))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "suite:", err)
		os.Exit(2)
	}
	r := newRun(args, os.Stdout)
	fmt.Println(plan())
	for _, name := range parts {
		script := "workshop/scripts/install-" + name
		c := exec.CommandContext(ctx, script)
		c.Stdout, c.Stderr = os.Stdout, os.Stderr
		if err := c.Run(); err != nil && ci {
			r.failures = append(r.failures, script) // the tests that need it fail too, but the others run
		}
	}
	// The tests of the service compute, and those of the other modules mostly wait, for seconds to pass in real programs.
	others := newRun(args, os.Stdout)
	var both sync.WaitGroup
	both.Go(func() {
		for _, module := range modules[1:] {
			others.tests(ctx, module)
		}
	})
	r.tests(ctx, modules[0])
	both.Wait()
	r.add(others)
	r.summarize()
	if _, err := os.Stat(filepath.Join(root, ".tools", "bin")); err == nil && len(r.failures) > 0 {
		fmt.Println("Set PATH=" + root + "/.tools/bin:$PATH before: some of the programs that tests need are there.")
	}
	if len(r.failures) > 0 {
		os.Exit(1)
	}
}

// plan says what the command is about to do.
func plan() string {
	return "Installing what is missing of " + strings.Join(parts, ", ") + " (as root with the package manager, else below .tools), then testing the modules " +
		strings.Join(modules, ", ") + ". That may take an hour. make quick needs only Go, and takes three minutes when the build cache is warm."
}

// packagesOf returns the packages of a module to test: the packages that the arguments name, or all packages if the arguments
// name none. ./workshop/e2e/outages is ./outages of the module in e2e.
func packagesOf(module string, args []string) (packages []string) {
	named := false
	for _, path := range args {
		if !strings.HasPrefix(path, "./") {
			continue
		}
		named = true
		of, inside := ".", path
		for _, m := range modules[1:] {
			if rest, ok := strings.CutPrefix(path+"/", "./"+m+"/"); ok {
				of, inside = m, "./"+strings.TrimSuffix(rest, "/")
			}
		}
		if of == module {
			packages = append(packages, inside)
		}
	}
	if named {
		return packages
	}
	return []string{"./..."}
}

// notConcurrent are directories, with all below them, in which the race detector has nothing to find: packages without
// goroutines of their own, tests that start programs which are built without the detector, and tests of other libraries.
// Within the others, tests say it themselves, with package racetest.
var notConcurrent = []string{
	"workshop/bench/libraries", "deploy", "docs", "workshop/e2e/browser", "workshop/e2e/build", "workshop/scripts", "workshop/models", "internal/authoring/accesslog", "internal/descriptor",
	"internal/authoring/explain", "internal/testkit/redistest", "internal/authoring/rulecheck", "internal/authoring/ruleschema", "internal/authoring/simulate/report",
	"internal/testkit/simkit",
}

// isConcurrent reports whether the race detector may find something in a directory.
func isConcurrent(path string) bool {
	return path != "." && path != "internal" && !slices.ContainsFunc(notConcurrent, func(of string) bool { return path == of || strings.HasPrefix(path, of+"/") })
}

// directories returns the directories of a module that have a package, without the module's own name.
func folders(module string) (all []string, err error) {
	c := exec.Command("go", "list", "-f", "{{.Dir}}", "./...")
	c.Dir = module
	out, err := c.Output()
	top, _ := filepath.Abs(module)
	if err != nil {
		return nil, fmt.Errorf("list packages of %s: %w", module, err)
	}
	for dir := range strings.SplitSeq(strings.TrimSpace(string(out)), "\n") {
		inside, err := filepath.Rel(top, dir)
		if err != nil {
			return nil, err
		}
		all = append(all, inside)
	}
	return all, nil
}

// tests runs the tests of a module.
func (r *run) tests(ctx context.Context, module string) {
	all := []pass{{args: r.args, packages: packagesOf(module, r.args), race: slices.Contains(r.args, "-race")}}
	if len(r.args) == 0 {
		var err error
		if all, err = passes(module); err != nil {
			fmt.Fprintln(os.Stderr, "suite:", err)
			r.failures = append(r.failures, r.again(module, "./...", ""))
			return
		}
	}
	for _, p := range all {
		if len(p.packages) > 0 {
			r.pass(ctx, module, p)
		}
	}
}

// again returns a command that runs only tests of one package.
func (r *run) again(module, folder, tests string) string {
	command := []string{"go", "test", "-count=1"}
	if r.race {
		command = append(command, "-race")
	}
	if tests != "" {
		command = append(command, "-run", "'"+tests+"'")
	}
	text := strings.Join(append(command, folder), " ")
	if module != "." {
		text = "cd " + module + " && " + text
	}
	return text
}
