package e2e

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

const module = ".."

var (
	envoyBinary string // empty: there is none
	ratelimitd  string // the service, built from the module as it is
)

// TestMain finds Envoy and builds the service, once.
func TestMain(m *testing.M) {
	code, err := runTests(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		code = 1
	}
	os.Exit(code)
}

func runTests(m *testing.M) (code int, err error) {
	envoyBinary = findEnvoy()
	if envoyBinary == "" {
		if os.Getenv("CI") != "" {
			return 1, errors.New("no Envoy: run scripts/install-envoy, or set E2E_ENVOY to its path. In CI these tests have to run")
		}
		fmt.Fprintln(os.Stderr, "e2e: NOT RUN, no Envoy: make e2e installs one and runs these tests")
		return m.Run(), nil
	}
	if err := consultSources(); err != nil {
		return 1, err
	}
	dir, err := os.MkdirTemp("", "e2e")
	if err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	ratelimitd = filepath.Join(dir, "ratelimitd")
	args := []string{"build", "-o", ratelimitd}
	if raced {
		args = append(args, "-race")
	}
	build := exec.Command("go", append(args, "./cmd/ratelimitd")...)
	build.Dir = module
	if said, err := build.CombinedOutput(); err != nil {
		return 1, fmt.Errorf("build ratelimitd: %w\n%s", err, said)
	}
	return m.Run(), nil
}

// findEnvoy returns the path of Envoy: the one that is asked for, else the one of scripts/install-envoy, else that of the
// system.
func findEnvoy() string {
	if asked := os.Getenv("E2E_ENVOY"); asked != "" {
		return asked
	}
	installed, _ := filepath.Glob(filepath.Join(module, ".tools", "envoy", "*", "envoy", "_bin", "envoy"))
	for _, path := range installed {
		if absolute, err := filepath.Abs(path); err == nil {
			return absolute
		}
	}
	path, _ := exec.LookPath("envoy")
	return path
}

// consultSources looks at every file that the service is built from. go test remembers what a test has looked at: without
// this it would take a result for good after a change of the service, which is not linked into these tests.
func consultSources() error {
	for _, folder := range []string{"cmd", "internal", "proto", "go.mod", "go.sum"} {
		err := filepath.WalkDir(filepath.Join(module, folder), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			_, err = os.Stat(path)
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// needsEnvoy skips a test where there is none. Where CI is set TestMain has failed before.
func needsEnvoy(t *testing.T) {
	t.Helper()
	if envoyBinary == "" {
		t.Skip("NOT RUN without an Envoy: scripts/install-envoy gets one, with python3 and pip")
	}
}
