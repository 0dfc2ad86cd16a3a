package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

// build builds the server into a directory.
func build(ctx context.Context, dir string) error {
	cmd := exec.CommandContext(ctx, "go", "build", "-o", dir+string(filepath.Separator),
		"github.com/ratelimitd/ratelimitd/cmd/ratelimitd")
	if output, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build the server: %w\n%s", err, output)
	}
	return nil
}

// server is a running ratelimitd.
type server struct {
	cmd   *exec.Cmd
	ended chan struct{}

	grpc, http, debug string // where it listens

	peak   atomic.Int64 // highest RSS in bytes
	stopIt context.CancelFunc
}

// kept is the server's memory after a garbage collection, from its metrics.
type kept struct {
	live    int64 // bytes of heap that are in use, and of stacks
	clients int64 // bytes that the server accounts to clients
}

// victimRules are the rules for well-behaved clients.
const victimRules = `domain: victim
descriptors:
  - {key: key, rate_limit: {unit: day, requests_per_unit: 1000000000}}
`

// start starts a server on free ports of loopback and waits until it listens.
func start(ctx context.Context, binary, dir, rules string, args []string) (*server, error) {
	directory := filepath.Join(dir, "rules")
	if err := errors.Join(os.RemoveAll(directory), os.Mkdir(directory, 0o755),
		os.WriteFile(filepath.Join(directory, "attack.yaml"), []byte(rules), 0o600),
		os.WriteFile(filepath.Join(directory, "victim.yaml"), []byte(victimRules), 0o600)); err != nil {
		return nil, fmt.Errorf("write rules: %w", err)
	}
	s := &server{ended: make(chan struct{})}
	s.cmd = exec.Command(binary, append([]string{"serve", "--rules", directory}, args...)...)
	s.cmd.Dir = dir
	s.cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + dir, "LOG_FORMAT=json",
		"GRPC_HOST=127.0.0.1", "HOST=127.0.0.1", "GRPC_PORT=0", "PORT=0", "DEBUG_PORT=0",
	}
	read, write := io.Pipe()
	s.cmd.Stdout, s.cmd.Stderr = write, write
	if err := s.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the server: %w", err)
	}
	type addresses struct{ GRPC, HTTP, Admin string }
	listening := make(chan addresses, 1)
	var said strings.Builder
	go func() {
		lines := bufio.NewScanner(read)
		for lines.Scan() {
			if said.Len() < 16<<10 {
				said.WriteString(lines.Text() + "\n")
			}
			var line struct {
				Message string `json:"@message"`
				addresses
			}
			if json.Unmarshal(lines.Bytes(), &line) == nil && line.Message == "listening" {
				select {
				case listening <- line.addresses:
				default:
				}
			}
		}
		_, _ = io.Copy(io.Discard, read)
	}()
	go func() {
		_ = s.cmd.Wait()
		_ = write.Close()
		close(s.ended)
	}()
	select {
	case at := <-listening:
		s.grpc, s.http, s.debug = at.GRPC, at.HTTP, at.Admin
	case <-s.ended:
		return nil, fmt.Errorf("the server ended:\n%s", said.String())
	case <-time.After(30 * time.Second):
		return nil, errors.Join(errors.New("the server does not listen within 30 s"), s.stop())
	case <-ctx.Done():
		return nil, errors.Join(ctx.Err(), s.stop())
	}
	watch, cancel := context.WithCancel(ctx)
	s.stopIt = cancel
	go s.watch(watch)
	return s, nil
}

// rss is the server's resident memory in bytes.
func (s *server) rss() int64 {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", s.cmd.Process.Pid))
	fields := strings.Fields(string(b))
	if err != nil || len(fields) < 2 {
		return 0
	}
	pages, _ := strconv.ParseInt(fields[1], 10, 64)
	return pages * int64(os.Getpagesize())
}

// watch records the highest RSS.
func (s *server) watch(ctx context.Context) {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			if now := s.rss(); now > s.peak.Load() {
				s.peak.Store(now)
			}
		}
	}
}

// settle waits until the server has processed its backlog: until it uses less than a fifth of a processor, as it does
// for the victim alone.
func (s *server) settle(ctx context.Context) {
	const step, ticks = 250 * time.Millisecond, 100 // the kernel counts CPU time in 100 ticks per second
	used := func() (n int64) {
		b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", s.cmd.Process.Pid))
		_, rest, _ := strings.Cut(string(b), ") ")
		for i, field := range strings.Fields(rest) {
			if i == 11 || i == 12 { // utime and stime
				more, _ := strconv.ParseInt(field, 10, 64)
				n += more
			}
		}
		return n
	}
	for range 20 {
		before := used()
		wait(ctx, step)
		if used()-before < ticks/4/5 {
			return
		}
	}
}

// measure runs a garbage collection and returns the memory in use afterwards. It writes the server's heap profile to
// profile, unless that is nil.
func (s *server) measure(ctx context.Context, profile io.Writer) (*kept, error) {
	if profile == nil {
		profile = io.Discard
	}
	if err := s.get(ctx, s.debug, "/debug/pprof/heap?gc=1", func(r io.Reader) error {
		_, err := io.Copy(profile, r)
		return err
	}); err != nil {
		return nil, err
	}
	var k kept
	err := s.get(ctx, s.http, "/metrics", func(r io.Reader) error {
		for lines := bufio.NewScanner(r); lines.Scan(); {
			name, value, _ := strings.Cut(lines.Text(), " ")
			n, err := strconv.ParseFloat(value, 64)
			switch {
			case err != nil:
			case name == "go_gc_heap_live_bytes", name == "go_memstats_stack_inuse_bytes":
				k.live += int64(n)
			case strings.HasPrefix(name, "ratelimitd_client_bytes{"):
				k.clients += int64(n)
			}
		}
		if k.live == 0 {
			return errors.New("they do not show the heap")
		}
		return nil
	})
	return &k, err
}

// get reads a page of the server.
func (s *server) get(ctx context.Context, at, path string, read func(io.Reader) error) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+at+path, nil)
	if err != nil {
		return fmt.Errorf("ask for %s: %w", path, err)
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	defer resp.Body.Close()
	if err := read(resp.Body); err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	return nil
}

func (s *server) alive() bool {
	select {
	case <-s.ended:
		return false
	default:
		return true
	}
}

// stop ends the server. It returns an error if the server had to be killed; its stop timeout is 10 s.
func (s *server) stop() error {
	if s.stopIt != nil {
		s.stopIt()
	}
	_ = s.cmd.Process.Signal(syscall.SIGTERM) // fails if the process has exited
	select {
	case <-s.ended:
		return nil
	case <-time.After(15 * time.Second):
		_ = s.cmd.Process.Kill()
		<-s.ended
		return errors.New("the server did not stop within 15 s")
	}
}
