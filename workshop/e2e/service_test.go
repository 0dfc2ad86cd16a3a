package e2e

import (
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
	"github.com/ratelimitd/ratelimitd/internal/testkit/servicetest"
)

// service is a ratelimitd process. A restart keeps the service.
type service struct {
	*servicetest.Process

	name string
	env  []string
	rest []string // arguments of the command line
	past answers  // answers of its earlier processes
}

// rules writes a directory of rule files and returns its path. Each text is one file.
func rules(t *testing.T, files ...string) string {
	t.Helper()
	dir := t.TempDir()
	for i, text := range files {
		writeRules(t, dir, i, text)
	}
	return dir
}

// writeRules replaces a rule file atomically.
func writeRules(t *testing.T, dir string, i int, text string) {
	t.Helper()
	replaceFile(t, filepath.Join(dir, strconv.Itoa(i)+".yaml"), strings.TrimSpace(text)+"\n")
}

// replaceFile replaces a file atomically.
func replaceFile(t *testing.T, path, text string) {
	t.Helper()
	next := filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".next") // names with a dot are not rule files
	if err := errors.Join(os.WriteFile(next, []byte(text), 0o600), os.Rename(next, path)); err != nil {
		t.Fatal(err)
	}
}

// startService starts ratelimitd with these rules and this environment ("NAME=value") and returns when it listens. It
// stops at the end of the test.
func startService(t *testing.T, name, rules string, env ...string) *service {
	t.Helper()
	needsEnvoy(t)
	servicetest.NotAtMidnight()
	s := &service{name: name, rest: []string{"--rules", rules}}
	s.env = append([]string{
		"GRPC_PORT=" + freePort(t),
		"REDIS_OP_TIMEOUT=5s", // a slow answer on a busy machine is not an error here
	}, env...)
	s.start(t)
	return s
}

// freePort returns a port without a listener.
func freePort(t *testing.T) string {
	t.Helper()
	_, port, _ := net.SplitHostPort(redistest.FreeAddr(t))
	return port
}

// start starts the process. It stops at the end of the test.
func (s *service) start(t *testing.T) {
	t.Helper()
	cmd := exec.Command(ratelimitd, append([]string{"serve"}, s.rest...)...)
	cmd.Env = slices.Clone(s.env)
	s.Process = servicetest.Start(t, s.name, cmd)
}

// restart stops the process and starts another one on the same gRPC port. The old one's answers are kept.
func (s *service) restart(t *testing.T) {
	t.Helper()
	s.end(t)
	s.start(t)
}

// end stops the process and keeps its answers: it reads the metrics until they are gone.
func (s *service) end(t *testing.T) {
	t.Helper()
	last := s.metrics(t)
	s.Signal(t, syscall.SIGTERM)
	await(t, s.name+" to end", func(ctx context.Context) error {
		if !s.Running() {
			return nil
		}
		if m, err := s.readMetrics(ctx); err == nil {
			last = m
		}
		return errors.New("it still runs")
	})
	s.Stop(t)
	s.past = s.past.plus(last.answers())
}

// metrics are the values of a service's metrics by name and labels, as /metrics writes them.
type metrics map[string]float64

// metrics reads all metrics.
func (s *service) metrics(t *testing.T) metrics {
	t.Helper()
	m, err := s.readMetrics(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func (s *service) readMetrics(ctx context.Context) (metrics, error) {
	text, err := page(ctx, s.HTTP, "/metrics")
	if err != nil {
		return nil, err
	}
	m := make(metrics)
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		cut := strings.LastIndexByte(line, ' ')
		v, err := strconv.ParseFloat(line[cut+1:], 64)
		if err != nil {
			return nil, err
		}
		m[line[:cut]] = v
	}
	return m, nil
}

// answers are a service's own counts of its answers to Envoy.
type answers struct{ OK, OverLimit, Failed int }

func (m metrics) answers() answers {
	a := answers{OK: int(m[`ratelimitd_decisions_total{code="OK"}`]), OverLimit: int(m[`ratelimitd_decisions_total{code="OVER_LIMIT"}`])}
	for name, v := range m {
		if strings.HasPrefix(name, "ratelimitd_requests_total{") && strings.Contains(name, `transport="grpc"`) && !strings.Contains(name, `code="OK"`) {
			a.Failed += int(v)
		}
	}
	return a
}

func (a answers) sum() int { return a.OK + a.OverLimit + a.Failed }

func (a answers) plus(b answers) answers {
	return answers{a.OK + b.OK, a.OverLimit + b.OverLimit, a.Failed + b.Failed}
}

// answered sums up the answers of several services, including the answers before restarts.
func answered(t *testing.T, services ...*service) answers {
	t.Helper()
	var sum answers
	for _, s := range services {
		sum = sum.plus(s.past).plus(s.metrics(t).answers())
	}
	return sum
}
