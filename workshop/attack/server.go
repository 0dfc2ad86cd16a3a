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
	cmd := exec.CommandContext(ctx, "go", "build", "-o", dir+string(filepath.Separator), "github.com/ratelimitd/ratelimitd/cmd/ratelimitd")
	if output, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build the server: %w\n%s", err, output)
	}
	return nil
}

// server is a running ratelimitd.
type server struct {
	cmd   *exec.Cmd
	ended chan struct{}

	grpc, http string // where it listens

	peak   atomic.Int64 // highest RSS in bytes
	kept   atomic.Pointer[kept]
	stopIt context.CancelFunc
}

// kept is what the server's metrics said when its live heap was largest.
type kept struct {
	live    int64 // bytes of heap that the last garbage collection has found in use, and of stacks
	clients int64 // bytes that it says it keeps for clients
}

// victimRules are the rules for well-behaved clients.
const victimRules = `domain: victim
descriptors:
  - {key: key, rate_limit: {unit: day, requests_per_unit: 1000000000}}
`

// start starts a server on free ports of loopback and waits until it listens.
func start(ctx context.Context, binary, dir, rules, transport string, args []string) (*server, error) {
	folder := filepath.Join(dir, "rules")
	if err := errors.Join(os.RemoveAll(folder), os.Mkdir(folder, 0o755),
		os.WriteFile(filepath.Join(folder, "attack.yaml"), []byte(rules), 0o600), os.WriteFile(filepath.Join(folder, "victim.yaml"), []byte(victimRules), 0o600)); err != nil {
		return nil, fmt.Errorf("write rules: %w", err)
	}
	s := &server{ended: make(chan struct{})}
	s.cmd = exec.Command(binary, append([]string{"serve", "--rules", folder}, args...)...)
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
	type addresses struct{ GRPC, HTTP string }
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
		s.grpc, s.http = at.GRPC, at.HTTP
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
	go s.watchMetrics(watch)
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

// watch keeps the highest RSS.
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

// watchMetrics keeps what the metrics say when the live heap is largest.
func (s *server) watchMetrics(ctx context.Context) {
	client := &http.Client{Timeout: time.Second}
	for ctx.Err() == nil {
		if now, err := s.metrics(ctx, client); err == nil {
			if most := s.kept.Load(); most == nil || now.live > most.live {
				s.kept.Store(now)
			}
		}
		wait(ctx, 100*time.Millisecond)
	}
}

// metrics reads the server's metrics.
func (s *server) metrics(ctx context.Context, client *http.Client) (*kept, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+s.http+"/metrics", nil)
	if err != nil {
		return nil, fmt.Errorf("ask for metrics: %w", err)
	}
	resp, err := client.Do(r)
	if err != nil {
		return nil, fmt.Errorf("read metrics: %w", err)
	}
	defer resp.Body.Close()
	var k kept
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
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
		return nil, errors.New("read metrics: they do not show the heap")
	}
	return &k, nil
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
	_ = s.cmd.Process.Signal(syscall.SIGTERM) // it may have ended
	select {
	case <-s.ended:
		return nil
	case <-time.After(15 * time.Second):
		_ = s.cmd.Process.Kill()
		<-s.ended
		return errors.New("the server did not stop within 15 s")
	}
}
