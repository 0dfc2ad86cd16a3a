package e2e

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"testing"
	"time"
)

// patience is how long anything may take to happen on a busy machine.
const patience = 30 * time.Second

// process is a program that runs beside the test and ends with it.
type process struct {
	name  string
	cmd   *exec.Cmd
	log   *output
	ended chan struct{} // closed when it has ended
	err   error         // how it ended; read after ended

	killed bool // by the test
}

// run starts a program. Its environment is env alone.
func run(t *testing.T, name string, log *output, env []string, program string, args ...string) *process {
	t.Helper()
	p := &process{name: name, cmd: exec.Command(program, args...), log: log, ended: make(chan struct{})}
	p.cmd.Env = append([]string{"PATH=" + os.Getenv("PATH")}, env...)
	p.cmd.Stdout, p.cmd.Stderr = log, log
	p.cmd.SysProcAttr = processAttributes()
	if err := p.cmd.Start(); err != nil {
		t.Fatalf("start %s: %v", name, err)
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.ended)
	}()
	return p
}

// running reports whether the process has not ended.
func (p *process) running() bool {
	select {
	case <-p.ended:
		return false
	default:
		return true
	}
}

// signal sends a signal to a running process.
func (p *process) signal(t *testing.T, s syscall.Signal) {
	t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		t.Fatalf("send %v to %s: %v", s, p.name, err)
	}
}

// stop ends the process with a signal and returns how it ended. A process that has already ended is fine.
func (p *process) stop() error {
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.ended:
		return p.err
	case <-time.After(patience):
		_ = p.cmd.Process.Kill()
		<-p.ended
		return errors.New("it did not end on SIGTERM and was killed")
	}
}

// output holds what processes have written so far.
type output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// await repeats ok until it returns nil, and fails the test if that takes too long.
func await(t *testing.T, what string, ok func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	var last error
	for {
		err := ok(ctx)
		if err == nil {
			return
		}
		if ctx.Err() == nil {
			last = err
		}
		select {
		case <-ctx.Done():
			t.Fatalf("%s: not within %v: %v", what, patience, last)
		case <-tick.C:
		}
	}
}
