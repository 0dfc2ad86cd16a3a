// Package build builds the programs that the tests of this module start: ratelimitd, and its module for Envoy, from the
// sources as they are.
//
// Tests build it once, in TestMain, into a separate directory. Where the tests run with the race detector, so does
// the program.
package build

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

const service = "github.com/ratelimitd/ratelimitd"

// Ratelimitd builds the service into a directory and returns the path of the program.
func Ratelimitd(directory string) (string, error) {
	sources, err := root()
	if err != nil {
		return "", err
	}
	program := filepath.Join(directory, "ratelimitd")
	args := []string{"-o", program, "./cmd/ratelimitd"}
	if raced {
		args = append([]string{"-race"}, args...)
	}
	return program, build(sources, args)
}

// build builds in the directory of a Go module, with the dependencies of that module.
func build(dir string, args []string, env ...string) error {
	cmd := exec.Command("go", append([]string{"build"}, args...)...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	if said, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s: %w\n%s", dir, err, said)
	}
	return nil
}

// EnvoyModule builds the module for Envoy into a directory, where Envoy finds it under the name ratelimitd. flags are
// more flags for the C compiler.
func EnvoyModule(directory string, flags ...string) error {
	sources, err := root()
	if err != nil {
		return err
	}
	return build(filepath.Join(sources, "envoymodule"),
		[]string{"-buildmode=c-shared", "-o", filepath.Join(directory, "libratelimitd.so"), "."},
		"CGO_ENABLED=1", "CGO_CFLAGS="+strings.Join(append([]string{"-O2"}, flags...), " "))
}

// root returns the directory of the sources. It looks at each of their files first: see readSources.
func root() (string, error) {
	listed, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", service).Output()
	if err != nil {
		return "", fmt.Errorf("find the sources of ratelimitd: %w", err)
	}
	root := strings.TrimSpace(string(listed))
	return root, readSources(root)
}

// readSources looks at every file that the programs are built from. go test remembers which files a test has looked at
// and runs the test again when one of them changes; they are not linked into the tests, so nothing else would.
func readSources(root string) error {
	for _, directory := range []string{"cmd", "envoymodule", "internal", "proto", "go.mod", "go.sum"} {
		err := filepath.WalkDir(filepath.Join(root, directory), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			_, err = os.Stat(path)
			return err
		})
		if err != nil {
			return fmt.Errorf("look at the sources of ratelimitd: %w", err)
		}
	}
	return nil
}
