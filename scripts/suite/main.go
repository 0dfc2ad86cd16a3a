// Command suite runs all tests of the repository, of both its modules, and ends with what was left out, what failed, and
// how to run that alone. It is what `make test` runs, and needs Go alone.
//
// What else the tests need (redis-server, promtool, Chromium, Envoy) it tries to get first, with scripts/install-*. As
// root that installs packages. For other users it unpacks into .tools what can be had without root; tests that need
// the rest are left out, unless CI is set: there they fail. Arguments go to go test: scripts/suite -race ./internal/server.
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

// modules are the folders of go.mod files with tests.
var modules = []string{".", "deploy"}

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
		// The tests of deploy start programs that are built without the race detector: there is nothing for it to find.
		if module != "." && (slices.Contains(args, "-race") || slices.ContainsFunc(args, func(a string) bool { return strings.HasPrefix(a, "./") })) {
			continue
		}
		r.module(ctx, module)
	}
	r.summarize()
	if _, err := os.Stat(filepath.Join(root, ".tools", "bin")); err == nil && len(r.failures) > 0 {
		fmt.Println("Set PATH=" + root + "/.tools/bin:$PATH before: some of the programs that tests need are there.")
	}
	if len(r.failures) > 0 {
		os.Exit(1)
	}
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
