// Mutants changes one thing after another in a package, for example an operator, a condition, a constant or a
// statement, and lists the changes that the tests of the package do not notice.
//
//	go run ./workshop/scripts/mutants ./internal/lending/lease
//	go run ./workshop/scripts/mutants ./internal/lending/quota ./internal/lending/quota/assigner
//
// Further packages are not changed, but their tests run too.
//
// The tests are built once, with all changes in them; an environment variable says which one applies. Only a change of
// a constant of the package needs a separate build. A test that does not end counts as noticed. gremlins 0.6 is
// maintained, but builds every change (46 in 67 s, in a package of 170 lines), and changes no constant and no
// statement.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"
)

var (
	workers = flag.Int("workers", 2, "number of changes that are tried at the same time")
	tests   = flag.String("run", "", "tests to run, as in go test -run")
	skip    = flag.String("skip", "", "tests not to run, as in go test -skip")
	slow    = flag.String("slow", "", "tests to run only for changes that the others do not notice, as in go test -run")
	only    = flag.String("only", "", "try only changes whose place contains this, such as counter.go:12:")
	limit   = flag.Duration("limit", time.Minute, "longest time of all tests")
)

func main() {
	flag.Parse()
	if err := run(flag.Arg(0), flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(dir string, tested []string) error {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	for i := range tested {
		if tested[i], err = filepath.Abs(tested[i]); err != nil {
			return err
		}
	}
	temp, err := os.MkdirTemp("", "mutants")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(temp) }()
	c, err := changes(dir)
	if err != nil {
		return err
	}
	if err := build(tested, temp, c.files); err != nil {
		return fmt.Errorf("build the tests with all changes: %w", err)
	}
	if !pass(tested, temp, 0) {
		return errors.New("the tests fail without a change")
	}
	var mu sync.Mutex
	noticed, missed := 0, 0
	work := make(chan mutant)
	var group sync.WaitGroup
	for range *workers {
		group.Go(func() {
			for m := range work {
				ok := try(tested, temp, &m)
				mu.Lock()
				if ok {
					noticed++
				} else {
					missed++
					fmt.Printf("%s: %q becomes %q\n", m.place, m.text, m.by)
				}
				mu.Unlock()
			}
		})
	}
	for i, m := range c.mutants {
		if strings.Contains(m.place, *only) {
			work <- m
		}
		if i%200 == 199 {
			fmt.Fprintf(os.Stderr, "%d of %d\n", i+1, len(c.mutants))
		}
	}
	close(work)
	group.Wait()
	fmt.Printf("%d of %d changes are noticed: %.1f %%\n", noticed, noticed+missed,
		100*float64(noticed)/float64(noticed+missed))
	return nil
}

// try reports whether the tests notice a change. One that does not compile is noticed.
func try(tested []string, temp string, m *mutant) bool {
	if m.file == "" {
		return !pass(tested, temp, m.number)
	}
	own, err := os.MkdirTemp(temp, "own")
	if err != nil {
		panic(err)
	}
	return build(tested, own, map[string][]byte{m.file: m.source}) != nil || !pass(tested, own, 0)
}

// build builds the tests of packages with other sources of one package, into a directory.
func build(tested []string, temp string, files map[string][]byte) error {
	replace := make(map[string]string)
	for name, source := range files {
		replace[name] = filepath.Join(temp, strconv.Itoa(len(replace))+".go")
		if err := os.WriteFile(replace[name], source, 0o600); err != nil {
			return err
		}
	}
	overlay, err := json.Marshal(map[string]map[string]string{"Replace": replace})
	if err != nil {
		return err
	}
	list := filepath.Join(temp, "overlay.json")
	if err := os.WriteFile(list, overlay, 0o600); err != nil {
		return err
	}
	for i, dir := range tested {
		c := exec.Command("go", "test", "-c", "-vet=off", "-overlay", list, "-o", binary(temp, i), ".")
		c.Dir = dir
		if out, err := c.CombinedOutput(); err != nil {
			return fmt.Errorf("%w: %s", err, bytes.TrimSpace(out))
		}
	}
	return nil
}

func binary(temp string, i int) string { return filepath.Join(temp, fmt.Sprintf("test%d", i)) }

// pass runs the tests with one change.
func pass(tested []string, temp string, number int) bool {
	ctx, cancel := context.WithTimeout(context.Background(), *limit)
	defer cancel()
	run := func(which ...string) bool {
		for i, dir := range tested {
			c := exec.CommandContext(ctx, binary(temp, i), append(which, "-test.failfast", "-test.short")...)
			c.Dir = dir
			c.Env = append(os.Environ(), "MUTANT="+strconv.Itoa(number))
			if c.Run() != nil {
				return false
			}
		}
		return true
	}
	if *slow == "" {
		return run("-test.run", *tests, "-test.skip", *skip)
	}
	either := *slow
	if *skip != "" {
		either += "|" + *skip
	}
	return run("-test.run", *tests, "-test.skip", either) && run("-test.run", *slow, "-test.skip", *skip)
}
