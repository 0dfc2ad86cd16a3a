package client_test

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
	"github.com/ratelimitd/ratelimitd/internal/testkit/servicetest"
)

var ratelimitd string // the service, built from the current sources

// TestMain builds the service, and starts one for the examples.
func TestMain(m *testing.M) {
	code, err := runTests(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, "client:", err)
		code = 1
	}
	os.Exit(code)
}

func runTests(m *testing.M) (code int, err error) {
	dir, err := os.MkdirTemp("", "client")
	if err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	ratelimitd = filepath.Join(dir, "ratelimitd")
	if out, err := exec.Command("go", "build", "-o", ratelimitd, "../cmd/ratelimitd").CombinedOutput(); err != nil {
		return 1, fmt.Errorf("build the service: %w\n%s", err, out)
	}
	directory := filepath.Join(dir, "rules")
	if err := errors.Join(os.Mkdir(directory, 0o700), os.WriteFile(filepath.Join(directory, "shop.yaml"), []byte(rules), 0o600)); err != nil {
		return 1, err
	}
	service := exec.Command(ratelimitd, "--rules", directory)
	service.Env = []string{"LOG_FORMAT=json", "GRPC_HOST=127.0.0.1", "GRPC_PORT=0", "HOST=127.0.0.1", "PORT=0", "DEBUG_PORT=0"}
	service.SysProcAttr = redistest.EndsWithTest()
	log, err := service.StderrPipe()
	if err != nil {
		return 1, err
	}
	if err := service.Start(); err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, service.Process.Kill()); _ = service.Wait() }()
	if target, err = listening(log); err != nil {
		return 1, err
	}
	return m.Run(), nil
}

// target is the service of the examples.
var target string

// listening reads the log of a service until a line names its address, and then lets it write on.
func listening(log io.Reader) (addr string, err error) {
	lines := bufio.NewScanner(log)
	for lines.Scan() {
		var line struct {
			Message string `json:"@message"`
			GRPC    string
		}
		if err := json.Unmarshal(lines.Bytes(), &line); err == nil && line.Message == "listening" {
			go func() { _, _ = io.Copy(io.Discard, log) }()
			return line.GRPC, nil
		}
	}
	return "", fmt.Errorf("the service does not listen: %w", lines.Err())
}

// rules are the rules for all tests with the real service.
const rules = `
domain: shop
descriptors:
  - key: customer
    rate_limit: {unit: year, requests_per_unit: 2}
  - key: free
    rate_limit: {unlimited: true}
  - key: many
    rate_limit: {unit: second, requests_per_unit: 1000000000}
  - key: ten
    rate_limit: {unit: second, requests_per_unit: 10, algorithm: token_bucket, burst: 10}
  - key: hundred
    rate_limit: {unit: year, requests_per_unit: 100}
  - key: mail
    rate_limit: {unit: second, requests_per_unit: 100, algorithm: leaky_bucket, burst: 50}
  - key: model
    rate_limit: {unit: year, requests_per_unit: 1000}
    reservations: {ttl: 1m}
`

// start starts the service, which counts in memory.
func start(t testing.TB, env ...string) *servicetest.Process {
	t.Helper()
	cmd := exec.Command(ratelimitd, "--rules", servicetest.RulesOf(t, rules))
	cmd.Env = env
	return servicetest.Start(t, "the service", cmd)
}
