package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"time"
)

// run has the results of the tests so far.
type run struct {
	args []string
	out  io.Writer
	race bool // the race detector is on in this pass

	passed   int            // tests, without their subtests
	packages int            // with tests
	missing  map[string]int // missing program -> tests that were skipped for it
	skipped  map[string]int // other reasons
	failures []string       // commands that fail again
}

func newRun(args []string, out io.Writer) *run {
	return &run{args: args, out: out, missing: make(map[string]int), skipped: make(map[string]int)}
}

// event is a line of go test -json.
type event struct {
	Action, Package, ImportPath, Test, Output string
	Elapsed                                   float64
}

// notRun matches a test's message that a program is missing, and what installs it.
var notRun = regexp.MustCompile(`NOT RUN without (.+)`)

// pass runs tests of one module.
func (r *run) pass(ctx context.Context, folder string, p pass) {
	r.race = p.race
	args := []string{"test", "-json", "-timeout", "30m"}
	for _, a := range p.args {
		if !strings.HasPrefix(a, "./") {
			args = append(args, a)
		}
	}
	args = append(args, p.packages...)
	c := exec.CommandContext(ctx, "go", args...)
	c.Dir, c.Stderr = folder, os.Stderr
	c.Cancel = func() error { return c.Process.Signal(os.Interrupt) }
	c.WaitDelay = time.Minute
	stdout, err := c.StdoutPipe()
	if err == nil {
		err = c.Start()
	}
	if err != nil {
		fmt.Fprintln(r.out, "go test:", err)
		r.failures = append(r.failures, r.again(folder, "./...", ""))
		return
	}
	before := len(r.failures)
	r.read(stdout, folder, modulePath(folder))
	if err := c.Wait(); err != nil && len(r.failures) == before { // it failed, but no test did
		r.failures = append(r.failures, r.again(folder, "./...", ""))
	}
}

// modulePath is the prefix of import paths of the module.
func modulePath(folder string) string {
	c := exec.Command("go", "list", "-m")
	c.Dir = folder
	out, err := c.Output()
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(out))
}

// read reads the output of go test for a module. It prints a line for every package, and the whole output of failures.
func (r *run) read(from io.Reader, folder, path string) {
	said := make(map[string][]string) // by package and test without subtests; lines
	failed := make(map[string][]string)
	logged := make(map[string]string) // the last of a test, with its subtests' names
	lines := bufio.NewReader(from)
	for {
		line, err := lines.ReadBytes('\n')
		var e event
		if len(line) > 0 {
			if json.Unmarshal(line, &e) != nil {
				fmt.Fprintf(r.out, "%s", line)
			} else {
				r.take(e, said, failed, logged, folder, path)
			}
		}
		if err != nil {
			if !errors.Is(err, io.EOF) {
				fmt.Fprintln(r.out, "read what go test says:", err)
			}
			return
		}
	}
}

func (r *run) take(e event, said, failed map[string][]string, logged map[string]string, folder, path string) {
	top, sub, _ := strings.Cut(e.Test, "/")
	key := e.Package + " " + top
	switch {
	case e.Action == "build-output":
		_, _ = fmt.Fprint(r.out, e.Output)
	case e.Action == "output":
		said[key] = append(said[key], e.Output)
		if strings.Contains(e.Output, ".go:") {
			logged[e.Package+" "+e.Test] = e.Output
		}
	case e.Test == "" && (e.Action == "pass" || e.Action == "fail" || e.Action == "skip"):
		if e.Action == "fail" && len(failed[e.Package]) == 0 {
			r.unfinished(e.Package, said)
		}
		r.ended(e, said[key], failed[e.Package], "./"+strings.TrimPrefix(strings.TrimPrefix(e.Package, path), "/"), folder)
	case e.Action == "skip":
		r.skip(logged[e.Package+" "+e.Test])
		if sub == "" {
			delete(said, key)
		}
	case sub != "":
	case e.Action == "pass":
		r.passed++
		delete(said, key)
	case e.Action == "fail":
		failed[e.Package] = append(failed[e.Package], top)
		fmt.Fprintf(r.out, "%s", strings.Join(said[key], ""))
		delete(said, key)
	}
}

// unfinished prints the output of the tests that were running when a package's process died. One of them timed out or
// ended the process, and its output has the stacks.
func (r *run) unfinished(pkg string, said map[string][]string) {
	for _, key := range slices.Sorted(maps.Keys(said)) {
		if test, found := strings.CutPrefix(key, pkg+" "); found && test != "" {
			fmt.Fprintf(r.out, "%s did not end:\n%s", test, strings.Join(said[key], ""))
			delete(said, key)
		}
	}
}

// ended prints the line of a package.
func (r *run) ended(e event, said, failed []string, short, folder string) {
	switch e.Action {
	case "skip": // no test files
		return
	case "pass":
		r.packages++
		cached := ""
		if strings.Contains(strings.Join(said, ""), "(cached)") {
			cached = " (cached)"
		}
		fmt.Fprintf(r.out, "ok    %-50s %6.1f s%s\n", e.Package, e.Elapsed, cached)
		return
	}
	if len(failed) == 0 { // it did not compile, or ended before its tests did
		_, _ = fmt.Fprint(r.out, strings.Join(said, ""))
		r.failures = append(r.failures, r.again(folder, short, ""))
	}
	for _, test := range failed {
		r.failures = append(r.failures, r.again(folder, short, "^"+test+"$"))
	}
	fmt.Fprintf(r.out, "FAIL  %-50s %6.1f s\n", e.Package, e.Elapsed)
}

// skip counts a skipped test by its reason, the last line that it logged.
func (r *run) skip(last string) {
	reason := "for its own reason"
	if m := notRun.FindStringSubmatch(last); m != nil {
		r.missing[m[1]]++
		return
	}
	if _, text, found := strings.Cut(last, ".go:"); found {
		_, reason, _ = strings.Cut(strings.TrimSpace(text), ": ")
	}
	r.skipped[reason]++
}

// add adds the results of another run.
func (r *run) add(other *run) {
	r.passed += other.passed
	r.packages += other.packages
	r.failures = append(r.failures, other.failures...)
	for what, n := range other.missing {
		r.missing[what] += n
	}
	for reason, n := range other.skipped {
		r.skipped[reason] += n
	}
}

// summarize prints the last lines.
func (r *run) summarize() {
	fmt.Fprintf(r.out, "\n%d tests of %d packages passed\n", r.passed, r.packages)
	for _, reason := range slices.Sorted(maps.Keys(r.skipped)) {
		fmt.Fprintf(r.out, "not asked for: %d tests (%s)\n", r.skipped[reason], reason)
	}
	for _, what := range slices.Sorted(maps.Keys(r.missing)) {
		fmt.Fprintf(r.out, "LEFT OUT: %d tests, without %s\n", r.missing[what], what)
	}
	if len(r.failures) == 0 {
		return
	}
	fmt.Fprintf(r.out, "FAILED: %d. To run each again:\n", len(r.failures))
	for _, command := range r.failures {
		fmt.Fprintf(r.out, "  %s\n", command)
	}
}
