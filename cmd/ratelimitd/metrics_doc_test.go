package main

import (
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/ratelimitd/ratelimitd/internal/testkit/racetest"
	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
	"github.com/ratelimitd/ratelimitd/internal/testkit/servicetest"
	"github.com/ratelimitd/ratelimitd/internal/testkit/tlstest"
)

// documented is a metric in docs/reference/metrics.md.
type documented struct {
	pattern         *regexp.Regexp // <...> matches anything
	labels, meaning string
	found           bool
}

var (
	metricRows  = regexp.MustCompile("(?m)^\\| (`ratelimitd?_[^`|.{]*(?:`, `[^`|.{]*)*)(?:\\{([\\w,]+)\\})?` \\| (.+) \\|$")
	metricNames = regexp.MustCompile("`(ratelimitd?_[^`]*)")
	linked      = regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`)
)

// documentedMetrics reads the tables of docs/reference/metrics.md, by the metric's name.
func documentedMetrics(t *testing.T) map[string]*documented {
	t.Helper()
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "reference", "metrics.md"))
	if err != nil {
		t.Fatal(err)
	}
	all := make(map[string]*documented)
	for _, row := range metricRows.FindAllStringSubmatch(string(page), -1) {
		labels := strings.Split(row[2], ",")
		slices.Sort(labels)
		for _, name := range metricNames.FindAllStringSubmatch(row[1], -1) {
			all[name[1]] = &documented{
				pattern: regexp.MustCompile("^" + regexp.MustCompile(`<\w+>`).ReplaceAllString(name[1], `.+`) + "$"),
				labels:  strings.Join(labels, ","),
				meaning: strings.ReplaceAll(linked.ReplaceAllString(row[3], "$1"), "`", ""),
			}
		}
	}
	if len(all) < 80 {
		t.Fatalf("found only %d metrics in the page", len(all))
	}
	return all
}

// kindByName returns the type of a metric, by the page's rules for names.
func kindByName(name string) string {
	ends := func(with ...string) bool {
		return slices.ContainsFunc(with, func(s string) bool { return strings.HasSuffix(name, s) })
	}
	ours := strings.HasPrefix(name, "ratelimitd_")
	switch {
	case ours && ends("_total"):
		return "counter"
	case ours && ends("_duration_seconds", "_rtt_seconds"), !ours && ends("_seconds"):
		return "histogram"
	case ours, ends("_cx_active"), strings.Contains(name, "localcache"):
		return "gauge"
	}
	return "counter"
}

// used returns the texts that operators look at: alerts, the dashboard, and the guides.
func used(t *testing.T) string {
	t.Helper()
	var all strings.Builder
	for _, files := range []string{"deploy/prometheus/alerts.yml", "deploy/grafana/dashboards/*.json", "docs/do/*.md", "docs/understand/*.md"} {
		names, err := filepath.Glob(filepath.Join("..", "..", files))
		if err != nil || len(names) == 0 {
			t.Fatalf("no files %s: %v", files, err)
		}
		for _, name := range names {
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			all.Write(text)
		}
	}
	return all.String()
}

// TestMetricsAreDocumented compares docs/reference/metrics.md with the metrics of services, in both directions: names,
// types, labels, and the meaning of ratelimitd's own metrics, which is their help text. An alert, a panel of the
// dashboard or a guide must name each metric of ratelimitd.
func TestMetricsAreDocumented(t *testing.T) {
	racetest.Sequential(t)
	rows, used := documentedMetrics(t), used(t)
	for name, family := range everyMetric(t) {
		if strings.HasPrefix(name, "go_") || strings.HasPrefix(name, "process_") {
			continue // not ours
		}
		row := rows[name]
		for _, other := range rows {
			if row == nil && other.pattern.MatchString(name) {
				row = other
			}
		}
		if row == nil {
			t.Errorf("%s (%s, labels %s) is not in docs/reference/metrics.md", name, family.kind, family.names())
			continue
		}
		row.found = true
		if row.labels != family.names() {
			t.Errorf("docs/reference/metrics.md says that %s has the labels %q; it has %q", name, row.labels, family.names())
		}
		if kind := kindByName(name); kind != family.kind {
			t.Errorf("by its name, %s is a %s on docs/reference/metrics.md; it is a %s", name, kind, family.kind)
		}
		if help := strings.TrimSuffix(family.help, "."); strings.HasPrefix(name, "ratelimitd_") && row.meaning != help {
			t.Errorf("docs/reference/metrics.md says of %s:\n%s\nIts help text is\n%s", name, row.meaning, help)
		}
	}
	for name, row := range rows {
		if strings.HasPrefix(name, "ratelimitd_") && !regexp.MustCompile(name+`(_bucket|_sum|_count)?\b`).MatchString(used) {
			t.Errorf("%s has no alert, panel or guide: name it where operators need it, or delete it", name)
		}
		if !row.found {
			t.Errorf("docs/reference/metrics.md has %s, which no service shows", name)
		}
	}
}

// shownFamily is a metric of a service: its type, its help text, and the labels of all its series.
type shownFamily struct {
	kind, help string
	labels     map[string]bool
}

func (f *shownFamily) names() string {
	return strings.Join(slices.Sorted(maps.Keys(f.labels)), ",")
}

// everyMetric returns the metrics of several services that use every feature between them.
func everyMetric(t *testing.T) map[string]*shownFamily {
	t.Helper()
	authority := tlstest.NewAuthority(t, "authority")
	pair := authority.Issue(t, "localhost")
	dir := t.TempDir()
	write(t, dir, "cert.pem", string(pair.Cert))
	write(t, dir, "key.pem", string(pair.Key))
	r := redistest.Start(t)
	d := listenStatsD(t, "udp")
	rules := rulesOf(t, measuredRules, "domain: deep\ndescriptors:\n  - key: a\n    descriptors:\n      - key: b\n        shadow_mode: true\n        rate_limit: {unit: year, requests_per_unit: 1}\n",
		"domain: beside\ndescriptors:\n  - key: a\n    rate_limit: {name: new, unit: year, requests_per_unit: 1, shadow: true, penalty: 1h}\n",
		"domain: shared\ndescriptors:\n  - key: priority\n    condition: true\n    rate_limit: {unit: year, requests_per_unit: 9, classes: {by: priority, guaranteed_percent: {high: 20}}}\n")
	inMemory := startProcess(t, map[string]string{"USE_STATSD": "true", "STATSD_PROTOCOL": "udp", "STATSD_HOST": d.host, "STATSD_PORT": d.port, "RATELIMITD_EVENTS": filepath.Join(dir, "events"), "TRACING_ENABLED": "true", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}, "--rules", rules)
	traffic(t, inMemory.GRPC)
	for range 2 {
		if _, err := ratelimitv3.NewRateLimitServiceClient(dial(t, inMemory.GRPC)).ShouldRateLimit(t.Context(), ask("deep", "a", "x", "b", "y")); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := ratelimitv3.NewRateLimitServiceClient(dial(t, inMemory.GRPC)).ShouldRateLimit(t.Context(), ask("shared", "priority", "high")); err != nil {
		t.Fatal(err)
	}
	subscribe(t, inMemory.GRPC, "mongo_cps", 1, map[string]string{"remote_address": "203.0.113.9"})
	// No rule matches it.
	if _, err := ratelimitv3.NewRateLimitServiceClient(dial(t, inMemory.GRPC)).ShouldRateLimit(t.Context(), ask("deep", "typo", "x")); err != nil {
		t.Fatal(err)
	}
	inRedis := startProcess(t, map[string]string{
		"REDIS_URL": r.Addr, "REDIS_PERSECOND": "true", "REDIS_PERSECOND_URL": r.Addr, "REDIS_OP_TIMEOUT": "5s", "LOCAL_CACHE_SIZE_IN_BYTES": "100000",
		"RATELIMITD_OVERRIDES": "redis",
	}, "--rules", rules)
	for range 3 {
		traffic(t, inRedis.GRPC)
	}
	encrypted := startProcess(t, map[string]string{
		"GRPC_SERVER_USE_TLS": "true", "GRPC_SERVER_TLS_CERT": filepath.Join(dir, "cert.pem"), "GRPC_SERVER_TLS_KEY": filepath.Join(dir, "key.pem"),
	}, "--rules", rules)

	inRegion := startProcess(t, merged(regionSettings(t, tlstest.NewAuthority(t, "regions"), "eu", "eu,us=127.0.0.1:1"), map[string]string{"REDIS_URL": r.Addr}), "--rules", rules)

	overXDS := startProcess(t, map[string]string{"CONFIG_TYPE": "GRPC_XDS_SOTW", "CONFIG_GRPC_XDS_SERVER_URL": "127.0.0.1:1"})

	all := make(map[string]*shownFamily)
	label := regexp.MustCompile(`(\w+)="(?:[^"\\]|\\.)*"`)
	for _, p := range []*servicetest.Process{inMemory, inRedis, encrypted, inRegion, overXDS} {
		code, body := get(t, "http://"+p.HTTP+"/metrics")
		if code != http.StatusOK {
			t.Fatalf("/metrics: %d", code)
		}
		var family *shownFamily
		helps := make(map[string]string) // help texts by metric name
		for line := range strings.Lines(body) {
			if rest, is := strings.CutPrefix(line, "# HELP "); is {
				name, help, _ := strings.Cut(strings.TrimSpace(rest), " ")
				helps[name] = help
			}
			var name, kind string
			if n, _ := fmt.Sscanf(line, "# TYPE %s %s", &name, &kind); n == 2 {
				if all[name] == nil {
					all[name] = &shownFamily{kind, helps[name], make(map[string]bool)}
				}
				family = all[name]
			}
			if strings.HasPrefix(line, "#") {
				continue
			}
			for _, m := range label.FindAllStringSubmatch(line, -1) {
				if m[1] != "le" {
					family.labels[m[1]] = true
				}
			}
		}
	}
	return all
}
