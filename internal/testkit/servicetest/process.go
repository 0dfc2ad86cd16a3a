package servicetest

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
)

// Patience is how long anything may take on a busy machine: a process to start or to stop, a page to be read.
const Patience = 30 * time.Second

// Process is a program that runs next to the test, in its own process.
type Process struct {
	Cmd               *exec.Cmd
	GRPC, HTTP, Debug string // host:port of each listener of the service. Empty for other programs
	Log               *Log   // standard output and standard error
	Ended             chan struct{}
	Err               error // how it ended; to be read after Ended is closed

	name  string
	known bool // the test has read how it ended, or caused it
}

// Start starts the service on free ports and returns when it listens. The name is for messages. cmd.Env is added to the
// settings that the service needs in a test. The service stops at the end of the test.
func Start(t testing.TB, name string, cmd *exec.Cmd) *Process {
	t.Helper()
	env := []string{ // the last value of a variable counts
		"PATH=" + os.Getenv("PATH"), "LOG_FORMAT=json", "GORACE=halt_on_error=1",
		"GRPC_HOST=127.0.0.1", "GRPC_PORT=0", "HOST=127.0.0.1", "PORT=0", "DEBUG_PORT=0",
	}
	cmd.Env = append(env, cmd.Env...)
	p := Run(t, name, cmd)
	line := p.Log.Wait(t, "listening")
	p.GRPC, p.HTTP, p.Debug = line["grpc"].(string), line["http"].(string), line["admin"].(string)
	return p
}

// Run starts any program, with the environment that cmd has. The name is for messages. The program stops at the end of
// the test, which fails if it ended with an error.
func Run(t testing.TB, name string, cmd *exec.Cmd) *Process {
	t.Helper()
	p := &Process{Cmd: cmd, Log: new(Log), Ended: make(chan struct{}), name: name}
	cmd.Stdout, cmd.Stderr = p.Log, p.Log
	cmd.SysProcAttr = redistest.EndsWithTest()
	if err := cmd.Start(); err != nil {
		t.Fatalf("start %s: %v", name, err)
	}
	go func() {
		p.Err = cmd.Wait()
		_ = p.Log.Close()
		close(p.Ended)
	}()
	t.Cleanup(func() {
		p.Stop(t)
		if t.Failed() {
			t.Logf("log of %s:\n%s", name, p.Log)
		}
	})
	return p
}

// RulesOf creates a directory of rule files: rules0.yaml, rules1.yaml and so on.
func RulesOf(t testing.TB, files ...string) (directory string) {
	t.Helper()
	directory = t.TempDir()
	for i, text := range files {
		if err := os.WriteFile(filepath.Join(directory, fmt.Sprintf("rules%d.yaml", i)), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return directory
}

// AwaitReplicas waits until the service has counted at least that many replicas in Redis.
func (p *Process) AwaitReplicas(t testing.TB, least int) {
	t.Helper()
	redistest.Eventually(t, p.name+" counts the replicas", func(context.Context) error {
		_, metrics := Get(t, "http://"+p.HTTP+"/metrics")
		counted := 0
		if _, after, found := strings.Cut(metrics, "\nratelimitd_replicas{source=\"counted\"} "); found {
			_, _ = fmt.Sscan(after, &counted)
		}
		if counted < least {
			return fmt.Errorf("it has counted %d, not %d", counted, least)
		}
		return nil
	})
}

// Running reports whether the process has not ended.
func (p *Process) Running() bool {
	select {
	case <-p.Ended:
		return false
	default:
		return true
	}
}

// Signal sends a signal to a running process.
func (p *Process) Signal(t testing.TB, s syscall.Signal) {
	t.Helper()
	if err := p.Cmd.Process.Signal(s); err != nil {
		t.Fatalf("send %v to %s: %v", s, p.name, err)
	}
}

// Stop ends the process with SIGTERM and waits for it. The test fails if the process ends with an error. Calling it
// again is fine.
func (p *Process) Stop(t testing.TB) {
	t.Helper()
	_ = p.Cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.Ended:
		if p.Err != nil && !p.known {
			t.Errorf("%s ended with %v:\n%s", p.name, p.Err, p.Log)
		}
	case <-time.After(Patience):
		_ = p.Cmd.Process.Kill()
		<-p.Ended
		t.Errorf("%s did not stop within %s and was killed:\n%s", p.name, Patience, p.Log)
	}
	p.known = true
}

// Kill ends the process immediately: calls in flight get no answer.
func (p *Process) Kill(t testing.TB) {
	t.Helper()
	_ = p.Cmd.Process.Kill()
	select {
	case <-p.Ended:
		if p.Err == nil {
			t.Errorf("%s was killed and ended well", p.name)
		}
		p.known = true
	case <-time.After(Patience):
		t.Fatalf("%s did not end on SIGKILL within %s", p.name, Patience)
	}
}

// NotAtMidnight waits for midnight UTC if it is near. The used hits of a daily limit, and the names of its counters,
// must not change during the test.
func NotAtMidnight() {
	const day, soon = 24 * time.Hour, 20 * time.Second
	now := time.Now()
	if left := now.Truncate(day).Add(day).Sub(now); left < soon {
		<-time.After(left)
	}
}

// Serve runs a server in this process until stop is called or the test ends. done receives the
// error that run returned, and is closed. If the test has not received an error from done, it fails with that error.
func Serve(t testing.TB, run func(context.Context) error) (stop context.CancelFunc, done <-chan error) {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- run(ctx); close(ended) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Errorf("the server ended with %v", err)
		}
	})
	return stop, ended
}
