package main

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/google/go-cmp/cmp"

	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
)

const measuredRules = `
domain: mongo_cps
descriptors:
  - key: database
    value: users
    rate_limit: {unit: year, requests_per_unit: 5}
    descriptors:
      - key: op
        value: read
        rate_limit: {unit: year, requests_per_unit: 100}
        descriptors:
          - key: table
            rate_limit: {unit: year, requests_per_unit: 100}
  - key: remote_address
    detailed_metric: true
    rate_limit: {unit: year, requests_per_unit: 100}
  - key: tenant
    value_to_metric: true
    descriptors:
      - key: path
        rate_limit: {unit: year, requests_per_unit: 100}
  - key: file
    value: log*
    share_threshold: true
    value_to_metric: true
    rate_limit: {unit: year, requests_per_unit: 100}
  - key: trial
    shadow_mode: true
    rate_limit: {unit: year, requests_per_unit: 1}
  - key: free
    rate_limit: {unlimited: true}
`

// traffic sends requests for each of these rules and for the cases that envoyproxy/ratelimit counts separately: 12
// calls over gRPC.
func traffic(t *testing.T, addr string) {
	t.Helper()
	client := ratelimitv3.NewRateLimitServiceClient(dial(t, addr))
	for _, pairs := range [][]string{
		{"database", "users"},
		{"database", "users", "op", "read"},
		{"database", "users", "op", "read", "table", "t1"},
		{"remote_address", "10.0.0.1"},
		{"tenant", "acme", "path", "/a"},
		{"file", "log1"},
		{"trial", "x"},
		{"trial", "x"},
		{"free", "x"},
	} {
		if _, err := client.ShouldRateLimit(t.Context(), ask("mongo_cps", pairs...)); err != nil {
			t.Fatal(err)
		}
	}
	heavy := ask("mongo_cps", "database", "users")
	heavy.HitsAddend = 6 // 4 fit, one of them near the limit; 2 are over
	if _, err := client.ShouldRateLimit(t.Context(), heavy); err != nil {
		t.Fatal(err)
	}
	if _, err := client.ShouldRateLimit(t.Context(), ask("unknown", "k", "v")); err != nil {
		t.Fatal(err)
	}
	if _, err := client.ShouldRateLimit(t.Context(), ask("", "k", "v")); err == nil {
		t.Fatal("a request without a domain was answered")
	}
}

// shown returns the metrics that a service exports to Prometheus under names with this prefix, without timings.
func shown(t *testing.T, url, prefix string) []string {
	t.Helper()
	code, body := get(t, url)
	if code != http.StatusOK {
		t.Fatalf("%s: %d\n%s", url, code, body)
	}
	var lines []string
	for line := range strings.Lines(body) {
		line = strings.TrimSuffix(line, "\n")
		if strings.HasPrefix(line, prefix) && !strings.Contains(line, "_bucket{") && !strings.Contains(line, "_sum") {
			lines = append(lines, line)
		}
	}
	slices.Sort(lines)
	return lines
}

// trafficForPrometheus lists the lines that traffic adds to envoyproxy/ratelimit's metrics: names, labels and numbers.
var trafficForPrometheus = []string{
	`ratelimit_service_config_load_error 0`,
	`ratelimit_service_config_load_success 1`,
	`ratelimit_service_global_shadow_mode 0`,
	`ratelimit_service_rate_limit_near_limit{domain="mongo_cps",key1="database_users"} 1`,
	`ratelimit_service_rate_limit_near_limit{domain="mongo_cps",key1="trial"} 1`,
	`ratelimit_service_rate_limit_over_limit{domain="mongo_cps",key1="database_users"} 2`,
	`ratelimit_service_rate_limit_over_limit{domain="mongo_cps",key1="trial"} 1`,
	`ratelimit_service_rate_limit_shadow_mode{domain="mongo_cps",key1="trial"} 1`,
	`ratelimit_service_rate_limit_unknown_domain_not_found 1`,
	`ratelimit_service_rate_limit_total_hits{domain="mongo_cps",key1="database_users"} 7`,
	// the third key has no label in envoyproxy/ratelimit
	`ratelimit_service_rate_limit_total_hits{domain="mongo_cps",key1="database_users",key2="op_read"} 2`,
	`ratelimit_service_rate_limit_total_hits{domain="mongo_cps",key1="file_log*"} 1`,
	`ratelimit_service_rate_limit_total_hits{domain="mongo_cps",key1="remote_address_10_0_0_1"} 1`,
	`ratelimit_service_rate_limit_total_hits{domain="mongo_cps",key1="tenant_acme",key2="path"} 1`,
	`ratelimit_service_rate_limit_total_hits{domain="mongo_cps",key1="trial"} 2`,
	`ratelimit_service_rate_limit_within_limit{domain="mongo_cps",key1="database_users"} 1`,
	`ratelimit_service_rate_limit_within_limit{domain="mongo_cps",key1="database_users",key2="op_read"} 2`,
	`ratelimit_service_rate_limit_within_limit{domain="mongo_cps",key1="file_log*"} 1`,
	`ratelimit_service_rate_limit_within_limit{domain="mongo_cps",key1="remote_address_10_0_0_1"} 1`,
	`ratelimit_service_rate_limit_within_limit{domain="mongo_cps",key1="tenant_acme",key2="path"} 1`,
	`ratelimit_service_rate_limit_within_limit{domain="mongo_cps",key1="trial"} 1`,
	`ratelimit_service_response_time_seconds_count{grpc_method="ShouldRateLimit"} 12`,
	`ratelimit_service_should_rate_limit_error{err_type="redis_error"} 0`,
	`ratelimit_service_should_rate_limit_error{err_type="service_error"} 1`,
	`ratelimit_service_total_requests{grpc_method="ShouldRateLimit"} 12`,
}

func sorted(lines []string) []string { return slices.Sorted(slices.Values(lines)) }

func TestMetricsOfTheReference(t *testing.T) {
	p := startProcess(t, map[string]string{
		"USE_PROMETHEUS": "true", "PROMETHEUS_ADDR": "127.0.0.1:0", "PROMETHEUS_PATH": "/own/path",
		"PROMETHEUS_MAPPER_YAML": filepath.Join(t.TempDir(), "not", "there.yaml"),
	}, "--rules", rulesOf(t, measuredRules))
	p.Log.Wait(t, "PROMETHEUS_MAPPER_YAML names a file that does not exist: the built-in mapping is used")
	traffic(t, p.GRPC)
	own := p.Log.Wait(t, "listening")["prometheus"].(string)
	for _, url := range []string{"http://" + p.HTTP + "/metrics", "http://" + own + "/own/path"} {
		if diff := cmp.Diff(sorted(trafficForPrometheus), shown(t, url, "ratelimit_")); diff != "" {
			t.Errorf("%s (-want +got):\n%s", url, diff)
		}
	}
	if code, _ := get(t, "http://"+own+"/metrics"); code != http.StatusNotFound {
		t.Errorf("the listener for Prometheus answers other paths too: %d", code)
	}
	// Our own metrics come in addition. Their rules are not merged, however deep they are.
	got := shown(t, "http://"+p.HTTP+"/metrics", `ratelimitd_rule_hits_total{domain="mongo_cps",rule="database`)
	want := []string{
		`ratelimitd_rule_hits_total{domain="mongo_cps",rule="database_users"} 7`,
		`ratelimitd_rule_hits_total{domain="mongo_cps",rule="database_users.op_read"} 1`,
		`ratelimitd_rule_hits_total{domain="mongo_cps",rule="database_users.op_read.table"} 1`,
	}
	if diff := cmp.Diff(sorted(want), got); diff != "" {
		t.Errorf("own metrics (-want +got):\n%s", diff)
	}
	_, stats := get(t, "http://"+p.Debug+"/stats")
	for _, line := range []string{
		"ratelimit.service.rate_limit.mongo_cps.database_users.op_read.table.total_hits: 1\n",
		"ratelimit.service.rate_limit.mongo_cps.remote_address_10_0_0_1.within_limit: 1\n",
		"ratelimit_server.ShouldRateLimit.total_requests: 12\n",
	} {
		if !strings.Contains(stats, line) {
			t.Errorf("/stats does not have %q:\n%s", line, stats)
		}
	}
}

func TestOwnMapping(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "conf.yaml", `
mappings:
  - match: ratelimit.service.rate_limit.*.*.*.*.total_hits
    name: rl_hits
    timer_type: histogram
    labels: {domain: $1, database: $2, op: $3, third: $4}
  - match: ratelimit_server.*.response_time
    name: rl_ms
    timer_type: histogram
    labels: {method: $1}
  - match: '.'
    match_type: regex
    action: drop
    name: dropped
`)
	p := startProcess(t, map[string]string{"PROMETHEUS_MAPPER_YAML": filepath.Join(dir, "conf.yaml"), "EXTRA_TAGS": "env:prod"}, "--rules", rulesOf(t, measuredRules))
	traffic(t, p.GRPC)
	want := []string{
		`rl_hits{database="database_users",domain="mongo_cps",env="prod",op="op_read",third="table"} 1`,
		`rl_ms_count{env="prod",method="ShouldRateLimit"} 12`,
	}
	if diff := cmp.Diff(want, shown(t, "http://"+p.HTTP+"/metrics", "rl_")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got := shown(t, "http://"+p.HTTP+"/metrics", "ratelimit_"); len(got) > 0 {
		t.Errorf("what the mapping drops is shown: %q", got)
	}
}

// daemon is a StatsD or DogStatsD daemon that keeps the lines it receives.
type daemon struct {
	host, port string
	lines      chan string
}

func listenStatsD(t *testing.T, network string) *daemon {
	t.Helper()
	d := &daemon{host: "127.0.0.1", lines: make(chan string, 1<<16)}
	read := func(conn net.Conn) {
		for s := bufio.NewScanner(conn); s.Scan(); {
			d.lines <- s.Text()
		}
	}
	if network == "udp" {
		conn, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		go read(conn)
		_, d.port, _ = net.SplitHostPort(conn.LocalAddr().String())
		return d
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go read(conn)
		}
	}()
	_, d.port, _ = net.SplitHostPort(l.Addr().String())
	return d
}

// sum adds up received counters until all of them reach the wanted numbers.
func (d *daemon) sum(t *testing.T, want map[string]int) {
	t.Helper()
	got := make(map[string]int)
	deadline := time.After(patience)
	for {
		missing := ""
		for name, n := range want {
			if got[name] > n {
				t.Fatalf("%s came as %d, want %d", name, got[name], n)
			}
			if got[name] < n {
				missing = name
			}
		}
		if missing == "" {
			return
		}
		select {
		case line := <-d.lines:
			name, rest, _ := strings.Cut(line, ":")
			value, kind, _ := strings.Cut(rest, "|")
			if kind, tags, _ := strings.Cut(kind, "|"); kind == "c" {
				var n int
				if _, err := fmt.Sscan(value, &n); err != nil {
					t.Fatalf("%q: %v", line, err)
				}
				if tags, ok := strings.CutPrefix(tags, "#"); ok {
					tags, _, _ = strings.Cut(tags, "|")
					name += "#" + tags
				}
				got[name] += n
			} else if kind == "ms" {
				got[name+"|ms"]++
			}
		case <-deadline:
			t.Fatalf("%s came as %d, want %d; all: %v", missing, got[missing], want[missing], got)
		}
	}
}

// With both StatsD and Prometheus on, each receives all statistics.
func TestStatsDAndPrometheus(t *testing.T) {
	for _, network := range []string{"tcp", "udp"} {
		t.Run(network, func(t *testing.T) {
			d := listenStatsD(t, network)
			env := map[string]string{
				"USE_STATSD": "true", "STATSD_HOST": d.host, "STATSD_PORT": d.port, "STATS_FLUSH_INTERVAL": "20ms",
				"USE_PROMETHEUS": "true", "PROMETHEUS_ADDR": "127.0.0.1:0", "DD_ENV": "x",
			}
			if network == "udp" {
				env["STATSD_PROTOCOL"] = "udp" // TCP is the default, as in envoyproxy/ratelimit
			}
			p := startProcess(t, env, "--rules", rulesOf(t, measuredRules))
			traffic(t, p.GRPC)
			d.sum(t, map[string]int{
				"ratelimit.service.rate_limit.mongo_cps.database_users.total_hits":               7,
				"ratelimit.service.rate_limit.mongo_cps.database_users.over_limit":               2,
				"ratelimit.service.rate_limit.mongo_cps.database_users.op_read.table.total_hits": 1,
				"ratelimit.service.rate_limit.mongo_cps.remote_address_10_0_0_1.within_limit":    1,
				"ratelimit.service.rate_limit.mongo_cps.tenant_acme.path.total_hits":             1,
				"ratelimit.service.rate_limit.mongo_cps.file_log*.total_hits":                    1,
				"ratelimit.service.rate_limit.mongo_cps.trial.shadow_mode":                       1,
				"ratelimit.service.rate_limit.unknown.domain_not_found":                          1,
				"ratelimit.service.call.should_rate_limit.service_error":                         1,
				"ratelimit.service.config_load_success":                                          1,
				"ratelimit_server.ShouldRateLimit.total_requests":                                12,
				"ratelimit_server.ShouldRateLimit.response_time|ms":                              12,
			})
			own := p.Log.Wait(t, "listening")["prometheus"].(string)
			if diff := cmp.Diff(sorted(trafficForPrometheus), shown(t, "http://"+own+"/metrics", "ratelimit_")); diff != "" {
				t.Errorf("Prometheus (-want +got):\n%s", diff)
			}
		})
	}
}

func TestDogStatsD(t *testing.T) {
	d := listenStatsD(t, "udp")
	p := startProcess(t, map[string]string{
		"USE_DOG_STATSD": "true", "STATSD_HOST": d.host, "STATSD_PORT": d.port, "STATS_FLUSH_INTERVAL": "20ms",
		"EXTRA_TAGS":                        "env:prod",
		"USE_DOG_STATSD_MOGRIFIERS":         "RULE,TIME",
		"DOG_STATSD_MOGRIFIER_RULE_PATTERN": `^ratelimit\.service\.rate_limit\.([^.]*)\.(.*)\.([^.]*)$`,
		"DOG_STATSD_MOGRIFIER_RULE_NAME":    "ratelimit.$3",
		"DOG_STATSD_MOGRIFIER_RULE_TAGS":    "domain:$1,descriptor:$2",
		"DOG_STATSD_MOGRIFIER_TIME_PATTERN": `^ratelimit_server\.(.*)\.response_time$`,
		"DOG_STATSD_MOGRIFIER_TIME_NAME":    "took.$1",
	}, "--rules", rulesOf(t, measuredRules))
	traffic(t, p.GRPC)
	d.sum(t, map[string]int{
		"ratelimit.total_hits#env:prod,descriptor:database_users,domain:mongo_cps":               7,
		"ratelimit.over_limit#env:prod,descriptor:database_users,domain:mongo_cps":               2,
		"ratelimit.total_hits#env:prod,descriptor:database_users.op_read.table,domain:mongo_cps": 1,
		"ratelimit.service.config_load_success#env:prod":                                         1,
		"ratelimit_server.ShouldRateLimit.total_requests#env:prod":                               12,
		"took.ShouldRateLimit|ms": 12,
	})
}

// Connections are counted separately for each Redis.
func TestStatisticsOfRedis(t *testing.T) {
	first, second := redistest.Start(t), redistest.Start(t)
	p := startProcess(t, map[string]string{
		"REDIS_URL": first.Addr, "REDIS_PERSECOND": "true", "REDIS_PERSECOND_URL": second.Addr, "LOCAL_CACHE_SIZE_IN_BYTES": "1000000",
		"REDIS_AUTH": "", "REDIS_OP_TIMEOUT": "5s",
	}, "--rules", rulesOf(t, "domain: d\ndescriptors:\n  - key: k\n    rate_limit: {unit: day, requests_per_unit: 1}\n  - key: s\n    rate_limit: {unit: second, requests_per_unit: 1}\n"))
	client := ratelimitv3.NewRateLimitServiceClient(dial(t, p.GRPC))
	for range 3 {
		for _, key := range []string{"k", "s"} {
			if _, err := client.ShouldRateLimit(t.Context(), ask("d", key, "v")); err != nil {
				t.Fatal(err)
			}
		}
	}
	url := "http://" + p.HTTP + "/metrics"
	numbers := func(prefix string) map[string]int {
		all := make(map[string]int)
		for _, line := range shown(t, url, prefix) {
			var n int
			name, value, _ := strings.Cut(line, " ")
			if _, err := fmt.Sscan(value, &n); err != nil {
				t.Fatalf("%q: %v", line, err)
			}
			all[name] = n
		}
		return all
	}
	for _, pool := range []string{"ratelimit_redis_pool", "ratelimit_redis_per_second_pool"} {
		got := numbers(pool)
		active, total, closed := got[pool+"_cx_active"], got[pool+"_cx_total"], got[pool+"_cx_local_close"]
		if len(got) != 3 || total < 1 || active != total-closed {
			t.Errorf("%s: %v", pool, got)
		}
	}
	want := map[string]int{"ratelimit_service_rate_limit_d_k_over_limit_with_local_cache": 1}
	if diff := cmp.Diff(want, numbers("ratelimit_service_rate_limit_d_k")); diff != "" {
		t.Errorf("over-limit cache (-want +got):\n%s", diff)
	}
	if got := numbers("ratelimit_localcache_"); got["ratelimit_localcache_hitCount"] < 1 || got["ratelimit_localcache_entryCount"] < 1 {
		t.Errorf("over-limit cache: %v", got)
	}
	first.Kill(t)
	if _, err := client.ShouldRateLimit(t.Context(), ask("d", "k", "other")); err == nil {
		t.Fatal("answered without Redis")
	}
	if got := numbers("ratelimit_service_should_rate_limit_error{"); got[`ratelimit_service_should_rate_limit_error{err_type="redis_error"}`] != 1 {
		t.Errorf("after Redis is gone: %v", got)
	}
}

func TestStatisticsDisabled(t *testing.T) {
	d := listenStatsD(t, "udp")
	p := startProcess(t, map[string]string{
		"DISABLE_STATS": "true", "USE_STATSD": "true", "STATSD_PROTOCOL": "udp", "STATSD_HOST": d.host, "STATSD_PORT": d.port, "STATS_FLUSH_INTERVAL": "5ms",
		"USE_PROMETHEUS": "true", "PROMETHEUS_ADDR": "127.0.0.1:0",
	}, "--rules", rulesOf(t, measuredRules))
	if addr, ok := p.Log.Wait(t, "listening")["prometheus"]; ok {
		t.Errorf("it listens for Prometheus on %s", addr)
	}
	traffic(t, p.GRPC)
	url := "http://" + p.HTTP + "/metrics"
	if got := shown(t, url, "ratelimit_"); len(got) > 0 {
		t.Errorf("the reference's metrics are shown: %q", got)
	}
	if got := shown(t, url, "ratelimitd_decisions_total"); len(got) != 2 {
		t.Errorf("our own are not: %q", got)
	}
	p.Stop(t)
	select {
	case line := <-d.lines:
		t.Errorf("%q was sent", line)
	default:
	}
}

func TestStatisticsDoNotStart(t *testing.T) {
	rules := rulesOf(t, fiveADay)
	for name, c := range map[string]struct {
		env  map[string]string
		want []string
	}{
		"two kinds of StatsD": {map[string]string{"USE_STATSD": "true", "USE_DOG_STATSD": "true"}, []string{"USE_STATSD and USE_DOG_STATSD"}},
		"tags":                {map[string]string{"EXTRA_TAGS": "env"}, []string{"EXTRA_TAGS", `"env"`, "key:value"}},
		"an interval":         {map[string]string{"USE_STATSD": "true", "STATS_FLUSH_INTERVAL": "0s"}, []string{"STATS_FLUSH_INTERVAL", "at least 1ns"}},
		"a protocol":          {map[string]string{"STATSD_PROTOCOL": "carrier"}, []string{"--statsd-protocol", "tcp", "udp"}},
		"a mogrifier without a pattern": {map[string]string{"USE_DOG_STATSD": "true", "USE_DOG_STATSD_MOGRIFIERS": "FOO"},
			[]string{"FOO", "DOG_STATSD_MOGRIFIER_FOO_PATTERN", "DOG_STATSD_MOGRIFIER_FOO_NAME"}},
		"a mogrifier's pattern": {map[string]string{"USE_DOG_STATSD": "true", "USE_DOG_STATSD_MOGRIFIERS": "FOO", "DOG_STATSD_MOGRIFIER_FOO_PATTERN": "(", "DOG_STATSD_MOGRIFIER_FOO_NAME": "x"},
			[]string{"DOG_STATSD_MOGRIFIER_FOO_PATTERN", "missing closing )"}},
		"a mogrifier's tags": {map[string]string{"USE_DOG_STATSD": "true", "USE_DOG_STATSD_MOGRIFIERS": "FOO", "DOG_STATSD_MOGRIFIER_FOO_PATTERN": ".", "DOG_STATSD_MOGRIFIER_FOO_NAME": "x", "DOG_STATSD_MOGRIFIER_FOO_TAGS": "y"},
			[]string{"DOG_STATSD_MOGRIFIER_FOO_TAGS", `"y"`}},
	} {
		t.Run(name, func(t *testing.T) {
			env := map[string]string{"GRPC_PORT": "0", "PORT": "0", "DEBUG_PORT": "0"}
			for k, v := range c.env {
				env[k] = v
			}
			code, text := output(t, env, "--rules", rules)
			if code == 0 {
				t.Fatalf("it started and ended well:\n%s", text)
			}
			for _, want := range c.want {
				if !strings.Contains(text, want) {
					t.Errorf("it does not say %q:\n%s", want, text)
				}
			}
		})
	}
}
