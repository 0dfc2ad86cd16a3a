package e2e

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	toxiproxy "github.com/Shopify/toxiproxy/v2"
	"github.com/rs/zerolog"

	"github.com/ratelimitd/ratelimitd/internal/testkit/tlstest"
)

// startFar starts a proxy to a server that is 80 ms away, there and back, and returns its address.
func startFar(t *testing.T, addr string) string {
	t.Helper()
	p := toxiproxy.NewProxy(toxiproxy.NewServer(toxiproxy.NewMetricsContainer(nil), zerolog.Nop()), "far", "127.0.0.1:0", addr)
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Stop)
	for _, stream := range []string{"upstream", "downstream"} {
		if _, err := p.Toxics.AddToxicJson(strings.NewReader(`{"type": "latency", "stream": "` + stream + `", "attributes": {"latency": 40}}`)); err != nil {
			t.Fatal(err)
		}
	}
	return p.Listen
}

// Two regions are 80 ms apart, and Envoy waits for 20 ms or for 500 ms. While the limit is not used up, a request
// outside the home waits for a trip: within 20 ms it has no answer, and Envoy's failure mode decides. Once the limit is
// used up, every request is denied immediately.
func TestEnvoyAcrossRegions(t *testing.T) {
	const limit = 100
	needsEnvoy(t)
	dir := rules(t, fmt.Sprintf(`
domain: e2e
descriptors:
  - {key: user, rate_limit: {unit: day, requests_per_unit: %d, regions: {home: eu}}}
`, limit))
	ca, files := tlstest.NewAuthority(t, "regions"), t.TempDir()
	file := func(name string, text []byte) string {
		path := filepath.Join(files, name)
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	ports := map[string]string{"eu": freePort(t), "us": freePort(t)}
	far := make(map[string]string)
	for name, port := range ports {
		far[name] = startFar(t, net.JoinHostPort("127.0.0.1", port))
	}
	u := startUpstream(t)
	b := bootstrap{Clusters: []cluster{upstreamCluster(u)}}
	services := make(map[string]*service)
	for _, name := range []string{"eu", "us"} {
		pair := ca.Issue(t, "spiffe://example.org/region/"+name)
		s := startService(t, name, dir, "RATELIMITD_REGION="+name, "RATELIMITD_REGIONS=eu="+far["eu"]+",us="+far["us"],
			"RATELIMITD_REGIONS_LISTEN=127.0.0.1:"+ports[name], "RATELIMITD_REGIONS_TLS_CACERT="+file("ca.crt", ca.PEM),
			"RATELIMITD_REGIONS_TLS_CERT="+file(name+".crt", pair.Cert), "RATELIMITD_REGIONS_TLS_KEY="+file(name+".key", pair.Key))
		services[name] = s
		of := rls(s)
		of.Name = name
		b.Clusters = append(b.Clusters, of)
		for _, timeout := range []string{"0.02s", "0.5s"} {
			for _, deny := range []bool{false, true} {
				b.Listeners = append(b.Listeners, listener{
					Name: fmt.Sprint(name, timeout, deny), Call: "envoy_grpc: {cluster_name: " + name + "}", Timeout: timeout,
					Filter: fmt.Sprintf("failure_mode_deny: %v", deny), Routes: `
- match: {prefix: /}
  route:
    cluster: upstream
    rate_limits:
    - actions: [{request_headers: {header_name: x-user, descriptor_key: user}}]
`})
			}
		}
	}
	e := startEnvoy(t, b)
	for name := range services {
		await(t, "an answer in "+name, func(context.Context) error {
			if code := e.get(t, name+"0.5strue", "/", "x-user", "warm").code; code != 200 {
				return fmt.Errorf("%s: %d", name, code)
			}
			return nil
		})
	}
	for _, timeout := range []string{"0.02s", "0.5s"} {
		for _, deny := range []bool{false, true} {
			t.Run(fmt.Sprintf("timeout %s, failure_mode_deny %v", timeout, deny), func(t *testing.T) {
				user, us, eu := fmt.Sprint(timeout, deny), fmt.Sprint("us", timeout, deny), fmt.Sprint("eu", "0.5s", deny)
				// some sends requests in us, and returns Envoy's count of their verdicts.
				some := func(n int) verdicts {
					before := e.verdicts(t, us)
					e.codes(t, n, us, "/", "x-user", user)
					return e.verdicts(t, us).minus(before)
				}
				const few = 10
				want := verdicts{OK: few}
				if timeout == "0.02s" {
					if want = (verdicts{Error: few}); !deny {
						want.FailureModeAllowed = few
					}
				}
				if got := some(few); got != want {
					t.Errorf("while something is left: %+v, want %+v", got, want)
				}
				before := e.verdicts(t, eu)
				e.codes(t, limit, eu, "/", "x-user", user)
				// whoever waited for the answers
				if got, want := e.verdicts(t, eu).minus(before), (verdicts{OK: limit - few, OverLimit: few}); got != want {
					t.Errorf("in the home: %+v, want %+v", got, want)
				}
				await(t, "a denial in us", func(context.Context) error {
					if got := some(1); got.OverLimit != 1 {
						return fmt.Errorf("%+v", got)
					}
					return nil
				})
				waits := services["us"].metrics(t)[`ratelimitd_region_attempts_total{result="waited"}`]
				if got := some(limit); got.OverLimit != limit && timeout != "0.02s" || got.OK > 0 {
					t.Errorf("after the limit is used up: %+v", got)
				}
				if more := services["us"].metrics(t)[`ratelimitd_region_attempts_total{result="waited"}`] - waits; more > 0 {
					t.Errorf("%v of the requests after it was used up have waited for the home", more)
				}
			})
		}
	}
}
