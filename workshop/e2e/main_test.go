package e2e

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/ratelimitd/ratelimitd/workshop/e2e/build"
)

const module = "../.."

var (
	envoyBinary string // empty: not found
	ratelimitd  string // the service, built from this module
	built       string // the directory of the binaries that the tests build
)

// TestMain finds Envoy and builds the service.
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
			return 1, errors.New("no Envoy: run workshop/scripts/install-envoy, or set E2E_ENVOY to its path. In CI these tests have to run")
		}
		fmt.Fprintln(os.Stderr, "e2e: NOT RUN, no Envoy: make e2e installs one and runs these tests")
		return m.Run(), nil
	}
	dir, err := os.MkdirTemp("", "e2e")
	if err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	built = dir
	if ratelimitd, err = build.Ratelimitd(dir); err != nil {
		return 1, err
	}
	return m.Run(), nil
}

// findEnvoy returns the path of Envoy: the configured one, else the one of workshop/scripts/install-envoy, else the
// system's.
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

// needsEnvoy skips a test if no Envoy was found. In CI, TestMain has already failed then.
func needsEnvoy(t *testing.T) {
	t.Helper()
	if envoyBinary == "" {
		t.Skip("NOT RUN without an Envoy: workshop/scripts/install-envoy gets one, with python3 and pip")
	}
}
