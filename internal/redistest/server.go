package redistest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
)

// patience is how long a server may take to answer, or to end, on a busy machine.
const patience = 20 * time.Second

// Server is a redis-server process that keeps nothing on disk.
type Server struct {
	Addr   string // host:port
	Socket string // path of its unix socket
	Dir    string // its working folder, gone after the test

	binary string
	args   []string
	cmd    *exec.Cmd
	ended  chan struct{} // closed when the process has ended
	output output
}

// Start starts a redis-server on a free port of 127.0.0.1 and on a unix socket, and returns when it answers. args are
// appended to its command line ("--maxmemory", "1mb") and win over ours. It is killed when the test ends.
func Start(t testing.TB, args ...string) *Server {
	t.Helper()
	binary, err := exec.LookPath("redis-server")
	if err != nil {
		t.Fatalf("find redis-server: %v\nThis test needs a real one: apt-get install redis-server, brew install redis, or dnf install redis.", err)
	}
	// Not t.TempDir: a unix socket's path has room for about 100 bytes.
	dir, err := os.MkdirTemp("", "redis")
	if err != nil {
		t.Fatal(err)
	}
	s := &Server{Dir: dir, Socket: filepath.Join(dir, "redis.sock"), binary: binary, args: args}
	t.Cleanup(func() {
		s.end(syscall.SIGKILL)
		os.RemoveAll(dir)
		if t.Failed() {
			t.Logf("redis-server on %s said:\n%s", s.Addr, s.output.String())
		}
	})

	// Somebody else may take the port between its choice and redis' bind: then another is tried.
	for try := 1; ; try++ {
		if s.Addr, err = freeAddr(); err != nil {
			t.Fatal(err)
		}
		if err = s.run(); err == nil {
			return s
		}
		if try == 3 {
			t.Fatalf("start redis-server: %v", err)
		}
	}
}

// Client returns a client of the server that ends with the test.
func (s *Server) Client(t testing.TB) *goredis.Client {
	t.Helper()
	c := goredis.NewClient(&goredis.Options{Addr: s.Addr})
	t.Cleanup(func() { c.Close() })
	return c
}

// Kill ends the process at once; what it held is lost.
func (s *Server) Kill(t testing.TB) {
	t.Helper()
	s.end(syscall.SIGKILL)
}

// Stop asks the process to end and waits for it.
func (s *Server) Stop(t testing.TB) {
	t.Helper()
	if !s.end(syscall.SIGTERM) {
		t.Fatalf("redis-server on %s did not end on SIGTERM", s.Addr)
	}
}

// Restart starts the process anew on the same port, killing it first if it still runs, and returns when it answers.
func (s *Server) Restart(t testing.TB) {
	t.Helper()
	s.end(syscall.SIGKILL)
	if err := s.run(); err != nil {
		t.Fatalf("restart redis-server: %v", err)
	}
}

// Pause stops the process without ending it (SIGSTOP): connections stay open and nobody answers.
func (s *Server) Pause(t testing.TB) {
	t.Helper()
	s.signal(t, syscall.SIGSTOP)
}

// Continue lets a paused process go on.
func (s *Server) Continue(t testing.TB) {
	t.Helper()
	s.signal(t, syscall.SIGCONT)
}

func (s *Server) signal(t testing.TB, sig syscall.Signal) {
	t.Helper()
	if err := s.cmd.Process.Signal(sig); err != nil {
		t.Fatalf("send %v to redis-server: %v", sig, err)
	}
}

// end sends a signal that ends the process, and says whether it ended. A process that ended before is fine.
func (s *Server) end(sig syscall.Signal) bool {
	if s.cmd == nil {
		return true
	}
	_ = s.cmd.Process.Signal(sig)
	select {
	case <-s.ended:
		s.cmd = nil
		return true
	case <-time.After(patience):
		return false
	}
}

// run starts the process and waits until it answers.
func (s *Server) run() error {
	host, port, err := net.SplitHostPort(s.Addr)
	if err != nil {
		return err
	}
	args := append([]string{
		"--bind", host, "--port", port, "--unixsocket", s.Socket, "--dir", s.Dir, "--save", "", "--appendonly", "no",
	}, s.args...)
	cmd := exec.Command(s.binary, args...)
	cmd.Stdout, cmd.Stderr = &s.output, &s.output
	cmd.SysProcAttr = processAttributes()
	if err := cmd.Start(); err != nil {
		return err
	}
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(ended)
	}()
	s.cmd, s.ended = cmd, ended
	if err := s.awaitAnswer(); err != nil {
		s.end(syscall.SIGKILL)
		return err // what the process said is logged when the test ends
	}
	return nil
}

// awaitAnswer waits until the process answers a PING on its socket, which a stranger on its port would not.
func (s *Server) awaitAnswer() error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	var last error
	for {
		select {
		case <-s.ended:
			return errors.New("the process ended")
		case <-ctx.Done():
			return fmt.Errorf("no answer within %v: %w", patience, last)
		case <-tick.C:
			if last = ping(s.Socket); last == nil {
				return nil
			}
		}
	}
}

// ping asks over a bare connection. Any reply will do: a server that wants a password or a certificate is up too.
func ping(socket string) error {
	c, err := net.DialTimeout("unix", socket, time.Second)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(time.Second)); err != nil {
		return err
	}
	if _, err := c.Write([]byte("PING\r\n")); err != nil {
		return err
	}
	var reply [64]byte
	n, err := c.Read(reply[:])
	if err != nil {
		return err
	}
	if bytes.HasPrefix(reply[:n], []byte("-LOADING")) {
		return errors.New(string(reply[:n]))
	}
	return nil
}

func freeAddr() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	return "127.0.0.1:" + strconv.Itoa(l.Addr().(*net.TCPAddr).Port), nil
}

// output keeps what the process says, for the log of a test that failed.
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
