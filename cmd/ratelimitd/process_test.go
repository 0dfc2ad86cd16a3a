package main

import (
	"bytes"
	"errors"
	"maps"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/testkit/servicetest"
)

const asProcess = "TEST_AS_RATELIMITD"

// TestMain lets the test binary also run as the service. Tests that need processes start the binary again, so the
// service is built like the test, race detector included.
func TestMain(m *testing.M) {
	if os.Getenv(asProcess) == "" {
		code := m.Run()
		removeEarlier()
		os.Exit(code)
	}
	os.Exit(run(untilSignal(stopSignals()...), arguments(os.Args), os.Stdout, os.Stderr))
}

// patience is the longest time for any step on a busy machine.
const patience = servicetest.Patience

// Most tests of this package use these, some in every row of a table.
var (
	ask     = servicetest.Ask
	rulesOf = servicetest.RulesOf
	get     = servicetest.Get
	dial    = servicetest.Dial
)

// command prepares a process of the service. Its environment is env and nothing else.
func command(t *testing.T, env map[string]string, args ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, args...)
	cmd.Env = []string{asProcess + "=1", "LOG_FORMAT=json", "PATH=" + os.Getenv("PATH"), "GORACE=halt_on_error=1"}
	for k, v := range env {
		cmd.Env = append(cmd.Env, k+"="+v)
	}
	return cmd
}

// startProcess starts the service as a process on free ports and waits until it listens. The process stops at the end
// of the test.
func startProcess(t *testing.T, env map[string]string, args ...string) *servicetest.Process {
	t.Helper()
	servicetest.NotAtMidnight()
	return servicetest.Start(t, "the service", command(t, env, args...))
}

// output runs the service until it ends on its own and returns its exit code and output.
func output(t *testing.T, env map[string]string, args ...string) (code int, text string) {
	t.Helper()
	all := map[string]string{"LOG_FORMAT": "text"}
	maps.Copy(all, env)
	text, code = untilEnd(t, command(t, all, args...))
	return code, text
}

// untilEnd runs a command until it ends on its own and returns its output and exit code.
func untilEnd(t *testing.T, cmd *exec.Cmd) (text string, code int) {
	t.Helper()
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	late := time.AfterFunc(patience, func() { _ = cmd.Process.Kill() })
	err := cmd.Wait()
	if !late.Stop() {
		t.Fatalf("it did not end within %s:\n%s", patience, &out)
	}
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	if exit != nil {
		code = exit.ExitCode()
	}
	return out.String(), code
}
