package promcompat

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/ratelimitd/ratelimitd/internal/platform/statsd"
)

// source is a source of these statistics: names to numbers.
func source(counters, gauges map[string]uint64) statsd.Source {
	visitAll := func(all map[string]uint64) func(func(path, stat string, n uint64)) {
		return func(visit func(path, stat string, n uint64)) {
			for name, n := range all {
				dot := strings.LastIndex(name, ".")
				visit(name[:dot], name[dot+1:], n)
			}
		}
	}
	return statsd.Source{Counters: visitAll(counters), Gauges: visitAll(gauges)}
}

func collector(t *testing.T, opts Options) (*Collector, *prometheus.Registry) {
	t.Helper()
	c, err := New(opts)
	if err != nil {
		t.Fatal(err)
	}
	r := prometheus.NewPedanticRegistry()
	r.MustRegister(c)
	return c, r
}

// want compares all that is shown, without the lines of comments.
func want(t *testing.T, r *prometheus.Registry, lines ...string) {
	t.Helper()
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	for _, f := range families {
		all.WriteString("# HELP " + f.GetName() + " " + f.GetHelp() + "\n# TYPE " + f.GetName() + " " + strings.ToLower(f.GetType().String()) + "\n")
		for _, line := range lines {
			if name := line[:strings.IndexAny(line, "{ ")]; name == f.GetName() || strings.HasPrefix(name, f.GetName()+"_") && f.GetType().String() != "COUNTER" {
				all.WriteString(line + "\n")
			}
		}
	}
	for _, line := range lines {
		if !strings.Contains(all.String(), "\n"+line+"\n") {
			t.Errorf("there is no metric for %s", line)
		}
	}
	if err := testutil.GatherAndCompare(r, strings.NewReader(all.String())); err != nil {
		t.Error(err)
	}
}

// The names and labels that dashboards for envoyproxy/ratelimit ask for.
func TestDefaultMapping(t *testing.T) {
	_, r := collector(t, Options{Source: source(map[string]uint64{
		"ratelimit.service.rate_limit.d.k.total_hits":                    6,
		"ratelimit.service.rate_limit.d.k.over_limit":                    1,
		"ratelimit.service.rate_limit.d.k.near_limit":                    2,
		"ratelimit.service.rate_limit.d.k.within_limit":                  3,
		"ratelimit.service.rate_limit.d.k.shadow_mode":                   4,
		"ratelimit.service.rate_limit.d.k.over_limit_with_local_cache":   5,
		"ratelimit.service.rate_limit.d.k_v.l_w.total_hits":              10,
		"ratelimit.service.rate_limit.d.k_v.l_w.m_x.total_hits":          20, // the third key has no label
		"ratelimit.service.rate_limit.d.k_v.l_w.m_x.n_y.total_hits":      30,
		"ratelimit.service.rate_limit.d.k.l.over_limit_with_local_cache": 7,
		"ratelimit.service.rate_limit.d.unused.total_hits":               0, // shown once it counts
		"ratelimit.service.rate_limit.x.domain_not_found":                8,
		"ratelimit.service.call.should_rate_limit.redis_error":           0,
		"ratelimit.service.call.should_rate_limit.service_error":         9,
		"ratelimit.service.config_load_success":                          1,
		"ratelimit.service.config_load_error":                            0,
		"ratelimit.service.global_shadow_mode":                           0,
		"ratelimit_server.ShouldRateLimit.total_requests":                11,
		"ratelimit.redis_pool.cx_total":                                  12,
	}, map[string]uint64{"ratelimit.redis_pool.cx_active": 0})})
	want(t, r,
		`ratelimit_service_rate_limit_total_hits{domain="d",key1="k"} 6`,
		`ratelimit_service_rate_limit_total_hits{domain="d",key1="k_v",key2="l_w"} 60`,
		`ratelimit_service_rate_limit_over_limit{domain="d",key1="k"} 1`,
		`ratelimit_service_rate_limit_near_limit{domain="d",key1="k"} 2`,
		`ratelimit_service_rate_limit_within_limit{domain="d",key1="k"} 3`,
		`ratelimit_service_rate_limit_shadow_mode{domain="d",key1="k"} 4`,
		`ratelimit_service_rate_limit_d_k_over_limit_with_local_cache 5`,
		`ratelimit_service_rate_limit_d_k_l_over_limit_with_local_cache 7`,
		`ratelimit_service_rate_limit_x_domain_not_found 8`,
		`ratelimit_service_should_rate_limit_error{err_type="redis_error"} 0`,
		`ratelimit_service_should_rate_limit_error{err_type="service_error"} 9`,
		`ratelimit_service_config_load_success 1`,
		`ratelimit_service_config_load_error 0`,
		`ratelimit_service_global_shadow_mode 0`,
		`ratelimit_service_total_requests{grpc_method="ShouldRateLimit"} 11`,
		`ratelimit_redis_pool_cx_total 12`,
		`ratelimit_redis_pool_cx_active 0`,
	)
}

func TestNumbersAreReadWhenAsked(t *testing.T) {
	numbers := map[string]uint64{"ratelimit.service.rate_limit.d.a.b.c.total_hits": 1, "ratelimit.service.rate_limit.d.a.b.x.total_hits": 0}
	_, r := collector(t, Options{Source: source(numbers, nil)})
	want(t, r, `ratelimit_service_rate_limit_total_hits{domain="d",key1="a",key2="b"} 1`)
	numbers["ratelimit.service.rate_limit.d.a.b.x.total_hits"] = 4
	want(t, r, `ratelimit_service_rate_limit_total_hits{domain="d",key1="a",key2="b"} 5`)
}

func TestTagsAreLabels(t *testing.T) {
	tags := []statsd.Tag{{Key: "build.id", Value: "1.2"}, {Key: "domain", Value: "never"}}
	c, r := collector(t, Options{Tags: tags, Source: source(map[string]uint64{
		"ratelimit.service.rate_limit.d.k.total_hits": 1,
		"ratelimit.service.config_load_error":         0,
	}, nil)})
	c.ResponseTime().Observe(1)
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		labels := make(map[string]string)
		for _, l := range f.GetMetric()[0].GetLabel() {
			labels[l.GetName()] = l.GetValue()
		}
		domain := "never"
		if f.GetName() == "ratelimit_service_rate_limit_total_hits" {
			domain = "d" // the mapping's
		}
		if labels["build_id"] != "1.2" || labels["domain"] != domain {
			t.Errorf("%s has the labels %v", f.GetName(), labels)
		}
	}
}

// A mapping as in envoyproxy/ratelimit's documents, some of whose keys the library no longer supports.
const ownMapping = `
defaults:
  timer_type: histogram
  buckets: [1, 2]
  ttl: 10s
mappings:
  - match: ratelimit.service.rate_limit.*.*.*.total_hits
    name: hits
    timer_type: histogram
    help: Mine.
    labels: {domain: $1, user: $2, path: "all $3"}
    ttl: 0s
  - match: 'ratelimit\.service\.rate_limit\.(.*)\.over_limit$'
    match_type: regex
    name: hits_over
    labels: {all: $1}
  - match: ratelimit.service.config_load_error
    name: errors_${0}
    action: drop
  - match: ratelimit.service.*
    match_metric_type: gauge
    name: never
  - match: ratelimit_server.*.response_time
    name: response_ms
    match_metric_type: timer
    buckets: [0.5, 100]
    labels: {method: $1}
  - match: ratelimit.service.config_load_success
    name: loads
    scale: 10
`

func TestOwnMapping(t *testing.T) {
	c, r := collector(t, Options{Mapping: ownMapping, Milliseconds: true, Source: source(map[string]uint64{
		"ratelimit.service.rate_limit.d.u.p.total_hits":   1,
		"ratelimit.service.rate_limit.d.u.total_hits":     2, // matches nothing
		"ratelimit.service.rate_limit.d.u.p.q.over_limit": 3,
		"ratelimit.service.config_load_error":             4,
		"ratelimit.service.config_load_success":           5,
		"ratelimit.service.global_shadow_mode":            0,
	}, nil)})
	c.ResponseTime().Observe(0.01)
	want(t, r,
		`hits{domain="d",path="all p",user="u"} 1`,
		`ratelimit_service_rate_limit_d_u_total_hits 2`,
		`hits_over{all="d.u.p.q"} 3`,
		`loads 50`,
		`ratelimit_service_global_shadow_mode 0`,
		`response_ms_bucket{method="ShouldRateLimit",le="0.5"} 0`,
		`response_ms_bucket{method="ShouldRateLimit",le="100"} 1`,
		`response_ms_bucket{method="ShouldRateLimit",le="+Inf"} 1`,
		`response_ms_sum{method="ShouldRateLimit"} 10`,
		`response_ms_count{method="ShouldRateLimit"} 1`,
	)
}

func TestTTL(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		numbers := map[string]uint64{"ratelimit.service.config_load_success": 1, "ratelimit.service.global_shadow_mode": 7}
		_, r := collector(t, Options{Mapping: "mappings: [{match: ratelimit.service.config_load_success, name: loads, ttl: 10s}]", Source: source(numbers, nil)})
		shown := []string{"loads 1", "ratelimit_service_global_shadow_mode 7"}
		want(t, r, shown...)
		time.Sleep(9 * time.Second) //nolint:forbidigo // virtual time
		want(t, r, shown...)
		time.Sleep(2 * time.Second) //nolint:forbidigo // virtual time
		want(t, r, shown[1])
		numbers["ratelimit.service.config_load_success"] = 2
		want(t, r, "loads 2", shown[1])
	})
}

// A mapping that turns statistics into both a counter and a gauge, or into invalid metrics, does not affect the others.
func TestMappingWithConflicts(t *testing.T) {
	_, r := collector(t, Options{
		Mapping: `{mappings: [
			{match: ratelimit.service.*, name: one, help: First.},
			{match: ratelimit.redis_pool.cx_total, name: one, help: Another text., labels: {of: pool}},
			{match: ratelimit.redis_pool.cx_active, name: one}]}`,
		Source: source(map[string]uint64{
			"ratelimit.service.config_load_error":             1,
			"ratelimit.service.config_load_success":           2,
			"ratelimit.redis_pool.cx_total":                   4,
			"ratelimit_server.ShouldRateLimit.total_requests": 8,
		}, map[string]uint64{"ratelimit.redis_pool.cx_active": 16}),
	})
	want(t, r, "one 3", `one{of="pool"} 4`, "ratelimit_server_ShouldRateLimit_total_requests 8")
}

func TestResponseTime(t *testing.T) {
	for _, c := range []struct {
		name    string
		opts    Options
		metric  string
		sum     float64
		buckets int
		kind    string
	}{
		{"built-in", Options{}, "ratelimit_service_response_time_seconds", 0.25, len(prometheus.DefBuckets), "HISTOGRAM"},
		{"in milliseconds", Options{Milliseconds: true}, "ratelimit_service_response_time_seconds", 250, len(prometheus.DefBuckets), "HISTOGRAM"},
		{"a summary by default", Options{Mapping: "mappings: []"}, "ratelimit_server_ShouldRateLimit_response_time", 250, 0, "SUMMARY"},
		{"quantiles", Options{Mapping: "mappings: [{match: ratelimit_server.*.response_time, name: t, timer_type: summary, quantiles: [{quantile: 0.5, error: 0.1}], scale: 0.002}]"},
			"t", 0.5, 0, "SUMMARY"},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.opts.Source = source(nil, nil)
			collector, r := collector(t, c.opts)
			collector.ResponseTime().Observe(0.25)
			families, err := r.Gather()
			if err != nil {
				t.Fatal(err)
			}
			if len(families) != 1 || families[0].GetName() != c.metric || families[0].GetType().String() != c.kind {
				t.Fatalf("got %v", families)
			}
			m := families[0].GetMetric()[0]
			if got := m.GetHistogram().GetSampleSum() + m.GetSummary().GetSampleSum(); got != c.sum {
				t.Errorf("sum %v, want %v", got, c.sum)
			}
			if got := len(m.GetHistogram().GetBucket()); got != c.buckets {
				t.Errorf("%d buckets, want %d", got, c.buckets)
			}
		})
	}
	c, _ := collector(t, Options{Source: source(nil, nil), Mapping: "mappings: [{match: ratelimit_server.*.response_time, name: t, action: drop}]"})
	if c.ResponseTime() != nil {
		t.Error("times that the mapping drops are observed")
	}
}

func TestBadMappings(t *testing.T) {
	for text, says := range map[string]string{
		"mappings: [":                                          "yaml",
		"mappings: [{match: a.b}]":                             "metric name",
		"mappings: [{match: 'a..b', name: c}]":                 "invalid match",
		"mappings: [{match: a, name: b, labels: {x: 1}}]":      "label",
		"mappings: [{match: a, name: b, lables: {}}]":          "lables",
		"mappings: [{match: '(', match_type: regex, name: b}]": "regex",
	} {
		if _, err := New(Options{Mapping: text}); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v, want an error with %q", text, err, says)
		}
	}
}

// Names may contain any text from clients.
func FuzzNames(f *testing.F) {
	f.Add("ratelimit.service.rate_limit.d.u.p", "total_hits")
	f.Add("ratelimit.service.rate_limit.a..b-- é", "domain_not_found")
	f.Add("", "")
	f.Fuzz(func(t *testing.T, path, stat string) {
		c, err := New(Options{Source: statsd.Source{Counters: func(visit func(path, stat string, n uint64)) { visit(path, stat, 1) }}})
		if err != nil {
			t.Fatal(err)
		}
		r := prometheus.NewRegistry()
		r.MustRegister(c)
		if _, err := r.Gather(); err != nil {
			t.Errorf("%q: %v", path+"."+stat, err)
		}
	})
}
