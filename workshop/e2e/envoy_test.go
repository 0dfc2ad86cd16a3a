package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/testkit/servicetest"
)

// envoy is a running Envoy.
type envoy struct {
	*servicetest.Process
	admin string            // host:port of its admin pages
	ports map[string]string // host:port of each listener
}

// startEnvoy starts Envoy and returns when it is ready. Envoy stops at the end of the test.
func startEnvoy(t *testing.T, b bootstrap) *envoy {
	t.Helper()
	if b.Name == "" {
		b.Name = "envoy"
	}
	return startEnvoyWith(t, b.Name, b.write(t, t.TempDir()), b.Env, b.Args)
}

// startEnvoyOn starts Envoy with a complete bootstrap file.
func startEnvoyOn(t *testing.T, name, config string) *envoy {
	t.Helper()
	return startEnvoyWith(t, name, config, nil, nil)
}

func startEnvoyWith(t *testing.T, name, config string, env, args []string) *envoy {
	t.Helper()
	needsEnvoy(t)
	adminFile := filepath.Join(t.TempDir(), "admin")
	e := &envoy{ports: make(map[string]string)}
	if !slices.Contains(args, "--concurrency") {
		args = append(args, "--concurrency", "1")
	}
	if !slices.Contains(args, "--restart-epoch") {
		args = append(args, "--disable-hot-restart")
	}
	cmd := exec.Command(envoyBinary, append([]string{"-c", config,
		"--admin-address-path", adminFile, "-l", "warning", "--file-flush-interval-msec", "100"}, args...)...)
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH")}, env...)
	e.Process = servicetest.Run(t, name, cmd)
	await(t, name+" to be ready", func(ctx context.Context) error {
		if !e.Running() {
			text, _ := os.ReadFile(config)
			t.Fatalf("%s did not start: %v\nIts configuration:\n%s", name, e.Err, text)
		}
		address, err := os.ReadFile(adminFile)
		if err != nil {
			return err
		}
		e.admin = string(address)
		_, err = e.page(ctx, "/ready")
		return err
	})
	e.readPorts(t)
	return e
}

// readPorts reads the addresses of the listeners.
func (e *envoy) readPorts(t *testing.T) {
	t.Helper()
	text, err := e.page(t.Context(), "/listeners?format=json")
	if err != nil {
		t.Fatal(err)
	}
	var all struct {
		Statuses []struct {
			Name    string `json:"name"`
			Address struct {
				Socket struct {
					Address string `json:"address"`
					Port    int    `json:"port_value"`
				} `json:"socket_address"`
			} `json:"local_address"`
		} `json:"listener_statuses"`
	}
	if err := json.Unmarshal([]byte(text), &all); err != nil {
		t.Fatalf("read Envoy's listeners: %v\n%s", err, text)
	}
	for _, s := range all.Statuses {
		e.ports[s.Name] = net.JoinHostPort(s.Address.Socket.Address, strconv.Itoa(s.Address.Socket.Port))
	}
}

// page reads an admin page.
func (e *envoy) page(ctx context.Context, path string) (string, error) {
	return page(ctx, e.admin, path)
}

func page(ctx context.Context, address, path string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+path, nil)
	if err != nil {
		return "", err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		return "", err
	}
	if res.StatusCode != http.StatusOK {
		return "", fmt.Errorf("%s answered %s: %s", path, res.Status, text)
	}
	return string(text), nil
}

// verdicts are the results that Envoy's rate limit filter counted.
type verdicts struct{ OK, OverLimit, Error, FailureModeAllowed int }

func (v verdicts) sum() int { return v.OK + v.OverLimit + v.Error }

func (v verdicts) plus(w verdicts) verdicts {
	return verdicts{v.OK + w.OK, v.OverLimit + w.OverLimit, v.Error + w.Error, v.FailureModeAllowed + w.FailureModeAllowed}
}

func (v verdicts) minus(w verdicts) verdicts {
	return verdicts{v.OK - w.OK, v.OverLimit - w.OverLimit, v.Error - w.Error, v.FailureModeAllowed - w.FailureModeAllowed}
}

// verdicts reads the counts of one listener. "" stands for filters without a stat_prefix.
func (e *envoy) verdicts(t *testing.T, listener string) verdicts {
	t.Helper()
	stats := e.stats(t, "ratelimit")
	if listener != "" {
		listener += "."
	}
	of := func(name string) int { return stats["cluster.upstream.ratelimit."+listener+name] }
	return verdicts{of("ok"), of("over_limit"), of("error"), of("failure_mode_allowed")}
}

// awaitHealthy waits until Envoy considers n members of a cluster healthy.
func (e *envoy) awaitHealthy(t *testing.T, cluster string, n int) {
	t.Helper()
	await(t, fmt.Sprintf("%d healthy members of %s", n, cluster), func(context.Context) error {
		if got := e.stats(t, "membership_healthy")["cluster."+cluster+".membership_healthy"]; got != n {
			return fmt.Errorf("%d are", got)
		}
		return nil
	})
}

// stats reads Envoy's counters and gauges whose names match an expression. Counters that never counted anything are
// absent.
func (e *envoy) stats(t *testing.T, filter string) map[string]int {
	t.Helper()
	text, err := e.page(t.Context(), "/stats?type=Counters&filter="+filter)
	if err != nil {
		t.Fatal(err)
	}
	gauges, err := e.page(t.Context(), "/stats?type=Gauges&filter="+filter)
	if err != nil {
		t.Fatal(err)
	}
	stats := make(map[string]int)
	for line := range strings.Lines(text + gauges) {
		name, value, ok := strings.Cut(strings.TrimSpace(line), ": ")
		if !ok {
			continue
		}
		n, err := strconv.Atoi(value)
		if err != nil {
			t.Fatalf("read Envoy's statistics: %q", line)
		}
		stats[name] = n
	}
	return stats
}
