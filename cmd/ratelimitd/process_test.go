package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

const asProcess = "TEST_AS_RATELIMITD"

// TestMain lets the test binary also run as the service. Tests that need processes start the binary again, so the service
// is built like the test, race detector included.
func TestMain(m *testing.M) {
	if os.Getenv(asProcess) == "" {
		os.Exit(m.Run())
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// patience is how long a process may take to start or to stop on a busy machine.
const patience = 30 * time.Second

// process is a running service.
type process struct {
	cmd               *exec.Cmd
	grpc, http, debug string // where it listens
	log               *logLines
	ended             chan error
}

// command prepares a process of the service. Its environment is env alone.
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

// notAtMidnight waits for midnight UTC if it is near. What a test has used of a daily limit, and the names of its counters,
// must not change during the test.
func notAtMidnight() {
	const day, soon = 24 * time.Hour, 20 * time.Second
	now := time.Now()
	if left := now.Truncate(day).Add(day).Sub(now); left < soon {
		<-time.After(left)
	}
}

// startProcess starts the service as a process on free ports and waits until it listens. The process stops at the end of
// the test.
func startProcess(t *testing.T, env map[string]string, args ...string) *process {
	t.Helper()
	notAtMidnight()
	all := map[string]string{"GRPC_PORT": "0", "PORT": "0", "DEBUG_PORT": "0", "GRPC_HOST": "127.0.0.1", "HOST": "127.0.0.1"}
	for k, v := range env {
		all[k] = v
	}
	p := &process{cmd: command(t, all, args...), log: newLogLines(), ended: make(chan error, 1)}
	stderr, err := p.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		p.log.read(stderr)
		p.ended <- p.cmd.Wait()
	}()
	t.Cleanup(func() {
		p.stop(t)
		if t.Failed() {
			t.Logf("log of the service:\n%s", p.log)
		}
	})
	line := p.log.wait(t, "listening")
	p.grpc, p.http, p.debug = line["grpc"].(string), line["http"].(string), line["debug"].(string)
	return p
}

// stop ends the process with a signal and waits for it. Calling it again is fine.
func (p *process) stop(t *testing.T) {
	t.Helper()
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case err, running := <-p.ended:
		if running && err != nil {
			t.Errorf("the service ended with %v:\n%s", err, p.log)
		}
		if running {
			close(p.ended)
		}
	case <-time.After(patience):
		_ = p.cmd.Process.Kill()
		t.Errorf("the service did not stop within %s:\n%s", patience, p.log)
	}
}

// logLines holds the lines that a process has logged so far.
type logLines struct {
	mu    sync.Mutex
	lines []string
	done  bool
	more  chan struct{} // closed and replaced at every change
}

func newLogLines() *logLines { return &logLines{more: make(chan struct{})} }

func (l *logLines) read(r io.Reader) {
	s := bufio.NewScanner(r)
	s.Buffer(nil, 1<<20)
	for s.Scan() {
		l.add(s.Text(), false)
	}
	l.add("", true)
}

func (l *logLines) add(line string, done bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if done {
		l.done = true
	} else {
		l.lines = append(l.lines, line)
	}
	close(l.more)
	l.more = make(chan struct{})
}

func (l *logLines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.lines, "\n")
}

// wait returns the first line with this message, as JSON.
func (l *logLines) wait(t *testing.T, message string) map[string]any {
	t.Helper()
	late := time.After(patience)
	for seen := 0; ; {
		l.mu.Lock()
		lines, done, more := l.lines, l.done, l.more
		l.mu.Unlock()
		for ; seen < len(lines); seen++ {
			var fields map[string]any
			if json.Unmarshal([]byte(lines[seen]), &fields) == nil && fields["@message"] == message {
				return fields
			}
		}
		if done {
			t.Fatalf("the service ended without logging %q:\n%s", message, l)
		}
		select {
		case <-more:
		case <-late:
			t.Fatalf("the service did not log %q within %s:\n%s", message, patience, l)
		}
	}
}

// output runs the service until it ends by itself and returns its exit code and output.
func output(t *testing.T, env map[string]string, args ...string) (code int, text string) {
	t.Helper()
	text, code = untilEnd(t, command(t, env, args...))
	return code, text
}

// untilEnd runs a command until it ends by itself and returns its output and exit code.
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
