package redistest

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
)

// patience is how long a server may take to answer or to end, and a topology to agree, on a busy machine.
const patience = 30 * time.Second

// Program is the variable that names the server that tests start, if that is not redis-server: Valkey, or another
// version of Redis.
const Program = "RATELIMITD_TEST_REDIS_SERVER"

// Setup are the settings of processes. The zero value is plain TCP without a password.
type Setup struct {
	TLS              *TLS     // nil for unencrypted TCP. The unix sockets are never encrypted
	Password         string   // password of the default user. Default: none
	SentinelPassword string   // password of the sentinels' default user. Default: none
	env              []string // environment of each redis-server, but not of sentinels, in addition to the test's
	// added to the command line of each redis-server, but not of sentinels; they override ours
	Args []string
}

// Server is one process. It keeps no data on disk: the data is lost when it ends.
type Server struct {
	Addr   string // host:port, encrypted if Setup.TLS is set
	Socket string // path of its unix socket
	Dir    string // its working directory, gone after the test

	role     role
	password string
	binary   string
	args     func(port string) []string // makes the command line, with the port that was chosen
	env      []string                   // environment in addition to the test's
	admin    *goredis.Client            // connected to the unix socket
	cmd      *exec.Cmd                  // nil while it does not run
	paused   bool
	dies     func(testing.TB) // called before a test ends or stops it; may be nil
	ended    chan struct{}    // closed when the process has ended
	output   output
}

type role string

const (
	single   role = "redis-server"
	node     role = "node of a cluster"
	sentinel role = "sentinel"
)

// Start starts a redis-server on a free port of 127.0.0.1 and on a unix socket, and returns when it answers. args are
// appended to its command line ("--maxmemory", "1mb") and override ours. It is killed when the test ends.
func Start(t testing.TB, args ...string) *Server {
	t.Helper()
	return StartWith(t, Setup{Args: args})
}

// StartWith is Start with a Setup.
func StartWith(t testing.TB, setup Setup) *Server {
	t.Helper()
	return start(t, single, setup.Password, func(s *Server, port string) []string {
		s.env = setup.env
		return setup.server(port)
	})
}

// server is the command line of a redis-server, but for where its files are.
func (s *Setup) server(port string) []string {
	args := []string{"--save", "", "--appendonly", "no", "--repl-diskless-sync-delay", "0"}
	if s.TLS == nil {
		args = append(args, "--port", port)
	} else {
		for _, c := range s.TLS.config(port) {
			args = append(args, "--"+c[0], c[1])
		}
	}
	if s.Password != "" {
		args = append(args, "--requirepass", s.Password, "--masterauth", s.Password)
	}
	return append(args, s.Args...)
}

// noTLS matches the error of a Valkey that was built without TLS and is asked for it.
var noTLS = regexp.MustCompile(`Failed finding TLS support|Missing implement of connection type tls`)

// start starts a process and returns when it answers.
func start(t testing.TB, r role, password string, args func(s *Server, port string) []string) *Server {
	t.Helper()
	if testing.Short() {
		t.Skip("NOT RUN with -short: it needs redis-server")
	}
	program := cmp.Or(os.Getenv(Program), "redis-server")
	binary, err := exec.LookPath(program)
	if err != nil && program != "redis-server" {
		t.Fatalf("%s: %v", Program, err)
	}
	if err != nil {
		if os.Getenv("CI") != "" {
			t.Fatalf("find redis-server: %v. workshop/scripts/install-redis gets it", err)
		}
		t.Skip("NOT RUN without redis-server: workshop/scripts/install-redis gets it")
	}
	// Not t.TempDir: a unix socket's path has room for about 100 bytes.
	dir, err := os.MkdirTemp("", "redis")
	if err != nil {
		t.Fatal(err)
	}
	s := &Server{Dir: dir, Socket: filepath.Join(dir, "redis.sock"), role: r, password: password, binary: binary}
	s.args = func(port string) []string { return args(s, port) }
	s.admin = goredis.NewClient(&goredis.Options{Network: "unix", Addr: s.Socket, Password: password,
		DisableIdentity: true, Protocol: 2})
	t.Cleanup(func() {
		s.end(syscall.SIGKILL)
		_ = s.admin.Close()
		_ = os.RemoveAll(dir)
		if t.Failed() {
			t.Logf("output of the %s on %s:\n%s", s.role, s.Addr, s.output.String())
		}
	})

	// Another process may take the port before redis binds it: then another one is tried.
	for try := 1; ; try++ {
		s.Addr = freeAddr(t, r == node)
		if err = s.run(); err == nil {
			return s
		}
		if program != "redis-server" && noTLS.MatchString(s.output.String()) {
			t.Skipf("NOT RUN without TLS, which %s was built without", program)
		}
		if try == 5 {
			t.Fatalf("start %s: %v", r, err)
		}
	}
}

// Client returns a client of the server that ends with the test. It connects to the unix socket, as the default user if
// the server's Setup has a password.
func (s *Server) Client(t testing.TB) *goredis.Client {
	t.Helper()
	c := goredis.NewClient(&goredis.Options{Network: "unix", Addr: s.Socket, Password: s.password})
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// Calls returns how often the server has carried out a command since it started, for example "evalsha".
func (s *Server) Calls(t testing.TB, command string) (calls int) {
	t.Helper()
	stats, err := s.Client(t).Info(t.Context(), "commandstats").Result()
	if err != nil {
		t.Fatal(err)
	}
	if _, after, ok := strings.Cut(stats, "cmdstat_"+command+":calls="); ok {
		if _, err := fmt.Sscanf(after, "%d", &calls); err != nil {
			t.Fatal(err)
		}
	}
	return calls
}

// Kill ends the process immediately; its data is lost.
func (s *Server) Kill(t testing.TB) {
	t.Helper()
	s.died(t)
	if !s.end(syscall.SIGKILL) {
		t.Fatalf("the %s on %s did not end on SIGKILL", s.role, s.Addr)
	}
}

// Stop ends the process with SIGTERM and waits for it.
func (s *Server) Stop(t testing.TB) {
	t.Helper()
	s.died(t)
	if !s.end(syscall.SIGTERM) {
		t.Fatalf("the %s on %s did not end on SIGTERM", s.role, s.Addr)
	}
}

// Restart starts the process again on the same port, killing it first if it still runs, and returns when it answers.
func (s *Server) Restart(t testing.TB) {
	t.Helper()
	s.Kill(t)
	if err := s.run(); err != nil {
		t.Fatalf("restart %s: %v", s.role, err)
	}
}

// Pause stops the process without ending it (SIGSTOP): connections stay open and get no answer.
func (s *Server) Pause(t testing.TB) {
	t.Helper()
	s.died(t)
	s.signal(t, syscall.SIGSTOP)
	s.paused = true
}

// Continue lets a paused process continue.
func (s *Server) Continue(t testing.TB) {
	t.Helper()
	s.signal(t, syscall.SIGCONT)
	s.paused = false
}

func (s *Server) died(t testing.TB) {
	t.Helper()
	if s.dies != nil {
		s.dies(t)
	}
}

func (s *Server) signal(t testing.TB, sig syscall.Signal) {
	t.Helper()
	if s.cmd == nil {
		t.Fatalf("send %v to the %s on %s: it does not run", sig, s.role, s.Addr)
	}
	if err := s.cmd.Process.Signal(sig); err != nil {
		t.Fatalf("send %v to the %s on %s: %v", sig, s.role, s.Addr, err)
	}
}

// up reports whether the process was started and neither killed nor paused.
func (s *Server) up() bool { return s.cmd != nil && !s.paused }

// end sends a signal that ends the process, and reports whether it has ended. It may have ended before.
func (s *Server) end(sig syscall.Signal) bool {
	if s.cmd == nil {
		return true
	}
	_ = s.cmd.Process.Signal(sig)
	select {
	case <-s.ended:
		s.cmd, s.paused = nil, false
		return true
	case <-time.After(patience):
		return false
	}
}

// run starts the process and waits until it answers.
func (s *Server) run() error {
	_, port, err := net.SplitHostPort(s.Addr)
	if err != nil {
		return err
	}
	cmd := exec.Command(s.binary, append(s.args(port), "--bind", host, "--unixsocket", s.Socket, "--dir", s.Dir)...)
	cmd.Stdout, cmd.Stderr = &s.output, &s.output
	if len(s.env) > 0 {
		cmd.Env = append(os.Environ(), s.env...)
	}
	cmd.SysProcAttr = EndsWithTest()
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
		return err // the output of the process is logged when the test ends
	}
	return nil
}

// awaitAnswer waits until the process answers a PING on its unix socket. Its port might belong to another process.
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

// ping sends PING over a plain connection. Any reply is enough: a server that wants a password is up too.
func ping(socket string) error {
	c, err := net.DialTimeout("unix", socket, time.Second)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
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

// await calls ok until it returns nil, and ends the test if that takes too long.
func await(t testing.TB, what string, ok func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	var last error
	for {
		if err := ok(ctx); err == nil {
			return
		} else if ctx.Err() == nil {
			last = err
		}
		select {
		case <-ctx.Done():
			t.Fatalf("%s: not within %v: %v", what, patience, last)
		case <-tick.C:
		}
	}
}

// do sends a command and ends the test if it fails.
func (s *Server) do(t testing.TB, args ...any) any {
	t.Helper()
	v, err := s.admin.Do(t.Context(), args...).Result()
	if err != nil {
		t.Fatalf("%v on the %s on %s: %v", args, s.role, s.Addr, err)
	}
	return v
}

// field returns one line of an INFO-like answer.
func (s *Server) field(ctx context.Context, name string, command ...any) (string, error) {
	text, err := s.admin.Do(ctx, command...).Text()
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(text) {
		if v, ok := strings.CutPrefix(strings.TrimSpace(line), name+":"); ok {
			return v, nil
		}
	}
	return "", fmt.Errorf("the %s on %s does not report %s", s.role, s.Addr, name)
}

// expect compares one line of an INFO-like answer.
func (s *Server) expect(ctx context.Context, name, want string, command ...any) error {
	got, err := s.field(ctx, name, command...)
	if err != nil {
		return err
	}
	if got != want {
		return fmt.Errorf("the %s on %s reports %s:%s, not %s", s.role, s.Addr, name, got, want)
	}
	return nil
}

// output keeps the output of the process, for the log of a test that failed.
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
