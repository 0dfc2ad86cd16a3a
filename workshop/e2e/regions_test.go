package e2e

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
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

// Two regions are 80 ms apart, and Envoy waits for 20 ms or for 500 ms. The limit holds with both failure modes: what Envoy lets pass beyond it
// are requests that had no answer. In escrow, once a region holds permits, few requests wait for the home; those that Envoy counts as passed or denied
// had their answer within its timeout. With mode home none has within 20 ms.
func TestEnvoyAcrossRegions(t *testing.T) {
	const limit = 1000
	needsEnvoy(t)
	dir := rules(t, fmt.Sprintf(`
domain: e2e
descriptors:
  - {key: user, rate_limit: {unit: day, requests_per_unit: %d, regions: {mode: escrow, home: eu}}}
  - {key: how, rate_limit: {unit: day, requests_per_unit: %[1]d, regions: {mode: home, home: eu}}}
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
		s := startService(t, name, dir, "RATELIMITD_REGION="+name, "RATELIMITD_REGIONS=eu="+far["eu"]+",us="+far["us"], "RATELIMITD_REGIONS_EPOCH=1",
			"RATELIMITD_REGIONS_HOST=127.0.0.1", "RATELIMITD_REGIONS_PORT="+ports[name], "RATELIMITD_REGIONS_TLS_CACERT="+file("ca.crt", ca.PEM),
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
    - actions: [{request_headers: {header_name: x-how, descriptor_key: how}}]
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
	cold := func() int { return int(services["us"].metrics(t)["ratelimitd_region_cold_asks_total"]) }

	for _, timeout := range []string{"0.02s", "0.5s"} {
		for _, deny := range []bool{false, true} {
			t.Run(fmt.Sprintf("timeout %s, failure_mode_deny %v", timeout, deny), func(t *testing.T) {
				user, us, eu := fmt.Sprint(timeout, deny), fmt.Sprint("us", timeout, deny), fmt.Sprint("eu", timeout, deny)
				start := e.verdicts(t, us).plus(e.verdicts(t, eu))
				// some sends a few requests in us. It returns what Envoy counted, and how many of them waited for the home.
				const few = 20
				some := func() (got verdicts, waited int) {
					before, earlier := e.verdicts(t, us), cold()
					e.codes(t, few, us, "/", "x-user", user)
					return e.verdicts(t, us).minus(before), cold() - earlier
				}
				tries := 0
				await(t, "permits in us", func(context.Context) error {
					tries++
					if got, waited := some(); got.Error > 0 || waited > 0 {
						return fmt.Errorf("%+v, %d waited for the home", got, waited)
					}
					return nil
				})
				all, late := verdicts{}, 0
				for range 5 {
					got, waited := some()
					all, late = all.plus(got), late+waited
				}
				t.Logf("after %d requests: %+v, %d waited for the home", few*tries, all, late)
				if late > all.sum()/5 {
					t.Errorf("%d of %d requests waited for the home", late, all.sum())
				}

				var passed atomic.Int64
				var callers sync.WaitGroup
				before := e.verdicts(t, us).plus(e.verdicts(t, eu))
				for _, l := range []string{us, eu, us, eu} {
					callers.Go(func() {
						for range limit / 2 {
							if r, err := e.try(t, l, "/", "x-user", user); err != nil {
								t.Error(err)
							} else if r.code == 200 {
								passed.Add(1)
							}
						}
					})
				}
				callers.Wait()
				end := e.verdicts(t, us).plus(e.verdicts(t, eu))
				if during := end.minus(before); int(passed.Load()) != during.OK+during.FailureModeAllowed {
					t.Errorf("%d passed; Envoy counted %+v", passed.Load(), during)
				}
				all = end.minus(start)
				t.Logf("in all: %+v", all)
				if all.OK > limit || all.OK == 0 || deny && all.FailureModeAllowed > 0 {
					t.Errorf("%+v: the limit is %d", all, limit)
				}
			})
		}
	}
	t.Run("mode home", func(t *testing.T) {
		for listener, want := range map[string]verdicts{
			"us0.02sfalse": {Error: 5, FailureModeAllowed: 5}, "us0.02strue": {Error: 5},
		} {
			before := e.verdicts(t, listener)
			e.codes(t, 5, listener, "/", "x-how", "h")
			if got := e.verdicts(t, listener).minus(before); got != want {
				t.Errorf("%s: %+v, want %+v", listener, got, want)
			}
		}
		await(t, "an answer from the home", func(context.Context) error {
			if code := e.get(t, "us0.5strue", "/", "x-how", "h").code; code != 200 {
				return fmt.Errorf("%d", code)
			}
			return nil
		})
	})
}
