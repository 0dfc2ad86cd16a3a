package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// build builds the servers into dir.
func build(ctx context.Context, dir string) error {
	cmd := exec.CommandContext(ctx, "go", "build", "-o", dir+string(filepath.Separator),
		"github.com/ratelimitd/ratelimitd/cmd/ratelimitd", "github.com/ratelimitd/ratelimitd/workshop/bench/emptyserver")
	if output, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build the servers: %w\n%s", err, output)
	}
	return nil
}

// process is a running server.
type process struct {
	cmd    *exec.Cmd
	listen chan string   // receives the gRPC address once
	http   string        // HTTP address of ratelimitd, once the gRPC address is known
	ended  chan struct{} // closed when the process has ended

	mu   sync.Mutex
	last bytes.Buffer // first 16 KiB of the output, for error messages
}

const mostOutput = 16 << 10

// startProcess starts a program on the given cores, with a minimal environment.
func startProcess(binary string, args, env []string, dir string, on []int) (*process, error) {
	p := &process{cmd: exec.Command(binary, args...), listen: make(chan string, 1), ended: make(chan struct{})}
	p.cmd.Dir = dir
	p.cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + dir}, env...)
	read, write := io.Pipe()
	p.cmd.Stdout, p.cmd.Stderr = write, write
	if err := pinned(on, p.cmd.Start); err != nil {
		return nil, fmt.Errorf("start %s: %w", filepath.Base(binary), err)
	}
	go p.read(read)
	go func() {
		_ = p.cmd.Wait() // its output shows why it ended
		_ = write.Close()
		close(p.ended)
	}()
	return p, nil
}

// read reads the output of the process: a log in JSON, in which one line has the address.
func (p *process) read(from io.Reader) {
	lines := bufio.NewScanner(from)
	for lines.Scan() {
		p.mu.Lock()
		if p.last.Len() < mostOutput {
			p.last.Write(lines.Bytes())
			p.last.WriteByte('\n')
		}
		p.mu.Unlock()
		var line struct {
			Message string `json:"@message"` // log message of ratelimitd
			Msg     string // log message of the empty server
			GRPC    string
			HTTP    string
		}
		if json.Unmarshal(lines.Bytes(), &line) == nil && (line.Msg == "listening" || line.Message == "listening") &&
			line.GRPC != "" && p.http == "" {
			p.http = line.HTTP
			select {
			case p.listen <- line.GRPC:
			default:
			}
		}
	}
	_, _ = io.Copy(io.Discard, from) // a long line ends the scan, but must not block the process
}

func (p *process) written() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.last.String()
}

func (p *process) pid() int { return p.cmd.Process.Pid }

// listening waits until the process has logged its address.
func (p *process) listening(ctx context.Context, patience time.Duration) (string, error) {
	select {
	case address := <-p.listen:
		return address, nil
	case <-p.ended:
		return "", fmt.Errorf("it ended:\n%s", p.written())
	case <-time.After(patience):
		return "", fmt.Errorf("it did not listen within %v:\n%s", patience, p.written())
	case <-ctx.Done():
		return "", ctx.Err()
	}
}

func (p *process) stop() error {
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // fails if the process has exited
	select {
	case <-p.ended:
		return nil
	case <-time.After(15 * time.Second):
		if err := p.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
			return fmt.Errorf("kill %s: %w", filepath.Base(p.cmd.Path), err)
		}
		<-p.ended
		return nil
	}
}

// startRedis starts a redis-server without persistence on the load generator's cores, perhaps as a node of a cluster,
// and waits until it answers.
func startRedis(ctx context.Context, dir string, cores cores, cluster bool) (*process, string, error) {
	binary, err := exec.LookPath("redis-server")
	if err != nil {
		return nil, "", fmt.Errorf("find redis-server (workshop/scripts/install-redis installs it): %w", err)
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		return nil, "", fmt.Errorf("make a directory for Redis: %w", err)
	}
	address, port, err := freePort()
	if err != nil {
		return nil, "", err
	}
	args := []string{"--bind", "127.0.0.1", "--port", port, "--save", "", "--appendonly", "no", "--dir", dir}
	if cluster {
		args = append(args, "--cluster-enabled", "yes")
	}
	p, err := startProcess(binary, args, nil, dir, cores.load)
	if err != nil {
		return nil, "", err
	}
	if err := p.answers(ctx, func() bool { return ping(address) == nil }); err != nil {
		return nil, "", errors.Join(err, p.stop())
	}
	return p, address, nil
}

// answers waits until it returns true, or the process has ended.
func (p *process) answers(ctx context.Context, it func() bool) error {
	deadline := time.After(60 * time.Second)
	retry := time.NewTicker(20 * time.Millisecond)
	defer retry.Stop()
	for !it() {
		select {
		case <-p.ended:
			return fmt.Errorf("%s ended:\n%s", filepath.Base(p.cmd.Path), p.written())
		case <-ctx.Done():
			return ctx.Err()
		case <-deadline:
			return fmt.Errorf("%s does not answer:\n%s", filepath.Base(p.cmd.Path), p.written())
		case <-retry.C:
		}
	}
	return nil
}

// freePort finds a port that is free, and so low that the nodes of a cluster can reach each other 10,000 above it.
func freePort() (address, port string, err error) {
	for {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return "", "", fmt.Errorf("find a free port: %w", err)
		}
		defer l.Close() // only when we return: while it is open, the next attempt gets another port
		at := l.Addr().(*net.TCPAddr)
		if at.Port+10_000 < 1<<16 {
			return at.String(), strconv.Itoa(at.Port), nil
		}
	}
}

// joinCluster creates a cluster of empty nodes, and waits until all of them serve.
func joinCluster(ctx context.Context, nodes []store) error {
	const slots = 16_384
	host, port, err := net.SplitHostPort(nodes[0].address)
	if err != nil {
		return fmt.Errorf("join the cluster: %w", err)
	}
	for i, n := range nodes {
		for _, command := range []string{
			fmt.Sprintf("CLUSTER ADDSLOTSRANGE %d %d", slots*i/len(nodes), slots*(i+1)/len(nodes)-1),
			fmt.Sprintf("CLUSTER MEET %s %s", host, port),
		} {
			if answer, err := ask(n.address, command); err != nil || answer != "OK" {
				return fmt.Errorf("join the cluster: %s: %q, %w", command, answer, err)
			}
		}
	}
	for _, n := range nodes {
		for state := ""; !strings.Contains(state, "cluster_state:ok") ||
			!strings.Contains(state, fmt.Sprintf("cluster_known_nodes:%d", len(nodes))); {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(20 * time.Millisecond):
			}
			if state, err = ask(n.address, "CLUSTER INFO"); err != nil {
				return fmt.Errorf("join the cluster: %w", err)
			}
		}
	}
	return nil
}

func ping(address string) error {
	c, err := net.DialTimeout("tcp", address, time.Second)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(time.Second)); err != nil {
		return err
	}
	if _, err := io.WriteString(c, "PING\r\n"); err != nil {
		return err
	}
	answer, err := bufio.NewReader(c).ReadString('\n')
	if err == nil && answer != "+PONG\r\n" {
		err = fmt.Errorf("redis answers %q", answer)
	}
	return err
}
