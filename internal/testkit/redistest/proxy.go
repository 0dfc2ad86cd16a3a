package redistest

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// Twemproxy starts a twemproxy (nutcracker) in front of servers, and returns its address when it answers. It routes by
// key.
func Twemproxy(t testing.TB, servers ...*Server) string {
	t.Helper()
	address := FreeAddr(t)
	TwemproxyAt(t, address, servers...)
	return address
}

// TwemproxyAt starts a twemproxy at an address.
func TwemproxyAt(t testing.TB, address string, servers ...*Server) {
	t.Helper()
	binary, statistics := program(t, "nutcracker", "workshop/scripts/install-twemproxy"), FreeAddr(t)
	var b strings.Builder
	fmt.Fprintf(&b,
		"test:\n  listen: %s\n  redis: true\n  hash: fnv1a_64\n  distribution: ketama\n  auto_eject_hosts: false\n  "+
			"timeout: 10000\n  servers:\n", address)
	for _, s := range servers {
		fmt.Fprintf(&b, "  - %s:1\n", s.Addr)
	}
	config := filepath.Join(t.TempDir(), "twemproxy.yaml")
	if err := os.WriteFile(config, []byte(b.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	host, port, _ := net.SplitHostPort(statistics)
	// not the default paths of the log and the pid file, where only root may write
	pid := filepath.Join(t.TempDir(), "pid")
	runProxy(t, address, exec.Command(binary, "-c", config, "-a", host, "-s", port, "-o", "/dev/stderr", "-p", pid))
}

// RedisProxy starts an Envoy with its redis_proxy in front of servers, and returns its address when it answers. It
// routes by key.
func RedisProxy(t testing.TB, servers ...*Server) string {
	t.Helper()
	binary := os.Getenv("E2E_ENVOY")
	if binary == "" {
		binary = program(t, "envoy", "workshop/scripts/install-envoy")
	}
	address := FreeAddr(t)
	socket := func(address string) string {
		host, port, _ := net.SplitHostPort(address)
		return fmt.Sprintf(`{"address": {"socket_address": {"address": %q, "port_value": %s}}}`, host, port)
	}
	var upstreams []string
	for _, s := range servers {
		upstreams = append(upstreams, `{"endpoint": `+socket(s.Addr)+`}`)
	}
	config := filepath.Join(t.TempDir(), "envoy.json")
	text := fmt.Sprintf(`{"static_resources": {
  "listeners": [{"address": %s, "filter_chains": [{"filters": [
      {"name": "envoy.filters.network.redis_proxy", "typed_config": {
    "@type": "type.googleapis.com/envoy.extensions.filters.network.redis_proxy.v3.RedisProxy", "stat_prefix": "redis",
    "settings": {"op_timeout": "10s"}, "prefix_routes": {"catch_all_route": {"cluster": "redis"}}}}]}]}],
  "clusters": [{"name": "redis", "type": "STATIC", "lb_policy": "MAGLEV",
      "load_assignment": {"cluster_name": "redis", "endpoints": [
    {"lb_endpoints": [%s]}]}}]}}`,
		strings.TrimSuffix(strings.TrimPrefix(socket(address), `{"address": `), `}`), strings.Join(upstreams, ", "))
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	runProxy(t, address, exec.Command(binary, "-c", config, "--concurrency", "1", "--disable-hot-restart", "-l",
		"warning"))
	return address
}

// program finds a program of a proxy in PATH, or where its script installs it.
func program(t testing.TB, name, script string) string {
	t.Helper()
	if testing.Short() {
		t.Skipf("NOT RUN with -short: it needs %s", name)
	}
	if binary, err := exec.LookPath(name); err == nil {
		return binary
	}
	for _, dir := range []string{"../../..", "../..", ".."} { // tests run in the directory of their package
		found, _ := filepath.Glob(filepath.Join(dir, ".tools", name, "*", name, "_bin", name))
		for _, binary := range found {
			if absolute, err := filepath.Abs(binary); err == nil {
				return absolute
			}
		}
	}
	if os.Getenv("CI") != "" {
		t.Fatalf("find %s: %s gets it", name, script)
	}
	t.Skipf("NOT RUN without %s: %s gets it", name, script)
	return ""
}

// runProxy starts a proxy, and returns when it answers.
func runProxy(t testing.TB, address string, cmd *exec.Cmd) {
	t.Helper()
	var said output
	cmd.Stdout, cmd.Stderr, cmd.SysProcAttr = &said, &said, EndsWithTest()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(ended)
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-ended
		if t.Failed() {
			t.Logf("output of %s on %s:\n%s", filepath.Base(cmd.Path), address, said.String())
		}
	})
	until := time.Now().Add(patience)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ended:
			t.Fatalf("%s ended:\n%s", filepath.Base(cmd.Path), said.String())
		case <-tick.C:
		}
		if answers(address) {
			return
		}
		if time.Now().After(until) {
			t.Fatalf("%s on %s does not answer within %v", filepath.Base(cmd.Path), address, patience)
		}
	}
}

// answers reports whether a PING is answered.
func answers(address string) bool {
	c, err := net.DialTimeout("tcp", address, time.Second)
	if err != nil {
		return false
	}
	defer func() { _ = c.Close() }()
	_ = c.SetDeadline(time.Now().Add(time.Second))
	if _, err := c.Write([]byte("*1\r\n$4\r\nPING\r\n")); err != nil {
		return false
	}
	var reply [16]byte
	n, _ := c.Read(reply[:])
	return bytes.HasPrefix(reply[:n], []byte("+PONG"))
}

// OneShard starts a cluster of one node that has all slots.
func OneShard(t testing.TB, args ...string) *Server {
	t.Helper()
	s := start(t, node, "", func(_ *Server, port string) []string {
		setup := Setup{Args: args}
		return append(setup.server(port), "--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf")
	})
	s.do(t, "cluster", "addslotsrange", 0, slots-1)
	await(t, "the node to serve its slots", func(ctx context.Context) error {
		return s.expect(ctx, "cluster_state", "ok",
			"cluster", "info")
	})
	return s
}
