// Package build makes the program that the tests of this module start: ratelimitd, from the sources as they are.
//
// Tests build it once, in TestMain, into a directory of their own. Where the tests run with the race detector, so does the
// program.
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
func Ratelimitd(folder string) (string, error) {
	listed, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", service).Output()
	if err != nil {
		return "", fmt.Errorf("find the sources of ratelimitd: %w", err)
	}
	root := strings.TrimSpace(string(listed))
	if err := readSources(root); err != nil {
		return "", err
	}
	program := filepath.Join(folder, "ratelimitd")
	args := []string{"build", "-o", program}
	if raced {
		args = append(args, "-race")
	}
	build := exec.Command("go", append(args, "./cmd/ratelimitd")...)
	build.Dir = root // the service is built with the dependencies of its own module
	if said, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build ratelimitd: %w\n%s", err, said)
	}
	return program, nil
}

// readSources looks at every file that the service is built from. go test remembers which files a test has looked at and
// runs the test again when one of them changes; the service is not linked into the tests, so nothing else would.
func readSources(root string) error {
	for _, folder := range []string{"cmd", "internal", "proto", "go.mod", "go.sum"} {
		err := filepath.WalkDir(filepath.Join(root, folder), func(path string, d fs.DirEntry, err error) error {
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
