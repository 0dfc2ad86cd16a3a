package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
	"github.com/ratelimitd/ratelimitd/internal/testkit/tlstest"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

// regionSettings returns the settings of a replica in a region, without its port.
func regionSettings(t *testing.T, ca *tlstest.Authority, name, all string) map[string]string {
	t.Helper()
	cert, key := pemFiles(t, ca.Issue(t, "spiffe://example.org/region/"+name))
	return map[string]string{
		"RATELIMITD_REGION": name, "RATELIMITD_REGIONS": all,
		"RATELIMITD_REGIONS_TLS_CERT": cert, "RATELIMITD_REGIONS_TLS_KEY": key, "RATELIMITD_REGIONS_TLS_CACERT": file(t, string(ca.PEM)),
		"RATELIMITD_REGIONS_LISTEN": "127.0.0.1:0",
	}
}

func TestRegionSettings(t *testing.T) {
	ca := tlstest.NewAuthority(t, "regions")
	good := regionSettings(t, ca, "eu", "eu=localhost:1,us=localhost:1")
	otherCert, otherKey := pemFiles(t, ca.Issue(t, "spiffe://example.org/region/us"))
	noCert, noKey := pemFiles(t, ca.Issue(t, "eu.example.org"))
	with := func(pairs ...string) map[string]string {
		env := merged(good)
		for i := 0; i < len(pairs); i += 2 {
			env[pairs[i]] = pairs[i+1]
		}
		return env
	}
	for _, c := range []struct {
		env  map[string]string
		want string
	}{
		{with(), ""},
		{with("RATELIMITD_REGIONS", "eu,us=dns:///localhost:1"), ""},
		{with("RATELIMITD_REGION", absent), "RATELIMITD_REGIONS without RATELIMITD_REGION: set the name of the region that this replica is in"},
		{with("RATELIMITD_REGION", absent, "RATELIMITD_REGIONS", absent), "RATELIMITD_REGIONS_TLS_CERT, RATELIMITD_REGIONS_TLS_KEY, RATELIMITD_REGIONS_TLS_CACERT without RATELIMITD_REGION: set"},
		{with("RATELIMITD_REGIONS", absent), "RATELIMITD_REGION=eu without RATELIMITD_REGIONS: list all regions, such as eu="},
		{with("RATELIMITD_REGION", "EU"), "RATELIMITD_REGION=EU: a name has at most 32 letters from a to z"},
		{with("RATELIMITD_REGION", "ap"), "RATELIMITD_REGION=ap is not in RATELIMITD_REGIONS, which has eu, us: add it, or correct the name"},
		{with("RATELIMITD_REGIONS", "eu=a:1,us=b:1,us=c:1"), "RATELIMITD_REGIONS: region us twice: each region has a name of its own"},
		{with("RATELIMITD_REGIONS", "eu=a:1,us"), "RATELIMITD_REGIONS: region us has no address: write us=HOST:PORT"},
		{with("RATELIMITD_REGIONS", "eu=a:1,=b:1"), `RATELIMITD_REGIONS: "=b:1" is no region: write NAME=HOST:PORT`},
		{with("RATELIMITD_REGIONS", "eu=a:1"), "RATELIMITD_REGIONS has only eu: list the other regions too, or unset RATELIMITD_REGION"},
		{with("RATELIMITD_REGIONS_TLS_CERT", absent), "RATELIMITD_REGIONS_TLS_CERT is not set: regions know each other by their certificates"},
		{with("RATELIMITD_REGIONS_TLS_KEY", absent), "RATELIMITD_REGIONS_TLS_KEY is not set"},
		{with("RATELIMITD_REGIONS_TLS_CACERT", absent), "RATELIMITD_REGIONS_TLS_CACERT is not set"},
		{with("RATELIMITD_REGIONS_TLS_CACERT", "/none"), "open /none"},
		{with("RATELIMITD_REGIONS_TLS_CERT", otherCert, "RATELIMITD_REGIONS_TLS_KEY", otherKey), "the certificate is of region us, and RATELIMITD_REGION=eu"},
		{with("RATELIMITD_REGIONS_TLS_CERT", noCert, "RATELIMITD_REGIONS_TLS_KEY", noKey), "the certificate names no region: it needs the URI spiffe://TRUST-DOMAIN/region/NAME"},
		{with("REDIS_KEY_FORMAT", "lyft"), "RATELIMITD_REGION and REDIS_KEY_FORMAT=lyft"},
		{with("RATELIMITD_REGIONS_LISTEN", "256.0.0.1:0"), "RATELIMITD_REGIONS_LISTEN: listen for regions on 256.0.0.1:0"},
	} {
		i := begin(t, c.env, "--rules", rulesOf(t, fiveADay))
		switch {
		case c.want == "" && i.err != nil:
			t.Errorf("%v: %v", c.env, i.err)
		case c.want != "" && (i.err == nil || !strings.Contains(i.err.Error(), c.want)):
			t.Errorf("got %v\nwant %s", i.err, c.want)
		case i.err == nil:
			i.stop()
		}
	}
}

// Rules with regions work in a service without a region, and log a warning.
func TestRegionsWithoutARegion(t *testing.T) {
	const rule = "domain: d\ndescriptors:\n  - key: k\n    rate_limit: {unit: day, requests_per_unit: 100, regions: {home: eu}}\n"
	alone := begin(t, nil, "--rules", rulesOf(t, rule))
	if got := answers(ask("d", "k", "v"))(t, alone); got != "OK99" && !strings.HasPrefix(got, "OK") {
		t.Error(got)
	}
	if said := alone.log.Wait(t, "limits with regions count only here: no region is set"); said["first"] != "d.k" || said["limits"] != 1.0 {
		t.Errorf("%v", said)
	}
	env := regionSettings(t, tlstest.NewAuthority(t, "regions"), "us", "us,ap=localhost:1")
	elsewhere := begin(t, env, "--rules", rulesOf(t, rule))
	if elsewhere.err != nil {
		t.Fatal(elsewhere.err)
	}
	if said := elsewhere.log.Wait(t, "a limit has a home that is no region: on_error decides its requests"); said["home"] != "eu" || said["rule"] != "d.k" {
		t.Errorf("%v", said)
	}
	if got := answers(ask("d", "k", "v"))(t, elsewhere); !strings.Contains(got, "Unavailable") {
		t.Errorf("a limit without a home: %s", got)
	}
}

// Two regions, each with two replicas and one Redis, together allow exactly the limit.
func TestRegions(t *testing.T) {
	const rules = `
domain: d
descriptors:
  - key: eu
    rate_limit: {unit: day, requests_per_unit: 400, regions: {home: eu}}
  - key: us
    rate_limit: {unit: day, requests_per_unit: 40, regions: {home: us}}
  - key: hash
    rate_limit: {unit: day, requests_per_unit: 400, regions: {home: hash}}
`
	ca := tlstest.NewAuthority(t, "regions")
	// A region has one address, and here one of its replicas listens on it: addresses of loopback are as good as names.
	net := fmt.Sprintf("127.%d.%d.", 1+rand.IntN(254), rand.IntN(255))
	all := fmt.Sprintf("eu=%s1:8083,us=%s2:8083", net, net)
	var replicas []*instance
	var clients []ratelimitv3.RateLimitServiceClient
	for i, name := range []string{"eu", "us"} {
		r := redistest.Start(t)
		for replica := range 2 {
			env := merged(regionSettings(t, ca, name, all), map[string]string{"REDIS_URL": r.Addr, "REDIS_OP_TIMEOUT": "5s"})
			if replica == 0 {
				env["RATELIMITD_REGIONS_LISTEN"] = fmt.Sprint(net, i+1, ":8083")
			}
			started := begin(t, env, "--rules", rulesOf(t, rules))
			if started.err != nil {
				t.Fatal(started.err)
			}
			replicas = append(replicas, started)
			clients = append(clients, ratelimitv3.NewRateLimitServiceClient(dial(t, started.grpc())))
		}
	}
	for i, r := range replicas {
		name, other := []string{"eu", "us"}[i/2], []string{"us", "eu"}[i/2]
		eventually(t, "the page /regions to show that the other region is up and has the same rules", func() bool {
			code, body := get(t, r.debug()+"/regions")
			if code != http.StatusOK || !strings.HasPrefix(body, "region "+name+"\nhomes of limits in the rules: chosen by a hash 1, eu 1, us 1\n") {
				t.Fatalf("%d %s", code, body)
			}
			return strings.Contains(body, "\n"+other+"      up     ") && strings.Contains(body, "  same  ")
		})
		server := strings.TrimPrefix(r.debug(), "http://")
		if code, out, stderr := asks(t, "regions", "-s", server); code != 0 || stderr != "" || !strings.HasPrefix(out, "region "+name+"\n") {
			t.Errorf("%d\n%s%s", code, out, stderr)
		}
		found := new(adminv1.ListRegionsResponse)
		if code, out, stderr := asks(t, "regions", "-s", server, "--json"); code != 0 || protojson.Unmarshal([]byte(out), found) != nil ||
			found.GetRegion() != name || len(found.GetRegions()) != 1 || found.GetRegions()[0].GetName() != other || found.GetRegions()[0].GetRtt().AsDuration() <= 0 {
			t.Errorf("%d\n%s%s", code, out, stderr)
		}
	}
	passes := func(client ratelimitv3.RateLimitServiceClient, key, value string) (bool, error) {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		answer, err := client.ShouldRateLimit(ctx, ask("d", key, value))
		return err == nil && answer.GetOverallCode() == ratelimitv3.RateLimitResponse_OK, err
	}
	for _, c := range []struct {
		key   string
		limit int64
	}{{"eu", 400}, {"us", 40}, {"hash", 400}} {
		for _, client := range clients {
			eventually(t, "an answer of each replica", func() bool { _, err := passes(client, c.key, "warm"); return err == nil })
		}
		var admitted atomic.Int64
		storm := func() {
			var callers sync.WaitGroup
			for _, client := range clients {
				for range 4 {
					callers.Go(func() {
						for denied := 0; denied < 3; {
							if ok, _ := passes(client, c.key, "v"); ok {
								admitted.Add(1)
								denied = 0
							} else {
								denied++
							}
						}
					})
				}
			}
			callers.Wait()
		}
		eventually(t, "the whole limit is used", func() bool { storm(); return admitted.Load() >= c.limit })
		if storm(); admitted.Load() != c.limit {
			t.Errorf("%s: %d admitted, the limit is %d", c.key, admitted.Load(), c.limit)
		}
	}
	for i, want := range []string{"regions  this server is in eu\n         us counts for all regions: a request waits for one trip, ", "regions  this server is in us\n         it counts for all regions\n"} {
		code, out, _ := asks(t, "explain", "-d", "d", "us=v", "--server", strings.TrimPrefix(replicas[2*i].debug(), "http://"))
		if code != 0 || !strings.Contains(out, want) {
			t.Errorf("%d\n%s", code, out)
		}
	}
}

// Resets and overrides of counters of another region are rejected with that region's name, also while it does not
// answer.
func TestChangesBelongToTheHome(t *testing.T) {
	const rules = `
domain: d
descriptors:
  - {key: far, overridable: true, rate_limit: {unit: day, requests_per_unit: 5, regions: {home: us}}}
  - {key: near, overridable: true, rate_limit: {unit: day, requests_per_unit: 5, regions: {home: eu}}}
`
	env := regionSettings(t, tlstest.NewAuthority(t, "regions"), "eu", "eu,us=127.0.0.1:1")
	for name, value := range map[string]string{"RATELIMITD_ADMIN_TOKEN": adminToken, "RATELIMITD_OVERRIDES": "redis", "REDIS_URL": redistest.Start(t).Addr} {
		env[name] = value
	}
	r := begin(t, env, "--rules", rulesOf(t, rules))
	if r.err != nil {
		t.Fatal(r.err)
	}
	t.Setenv("RATELIMITD_ADMIN_TOKEN", adminToken)
	server := strings.TrimPrefix(r.debug(), "http://")
	for _, c := range []struct {
		args string
		code int
		want string
	}{
		{"override set -d d far=v --limit 9", 1, "the counter belongs to the region us: set the override there"},
		{"override set -d d far=v --block --dry-run", 1, "the counter belongs to the region us: set the override there"},
		{"override set -d d near=v --limit 9", 0, ""},
		{"override rm -d d far=v", exitNothing, ""},
		{"reset -d d far=v", 1, "the counter belongs to the region us: reset it there"},
		{"reset -d d near=v", 0, ""},
	} {
		if code, out, stderr := asks(t, append(strings.Fields(c.args), "-s", server)...); code != c.code || !strings.Contains(stderr, c.want) {
			t.Errorf("%s: %d\n%s%s", c.args, code, out, stderr)
		}
	}
}
