package e2e

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
)

// The cost of a limit, above the same route without one: in the module, and in Envoy's rate limit filter with the
// service. It prints the table of docs/do/envoy-module.md, and runs only with RATELIMITD_BENCH=1: it needs a quiet
// machine and two minutes.
func TestModuleBench(t *testing.T) {
	if os.Getenv("RATELIMITD_BENCH") == "" {
		t.Skip("measures only with RATELIMITD_BENCH=1")
	}
	env := needsModule(t)
	redis := redistest.Start(t)
	u := startUpstream(t)
	rule := func(more string) string {
		return rules(t, "domain: e2e\n"+more+"descriptors: [{key: user, rate_limit: {unit: day, requests_per_unit: 1000000000}}]")
	}
	plain, headers := rule(""), rule("headers: [x-ratelimit]\n")
	leased := rules(t, "domain: e2e\ndescriptors: [{key: user, rate_limit: {unit: day, requests_per_unit: 1000000000, lease: true}}]")
	at := "REDIS_URL=" + redis.Addr
	services := []*service{
		startService(t, "memory", rule("quota_buckets: {order: [user]}\n")),
		startService(t, "redis", plain, at, "CACHE_KEY_PREFIX=service:"),
		startService(t, "leases", leased, at, "CACHE_KEY_PREFIX=leases:"),
	}
	clusters := []cluster{upstreamCluster(u)}
	b := bootstrap{Name: "filter", Listeners: []listener{
		{Name: "plain", NetworkFilters: plainRoute("")}, {Name: "quota", NetworkFilters: plainRoute(quotaFilter)},
	}}
	for _, s := range services {
		c := rls(s)
		c.Name = s.name
		clusters = append(clusters, c)
		b.Listeners = append(b.Listeners, listener{Name: s.name, Call: "envoy_grpc: {cluster_name: " + s.name + "}", Routes: byUser("").Routes})
	}
	b.Clusters = clusters
	filters := startEnvoy(t, b)
	module := func(name, settings string) listener { return listener{Name: name, Module: settings, Routes: allRoutes} }
	url := "redis_url: " + redis.Addr
	modules := startEnvoy(t, bootstrap{Name: "module", Env: env, Clusters: clusters[:1], Listeners: []listener{
		{Name: "plain", NetworkFilters: plainRoute("")}, module("memory", moduleUser(plain)), module("headers", moduleUser(headers)),
		module("redis", moduleUser(plain, url, "cache_key_prefix: 'module:'", "timeout: 1s", "failure_mode_deny: true")),
		module("leases", moduleUser(leased, url, "cache_key_prefix: 'leased:'", "timeout: 1s", "failure_mode_deny: true")),
	}})
	cases := []measuredCase{
		{name: "plain route (absolute)", e: filters, listener: "plain"},
		{name: "module, memory", e: modules, listener: "memory"},
		{name: "module, memory, headers on every response", e: modules, listener: "headers"},
		{name: "rate limit filter + ratelimitd, memory", e: filters, listener: "memory", s: services[0]},
		{name: "RLQS, memory", e: filters, listener: "quota", s: services[0]},
		{name: "module, Redis", e: modules, listener: "redis"},
		{name: "rate limit filter + ratelimitd, Redis", e: filters, listener: "redis", s: services[1]},
		{name: "module, leases, 1 key", e: modules, listener: "leases", keys: 1},
		{name: "module, leases, 100 keys", e: modules, listener: "leases"},
		{name: "rate limit filter + ratelimitd, leases, 100 keys", e: filters, listener: "leases", s: services[2]},
	}
	const rounds, requests = 3, 8000
	results := make([]map[int][]measured, len(cases))
	for i := range results {
		results[i] = make(map[int][]measured)
	}
	for range rounds {
		for i := range cases {
			for _, connections := range []int{1, 16} {
				cases[i].measure(t, connections, 500) // warm
				results[i][connections] = append(results[i][connections], cases[i].measure(t, connections, requests))
			}
		}
	}
	fmt.Println("CPU of Envoy + service in us for each request, p50 and p99 in us, above the plain route: medians")
	for i := range cases {
		line := cases[i].name
		for _, connections := range []int{1, 16} {
			r, base := medians(results[i][connections]), medians(results[0][connections])
			if i > 0 {
				for j := range r {
					r[j] -= base[j]
				}
			}
			line += fmt.Sprintf(" | %.0f + %.0f | %+.0f | %+.0f", r[0], r[1], r[2], r[3])
		}
		fmt.Println("| " + line + " |")
	}
	for i := range cases {
		if c := &cases[i]; c.listener == "redis" || c.listener == "leases" {
			fmt.Printf("another route, at one connection, while 4 connections keep it busy: %s: p99.9 %.0f us\n", c.name, c.besides(t))
		}
	}
	for _, e := range []*envoy{filters, modules} {
		text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", e.Cmd.Process.Pid))
		_, rss, _ := strings.Cut(string(text), "VmRSS:")
		_, threads, _ := strings.Cut(string(text), "Threads:")
		fmt.Println(strings.Fields(rss)[:2], strings.Fields(threads)[:1], "threads")
	}
}

// besides is the p99.9 of a route without a limit on the same worker, measured during the case.
func (c *measuredCase) besides(t *testing.T) float64 {
	var all []float64
	for range 3 {
		var busy sync.WaitGroup
		busy.Go(func() { c.measure(t, 4, 12_000) })
		other := measuredCase{name: "another", e: c.e, listener: "plain"}
		all = append(all, other.measure(t, 1, 4000)[4])
		busy.Wait()
	}
	slices.Sort(all)
	return all[1]
}

// plainRoute are the filters of a listener without the rate limit filter.
func plainRoute(filter string) string {
	return `
- name: envoy.filters.network.http_connection_manager
  typed_config:
    "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
    stat_prefix: plain
    use_remote_address: true
    xff_num_trusted_hops: 1
    route_config:
      virtual_hosts: [{name: all, domains: ["*"], routes: [{match: {prefix: /}, route: {cluster: upstream, timeout: 60s}}]}]
    http_filters:` + indent(4, filter) + `
    - {name: envoy.filters.http.router, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}
`
}

// quotaFilter has a bucket for each user, whose limit the service divides.
const quotaFilter = `
- name: envoy.filters.http.rate_limit_quota
  typed_config:
    "@type": type.googleapis.com/envoy.extensions.filters.http.rate_limit_quota.v3.RateLimitQuotaFilterConfig
    domain: e2e
    rlqs_server: {envoy_grpc: {cluster_name: memory}}
    bucket_matchers:
      on_no_match:
        action:
          name: user
          typed_config:
            "@type": type.googleapis.com/envoy.extensions.filters.http.rate_limit_quota.v3.RateLimitQuotaBucketSettings
            bucket_id_builder:
              bucket_id_builder:
                user:
                  custom_value:
                    name: user
                    typed_config:
                      "@type": type.googleapis.com/envoy.type.matcher.v3.HttpRequestHeaderMatchInput
                      header_name: x-user
            reporting_interval: 5s
            no_assignment_behavior: {fallback_rate_limit: {blanket_rule: ALLOW_ALL}}
            expired_assignment_behavior: {fallback_rate_limit: {blanket_rule: ALLOW_ALL}}
`

type measuredCase struct {
	name     string
	e        *envoy
	listener string
	s        *service // the service to measure too; nil if Envoy calls no service
	keys     int      // default 100
}

// measured are the CPU of Envoy and of the service, p50, p99 and p99.9, in microseconds for each request.
type measured [5]float64

func medians(all []measured) (m measured) {
	for j := range m {
		var values []float64
		for _, one := range all {
			values = append(values, one[j])
		}
		slices.Sort(values)
		m[j] = values[len(values)/2]
	}
	return m
}

func (c *measuredCase) measure(t *testing.T, connections, requests int) (m measured) {
	t.Helper()
	var next atomic.Int64
	var callers sync.WaitGroup
	took := make([]time.Duration, requests)
	before := c.cpu(t)
	for range connections {
		callers.Go(func() {
			conn, err := net.Dial("tcp", c.e.ports[c.listener])
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close()
			answers := bufio.NewReader(conn)
			for {
				i := int(next.Add(1)) - 1
				if i >= requests {
					return
				}
				began := time.Now()
				_, _ = fmt.Fprintf(conn, "GET / HTTP/1.1\r\nhost: a\r\nx-user: %d\r\n\r\n", i%cmp.Or(c.keys, 100))
				res, err := http.ReadResponse(answers, nil)
				if err != nil || res.StatusCode != http.StatusOK {
					t.Errorf("%s: %v, %v", c.name, res, err)
					return
				}
				_, _ = io.Copy(io.Discard, res.Body)
				took[i] = time.Since(began)
			}
		})
	}
	callers.Wait()
	for i, after := range c.cpu(t) {
		m[i] = (after - before[i]) / float64(requests)
	}
	slices.Sort(took)
	for i, per := range []int{500, 990, 999} {
		m[2+i] = float64(took[requests*per/1000].Microseconds())
	}
	return m
}

// cpu is the CPU that Envoy and the service have used, in microseconds.
func (c *measuredCase) cpu(t *testing.T) (used [2]float64) {
	t.Helper()
	used[0] = cpuOf(t, c.e.Cmd.Process.Pid)
	if c.s != nil {
		used[1] = cpuOf(t, c.s.Cmd.Process.Pid)
	}
	return used
}

// cpuOf sums the CPU of all threads, which the scheduler counts in nanoseconds.
func cpuOf(t *testing.T, pid int) (microseconds float64) {
	t.Helper()
	tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, task := range tasks {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%s/schedstat", pid, task.Name()))
		if err != nil {
			continue // it has ended
		}
		first, _, _ := strings.Cut(string(text), " ")
		ns, err := strconv.ParseFloat(first, 64)
		if err != nil {
			t.Fatal(err)
		}
		microseconds += ns / 1000
	}
	return microseconds
}
