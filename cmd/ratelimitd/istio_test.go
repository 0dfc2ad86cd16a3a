package main

import (
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
	"github.com/ratelimitd/ratelimitd/internal/testkit/tlstest"
)

const productPage = `
domain: echo-ratelimit
descriptors:
  - key: PATH
    value: "/productpage"
    rate_limit: {unit: day, requests_per_unit: 1}
  - key: PATH
    rate_limit: {unit: day, requests_per_unit: 100}
`

// The complete environment of Istio's sample, with its rules in a ConfigMap that changes. Only the address of Redis,
// RUNTIME_ROOT (/data in the sample) and REDIS_OP_TIMEOUT differ.
func TestIstio(t *testing.T) {
	root := t.TempDir()
	configMap := &tlstest.Volume{Dir: filepath.Join(root, "ratelimit", "config")}
	if err := os.MkdirAll(configMap.Dir, 0o755); err != nil {
		t.Fatal(err)
	}
	configMap.Swap(t, map[string][]byte{"config.yaml": []byte(productPage)})
	if err := os.Symlink(filepath.Join("..data", "config.yaml"), configMap.Path("config.yaml")); err != nil {
		t.Fatal(err)
	}
	r := redistest.Start(t)
	p := startProcess(t, map[string]string{
		"LOG_LEVEL":              "debug",
		"REDIS_SOCKET_TYPE":      "tcp",
		"REDIS_URL":              r.Addr,
		"USE_STATSD":             "false",
		"RUNTIME_ROOT":           root,
		"RUNTIME_SUBDIRECTORY":   "ratelimit",
		"RUNTIME_WATCH_ROOT":     "false",
		"RUNTIME_IGNOREDOTFILES": "true",
		"HOST":                   "::",
		"GRPC_HOST":              "::",

		"REDIS_OP_TIMEOUT": "5s", // the machine may be busy; this test does not measure time
	})
	if line := p.Log.Wait(t, "active rules"); line["files"] != 1.0 || line["rules"] != 2.0 {
		t.Errorf("the directory, with ..data in it, was loaded as %v", line)
	}

	// "::" means every address, including IPv4: Kubernetes' probes use either.
	for _, listener := range []string{p.HTTP, p.GRPC} {
		if host, _, err := net.SplitHostPort(listener); err != nil || host != "::" {
			t.Errorf("it listens on %s", listener)
		}
	}
	by := func(host, listener string) string {
		_, port, err := net.SplitHostPort(listener)
		if err != nil {
			t.Fatal(err)
		}
		return net.JoinHostPort(host, port)
	}
	hosts := []string{"127.0.0.1"}
	if l, err := net.Listen("tcp", "[::1]:0"); err == nil {
		_ = l.Close()
		hosts = append(hosts, "::1")
	}
	for _, host := range hosts {
		if code, body := get(t, "http://"+by(host, p.HTTP)+"/healthcheck"); code != http.StatusOK || body != "OK" {
			t.Errorf("/healthcheck by %s: %d %q", host, code, body)
		}
		got, err := healthv1.NewHealthClient(dial(t, by(host, p.GRPC))).Check(t.Context(), &healthv1.HealthCheckRequest{})
		if err != nil || got.GetStatus() != healthv1.HealthCheckResponse_SERVING {
			t.Errorf("gRPC health by %s: %v %v", host, got, err)
		}
	}

	client := ratelimitv3.NewRateLimitServiceClient(dial(t, by("127.0.0.1", p.GRPC)))
	decide := func(path string) *ratelimitv3.RateLimitResponse_DescriptorStatus {
		t.Helper()
		got, err := client.ShouldRateLimit(t.Context(), ask("echo-ratelimit", "PATH", path))
		if err != nil {
			t.Fatal(err)
		}
		return got.GetStatuses()[0]
	}
	for i, want := range []ratelimitv3.RateLimitResponse_Code{1, 2, 2} {
		if got := decide("/productpage"); got.GetCode() != want {
			t.Errorf("request %d: %v", i+1, got)
		}
	}
	if got := decide("/other"); got.GetLimitRemaining() != 99 {
		t.Errorf("another path: %v", got)
	}

	configMap.Swap(t, map[string][]byte{"config.yaml": []byte(strings.ReplaceAll(productPage, "requests_per_unit: 1}", "requests_per_unit: 7}"))})
	eventually(t, "the new rules", func() bool {
		return decide("/other").GetCurrentLimit() != nil && decide("/productpage").GetCurrentLimit().GetRequestsPerUnit() == 7
	})

	// A bad change is reported and changes nothing.
	configMap.Swap(t, map[string][]byte{"config.yaml": []byte("domain: echo-ratelimit\ndescriptors:\n  - kee: PATH\n")})
	eventually(t, "the bad file", func() bool {
		_, body := get(t, "http://"+p.Debug+"/rlconfig")
		return strings.Contains(body, "config.yaml: stale")
	})
	if got := decide("/productpage"); got.GetCurrentLimit().GetRequestsPerUnit() != 7 {
		t.Errorf("after a bad change: %v", got)
	}

	// By default statistics are not sent anywhere. They can be viewed and scraped under their names.
	_, stats := get(t, "http://"+p.Debug+"/stats")
	for _, line := range []string{
		"ratelimit.service.rate_limit.echo-ratelimit.PATH_/productpage.over_limit: ", "ratelimit.service.rate_limit.echo-ratelimit.PATH.total_hits: ",
		"ratelimit.service.config_load_success: 2\n", "ratelimit.service.config_load_error: 1\n",
	} {
		if !strings.Contains(stats, line) {
			t.Errorf("/stats does not have %q:\n%s", line, stats)
		}
	}
	over := `ratelimit_service_rate_limit_over_limit{domain="echo-ratelimit",key1="PATH_/productpage"} `
	if lines := shown(t, "http://"+by("127.0.0.1", p.HTTP)+"/metrics", "ratelimit_service_rate_limit_over_limit"); !slices.ContainsFunc(lines, func(l string) bool { return strings.HasPrefix(l, over) }) {
		t.Errorf("/metrics has %q", lines)
	}

	// Losing Redis must not restart the pod.
	r.Kill(t)
	if _, err := client.ShouldRateLimit(t.Context(), ask("echo-ratelimit", "PATH", "/productpage")); err == nil {
		t.Error("answered without Redis")
	}
	if code, _ := get(t, "http://"+by("127.0.0.1", p.HTTP)+"/healthcheck"); code != http.StatusOK {
		t.Errorf("/healthcheck without Redis: %d", code)
	}
}
