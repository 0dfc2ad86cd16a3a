// Command suite runs all tests of the repository, of all its modules, and ends with what was left out, what failed, and
// how to run that alone. It is what `make test` runs, and needs Go alone.
//
// What else the tests need (redis-server, promtool, Chromium, Envoy) it tries to get first, with scripts/install-*. As
// root that installs packages. For other users it unpacks into .tools what can be had without root; tests that need
// the rest are left out, unless CI is set: there they fail. Arguments go to go test, and packages may be of any module:
// scripts/suite -race ./internal/server ./e2e/outages.
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
	"syscall"
)

// parts are what tests need besides Go. The race detector needs a C compiler too.
var parts = []string{"redis", "promtool", "browser", "envoy"}

// modules are the folders of go.mod files with tests, the service's first.
var modules = []string{".", "deploy", "e2e"}

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
	r := &run{args: args, out: os.Stdout}
	needed := parts
	if slices.Contains(args, "-race") {
		needed = slices.Concat(parts, []string{"cc"})
	}
	for _, name := range needed {
		script := "scripts/install-" + name
		c := exec.CommandContext(ctx, script)
		c.Stdout, c.Stderr = os.Stdout, os.Stderr
		if err := c.Run(); err != nil && ci {
			r.failures = append(r.failures, script) // the tests that need it fail too, but the others run
		}
	}
	for _, module := range modules {
		if packages := packagesOf(module, args); len(packages) > 0 {
			r.module(ctx, module, packages)
		}
	}
	r.summarize()
	if _, err := os.Stat(filepath.Join(root, ".tools", "bin")); err == nil && len(r.failures) > 0 {
		fmt.Println("Set PATH=" + root + "/.tools/bin:$PATH before: some of the programs that tests need are there.")
	}
	if len(r.failures) > 0 {
		os.Exit(1)
	}
}

// packagesOf returns which packages of a module to test: those that the arguments name, or all of them where the arguments
// name none. ./e2e/outages is ./outages of the module in e2e.
func packagesOf(module string, args []string) (packages []string) {
	named := false
	for _, path := range args {
		if !strings.HasPrefix(path, "./") {
			continue
		}
		named = true
		of, inside := ".", path
		first, rest, _ := strings.Cut(strings.TrimPrefix(path, "./"), "/")
		if slices.Contains(modules, first) {
			of, inside = first, "./"+rest
		}
		if of == module {
			packages = append(packages, inside)
		}
	}
	// The tests of deploy start programs that are built without the race detector: there is nothing for it to find.
	if !named && (module != "deploy" || !slices.Contains(args, "-race")) {
		packages = []string{"./..."}
	}
	return packages
}

// again is the command that runs tests of one package alone.
func (r *run) again(module, folder, tests string) string {
	command := []string{"go", "test", "-count=1"}
	if slices.Contains(r.args, "-race") {
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
