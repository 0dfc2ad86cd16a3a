package deploy

import (
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	egv1a1 "github.com/envoyproxy/gateway/api/v1alpha1"
	clientnetworking "istio.io/client-go/pkg/apis/networking/v1alpha3"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"sigs.k8s.io/yaml"

	route "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	ratelimitfilter "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ratelimit/v3"
	httpfilter "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

func read(t *testing.T, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("../examples", name))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestEnvoyGatewayExample(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := egv1a1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	decoder := serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer()
	decode := func(name string) runtime.Object {
		o, _, err := decoder.Decode(read(t, name), nil, nil)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		return o
	}
	// The gateway's own configuration is a file, not an object of the cluster, so no scheme has it.
	var gateway egv1a1.EnvoyGateway
	if err := yaml.UnmarshalStrict(read(t, "envoy-gateway/envoy-gateway.yaml"), &gateway); err != nil {
		t.Fatal(err)
	}
	if gateway.RateLimit.Backend.Redis.URL == "" {
		t.Error("Envoy Gateway starts no rate limit service without a backend")
	}
	for _, e := range gateway.Provider.Kubernetes.RateLimitDeployment.Container.Env {
		checkEnv(t, "envoy-gateway.yaml", e.Name)
	}
	limit := decode("envoy-gateway/backend-traffic-policy.yaml").(*egv1a1.BackendTrafficPolicy).Spec.RateLimit
	if limit == nil || limit.Global == nil || len(limit.Global.Rules) == 0 {
		t.Error("the BackendTrafficPolicy limits nothing")
	}
}

// TestIstioExample decodes the EnvoyFilters strictly, and their patches into Envoy's own types.
func TestIstioExample(t *testing.T) {
	for _, name := range []string{"istio/filter.yaml", "istio/routes.yaml"} {
		var f clientnetworking.EnvoyFilter
		if err := yaml.UnmarshalStrict(read(t, name), &f); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for _, patch := range f.Spec.ConfigPatches {
			value, err := patch.Patch.Value.MarshalJSON()
			if err != nil {
				t.Fatal(err)
			}
			var into proto.Message = new(route.VirtualHost)
			if patch.ApplyTo.String() == "HTTP_FILTER" {
				into = new(httpfilter.HttpFilter)
			}
			if err := protojson.Unmarshal(value, into); err != nil { // unknown fields are errors, in typed_config too
				t.Errorf("%s: %v", name, err)
			}
			filter, ok := into.(*httpfilter.HttpFilter)
			if !ok {
				continue
			}
			var asks ratelimitfilter.RateLimit
			if err := filter.GetTypedConfig().UnmarshalTo(&asks); err != nil {
				t.Fatal(err)
			}
			if err := asks.ValidateAll(); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			var rules struct{ Domain string }
			if err := yaml.Unmarshal(read(t, "istio/rules.yaml"), &rules); err != nil {
				t.Fatal(err)
			}
			if rules.Domain != asks.GetDomain() {
				t.Errorf("%s asks about the domain %q, the rules are of %q", name, asks.GetDomain(), rules.Domain)
			}
		}
	}
}

func TestExampleRules(t *testing.T) {
	for _, name := range []string{"istio/rules.yaml", "envoy/rules/front.yaml"} {
		checkRules(t, name, string(read(t, name)))
	}
}

// TestPageOfOtherLanguages compares the pieces of programs on the page with the examples, which workshop/e2e/interop
// runs.
func TestPageOfOtherLanguages(t *testing.T) {
	page, err := os.ReadFile("../docs/do/other-languages.md")
	if err != nil {
		t.Fatal(err)
	}
	for language, source := range map[string]string{
		"python": "python/limit.py", "java": "java/src/main/java/Limit.java", "typescript": "typescript/src/limit.ts", "rust": "rust/src/main.rs",
	} {
		_, rest, begins := strings.Cut(string(page), "```"+language+"\n")
		piece, _, ends := strings.Cut(rest, "```\n")
		if !begins || !ends || !strings.Contains(string(read(t, source)), piece) {
			t.Errorf("the page's piece is not in examples/%s:\n%s", source, piece)
		}
	}
}

func TestCurlExample(t *testing.T) {
	if _, err := exec.LookPath("curl"); err != nil {
		missing(t, "curl")
	}
	s := serveInImage(t, nil, "/bin/ratelimitd", "--rules", "config/domains")
	send := func(server string) int {
		cmd := exec.Command("../examples/curl/limit.sh", "2065551234", server)
		out, err := cmd.CombinedOutput()
		var exit *exec.ExitError
		if err != nil && !errors.As(err, &exit) {
			t.Fatalf("%v: %s", err, out)
		}
		return cmd.ProcessState.ExitCode()
	}
	for i := range 6 {
		want := 0
		if i == 5 {
			want = 1
		}
		if got := send("http://" + s.http); got != want {
			t.Errorf("message %d: exit code %d, want %d", i+1, got, want)
		}
	}
	if got := send("http://127.0.0.1:1"); got != 2 {
		t.Errorf("no server there: exit code %d, want 2", got)
	}
}

// TestGoExample runs the Go service with a real ratelimitd, then without one.
func TestGoExample(t *testing.T) {
	program := filepath.Join(t.TempDir(), "example")
	build := exec.Command("go", "build", "-o", program, "./examples/go")
	build.Dir = ".."
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	start := func(t *testing.T, ratelimitd string) (url string, log *lockedBuffer) {
		free, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		listen := free.Addr().String()
		free.Close()
		cmd := exec.Command(program, "-listen", listen, "-ratelimitd", ratelimitd)
		log = new(lockedBuffer)
		cmd.Stderr = log
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
			if t.Failed() {
				t.Logf("the example said:\n%s", log.String())
			}
		})
		for deadline := time.After(30 * time.Second); ; {
			conn, err := net.Dial("tcp", listen)
			if err == nil {
				conn.Close()
				return "http://" + listen, log
			}
			select {
			case <-deadline:
				t.Fatalf("the example does not listen: %v", err)
			case <-time.After(20 * time.Millisecond):
			}
		}
	}
	get := func(t *testing.T, url, customer string) *http.Response {
		req, err := http.NewRequest(http.MethodGet, url, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("X-Customer", customer)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if _, err := io.Copy(io.Discard, resp.Body); err != nil {
			t.Fatal(err)
		}
		return resp
	}
	t.Run("limited", func(t *testing.T) {
		url, _ := start(t, serveInImage(t, nil, "/bin/ratelimitd", "--rules", "config/domains").grpc)
		// 1000 an hour. Calls that took longer than the example waits, on a busy machine, pass uncounted: some more requests
		// are let through, but the end comes.
		for i := range 3000 {
			resp := get(t, url, "acme")
			if resp.StatusCode == http.StatusOK {
				continue
			}
			if resp.StatusCode != http.StatusTooManyRequests || resp.Header.Get("Retry-After") == "" {
				t.Errorf("request %d: status %d, Retry-After %q", i+1, resp.StatusCode, resp.Header.Get("Retry-After"))
			}
			if i < 1000 {
				t.Errorf("request %d was denied: the limit is 1000", i+1)
			}
			return
		}
		t.Error("3000 requests passed a limit of 1000")
	})
	t.Run("waits", func(t *testing.T) {
		rules := t.TempDir()
		const rule = "domain: api\nenvoy_delay: true\ndescriptors:\n  - {key: customer, rate_limit: {unit: second, requests_per_unit: 10, algorithm: leaky_bucket}}\n"
		if err := os.WriteFile(filepath.Join(rules, "api.yaml"), []byte(rule), 0o600); err != nil {
			t.Fatal(err)
		}
		url, log := start(t, serve(t, exec.Command(filepath.Join(image(t), "bin/ratelimitd"), "--rules", rules), nil).grpc)
		began := time.Now()
		for range 10 {
			if resp := get(t, url, "acme"); resp.StatusCode != http.StatusOK {
				t.Errorf("status %d", resp.StatusCode)
			}
		}
		// Calls that took too long, on a busy machine, pass immediately.
		held := 9 - strings.Count(log.String(), "not limited")
		if took := time.Since(began); held <= 0 || took < time.Duration(held)*100*time.Millisecond {
			t.Errorf("10 requests took %v, and %d of them were held", took, held)
		}
	})
	t.Run("fails open", func(t *testing.T) {
		url, _ := start(t, "127.0.0.1:1")
		if resp := get(t, url, "acme"); resp.StatusCode != http.StatusOK {
			t.Errorf("without a server to ask: status %d, want 200", resp.StatusCode)
		}
	})
}
