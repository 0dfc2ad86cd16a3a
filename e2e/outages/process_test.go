package outages

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
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	ratelimitv3common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/ratelimitd/ratelimitd/e2e/build"
)

// patience is how long a process may take to start or to stop on a busy machine.
const patience = 30 * time.Second

var ratelimitd string // the service, built from the current sources

// TestMain builds the service.
func TestMain(m *testing.M) {
	code, err := runTests(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, "outages:", err)
		code = 1
	}
	os.Exit(code)
}

func runTests(m *testing.M) (code int, err error) {
	dir, err := os.MkdirTemp("", "outages")
	if err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if ratelimitd, err = build.Ratelimitd(dir); err != nil {
		return 1, err
	}
	return m.Run(), nil
}

// process is a running service.
type process struct {
	cmd        *exec.Cmd
	grpc, http string // where it listens
	log        *logLines
	ended      chan error
}

// startProcess starts the service on free ports and waits until it listens. Its environment is env alone. It stops at the
// end of the test.
func startProcess(t *testing.T, env map[string]string, args ...string) *process {
	t.Helper()
	p := &process{cmd: exec.Command(ratelimitd, args...), log: new(logLines), ended: make(chan error, 1)}
	p.cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"), "LOG_FORMAT=json", "GORACE=halt_on_error=1",
		"GRPC_HOST=127.0.0.1", "GRPC_PORT=0", "HOST=127.0.0.1", "PORT=0", "DEBUG_HOST=127.0.0.1", "DEBUG_PORT=0",
	}
	for k, v := range env {
		p.cmd.Env = append(p.cmd.Env, k+"="+v) // the last value of a variable counts
	}
	listening := make(chan map[string]any, 1)
	stderr, err := p.cmd.StderrPipe()
	if err == nil {
		err = p.cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		p.log.read(stderr, listening)
		p.ended <- p.cmd.Wait()
	}()
	t.Cleanup(func() {
		p.stop(t)
		if t.Failed() {
			t.Logf("log of the service:\n%s", p.log)
		}
	})
	select {
	case line, ok := <-listening:
		if !ok {
			t.Fatalf("the service ended before it listened:\n%s", p.log)
		}
		p.grpc, p.http = line["grpc"].(string), line["http"].(string)
	case <-time.After(patience):
		t.Fatalf("the service did not listen within %s:\n%s", patience, p.log)
	}
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
}

// read stores the lines and sends the one with the addresses of the service. It closes the channel at the end.
func (l *logLines) read(r io.Reader, listening chan<- map[string]any) {
	defer close(listening)
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	for found := false; lines.Scan(); {
		l.mu.Lock()
		l.lines = append(l.lines, lines.Text())
		l.mu.Unlock()
		var fields map[string]any
		if !found && json.Unmarshal(lines.Bytes(), &fields) == nil && fields["@message"] == "listening" {
			found = true
			listening <- fields
		}
	}
}

func (l *logLines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.lines, "\n")
}

// rulesOf creates a folder of rule files.
func rulesOf(t *testing.T, files ...string) string {
	t.Helper()
	dir := t.TempDir()
	for i, text := range files {
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("rules%d.yaml", i)), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// ask makes a request with one descriptor of one entry.
func ask(domain, key, value string) *ratelimitv3.RateLimitRequest {
	entry := &ratelimitv3common.RateLimitDescriptor_Entry{Key: key, Value: value}
	return &ratelimitv3.RateLimitRequest{
		Domain:      domain,
		Descriptors: []*ratelimitv3common.RateLimitDescriptor{{Entries: []*ratelimitv3common.RateLimitDescriptor_Entry{entry}}},
	}
}

// header returns the value of a header of the answer.
func header(r *ratelimitv3.RateLimitResponse, key string) string {
	for _, h := range r.GetResponseHeadersToAdd() {
		if h.GetKey() == key {
			return h.GetValue()
		}
	}
	return "no header " + key
}

// get reads a page of the service.
func get(t *testing.T, url string) (code int, body string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(text)
}
