package limiter_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/ratelimitd/ratelimitd/internal/backend/memory"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
	"github.com/ratelimitd/ratelimitd/internal/platform/metric/prom"
)

// measured is a limiter whose metrics are read back.
type measured struct {
	*limiter.Limiter
	t        *testing.T
	registry *prometheus.Registry
}

func newMeasured(t *testing.T, maxSeries int, nodes ...descriptor.NodeSpec) *measured {
	t.Helper()
	m := &measured{t: t, registry: prometheus.NewPedanticRegistry()}
	m.Limiter = limiter.New(limiter.Options{Store: memory.New(memory.Options{}), MaxSeries: maxSeries, Metrics: prom.With(m.registry)})
	m.rules(nodes...)
	return m
}

func (m *measured) rules(nodes ...descriptor.NodeSpec) {
	m.t.Helper()
	tree, err := descriptor.Compile([]descriptor.DomainSpec{{Name: "d", Children: nodes}}, descriptor.Options{})
	if err != nil {
		m.t.Fatal(err)
	}
	m.Swap(tree, limiter.Settings{})
}

func (m *measured) ask(domain string, hits uint32, pairs ...string) {
	m.t.Helper()
	req := &limiter.Request{Domain: domain, Hits: hits, Descriptors: []limiter.Descriptor{{Entries: entries(pairs...)}}}
	if err := m.Decide(context.Background(), noon, req, new(limiter.Decision)); err != nil {
		m.t.Fatal(err)
	}
}

// value returns the sum of a metric over all series with these labels, "name=value" each, and the number of series.
func (m *measured) value(name string, labels ...string) (sum float64, series int) {
	m.t.Helper()
	families, err := m.registry.Gather()
	if err != nil {
		m.t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, one := range f.GetMetric() {
			has := 0
			for _, l := range one.GetLabel() {
				for _, want := range labels {
					if l.GetName()+"="+l.GetValue() == want {
						has++
					}
				}
			}
			if has == len(labels) {
				series++
				sum += one.GetCounter().GetValue() + one.GetGauge().GetValue()
			}
		}
	}
	return sum, series
}

func (m *measured) want(value float64, name string, labels ...string) {
	m.t.Helper()
	if got, _ := m.value(name, labels...); got != value {
		m.t.Errorf("%s%q is %v, want %v", name, labels, got, value)
	}
}

func (m *measured) statistics() map[string]uint64 {
	all := make(map[string]uint64)
	m.Statistics(func(path, stat string, n uint64) {
		if n > 0 {
			all[path+"."+stat] += n
		}
	})
	return all
}

func detailed(r *descriptor.Rule) { r.DetailedMetric = true }

// The number of series is bounded for any requests, plus one series for the rest. A metric counts the names that went
// to the rest.
func TestSeriesAreBounded(t *testing.T) {
	const most = 20
	m := newMeasured(t, most, perMinute("k", "", 1000, detailed), perMinute("plain", "", 1000))
	var callers sync.WaitGroup
	for c := range 4 {
		callers.Go(func() {
			for i := range 100 {
				m.ask("d", 1, fmt.Sprintf("k=%d", c*100+i))
			}
		})
	}
	callers.Wait()
	if _, series := m.value("ratelimitd_rule_hits_total"); series != most+1 {
		t.Errorf("%d series, want %d and the one for the rest", series, most)
	}
	m.want(most, "ratelimitd_metric_series")
	m.want(400, "ratelimitd_rule_hits_total") // none is lost
	m.want(400-(most-1), "ratelimitd_rule_hits_total", "domain=overflow", "rule=overflow")
	m.want(400-(most-1), "ratelimitd_metric_series_overflow_total")

	m.ask("d", 5, "plain=x")
	m.want(5, "ratelimitd_rule_hits_total", "rule=plain")
	m.want(400-(most-1), "ratelimitd_metric_series_overflow_total")
	if got := m.statistics()["ratelimit.service.rate_limit.overflow.overflow.total_hits"]; got != 400-(most-1) {
		t.Errorf("the reference's statistics have %d hits beyond the bound", got)
	}
}

// Requests that used up all series do not hide rules that come later. If there are too many rules, they share the
// series for the rest.
func TestRulesFindRoom(t *testing.T) {
	m := newMeasured(t, 3, perMinute("k", "", 1000, detailed))
	for i := range 10 {
		m.ask("d", 1, fmt.Sprintf("k=%d", i))
	}
	many := []descriptor.NodeSpec{perMinute("k", "", 1000, detailed)}
	for i := range 5 {
		many = append(many, perMinute(fmt.Sprintf("rule%d", i), "", 1000))
	}
	m.rules(many...)
	for i := range 5 {
		m.ask("d", 1, fmt.Sprintf("rule%d=x", i))
	}
	m.want(1, "ratelimitd_rule_hits_total", "rule=rule0")
	m.want(1, "ratelimitd_rule_hits_total", "rule=rule2")
	m.want(0, "ratelimitd_rule_hits_total", "rule=rule3")
	if _, series := m.value("ratelimitd_rule_hits_total"); series != 2*3+1 {
		t.Errorf("%d series, want twice the bound, and the one for the rest", series)
	}
	m.want(15, "ratelimitd_rule_hits_total")
}

// Long names are not kept: otherwise a bound on the number of names would not bound memory.
func TestLongNamesAreNotKept(t *testing.T) {
	m := newMeasured(t, 10, perMinute("k", "", 1000, detailed))
	m.ask("d", 1, "k="+strings.Repeat("x", 600))
	m.ask("d", 1, "k=short")
	m.want(1, "ratelimitd_rule_hits_total", "domain=overflow")
	m.want(1, "ratelimitd_metric_series")
	m.ask(strings.Repeat("d", 600), 1, "k=v")
	if got := m.statistics()["ratelimit.service.rate_limit.overflow.domain_not_found"]; got != 1 {
		t.Errorf("an unknown domain with a long name is counted %d times", got)
	}
}

// A name that equals the name of the overflow series is counted there: two series of one name would make the scrape
// fail.
func TestOverflowIsAName(t *testing.T) {
	m := newMeasured(t, 1, perMinute("k", "", 1000, detailed))
	m.ask("d", 1, "k=a")
	m.ask("d", 1, "k=b")
	tree, err := descriptor.Compile([]descriptor.DomainSpec{{Name: "overflow", Children: []descriptor.NodeSpec{perMinute("overflow", "", 9)}}}, descriptor.Options{})
	if err != nil {
		t.Fatal(err)
	}
	m.Swap(tree, limiter.Settings{})
	m.ask("overflow", 1, "overflow=x")
	m.want(2, "ratelimitd_rule_hits_total", "domain=overflow", "rule=overflow")
}

func TestUnknownDomainsAreBounded(t *testing.T) {
	m := newMeasured(t, 50, perMinute("k", "", 1000))
	for i := range 100 {
		m.ask(fmt.Sprintf("unknown%d", i), 1, "k=v")
	}
	m.want(100, "ratelimitd_unknown_domain_requests_total")
	m.want(95, "ratelimitd_metric_series_overflow_total")
	var known int
	for name, n := range m.statistics() {
		if strings.HasSuffix(name, ".domain_not_found") && n == 1 {
			known++
		}
	}
	if known != 5 {
		t.Errorf("%d unknown domains have a statistic, want a tenth of the bound", known)
	}
	if got := m.statistics()["ratelimit.service.rate_limit.overflow.domain_not_found"]; got != 95 {
		t.Errorf("the others were counted %d times, want 95", got)
	}
	m.want(1, "ratelimitd_metric_series") // they use up no series of rules
}

// A request that no rule matches is counted under its domain. It passes, and a typo in a key looks the same.
func TestRequestsWithoutRule(t *testing.T) {
	m := newMeasured(t, 100, perMinute("k", "", 1000), descriptor.NodeSpec{Key: "free", Rule: &descriptor.Rule{Unlimited: true}})
	const metric = "ratelimitd_no_rule_requests_total"
	m.ask("d", 1, "k=v")
	m.ask("d", 0, "k=v")
	m.ask("d", 1, "free=v")
	m.ask("other", 1, "k=v") // another metric counts it
	both := &limiter.Request{Domain: "d", Hits: 1, Descriptors: []limiter.Descriptor{{Entries: entries("typo=v")}, {Entries: entries("k=v")}}}
	limited := &limiter.Request{Domain: "d", Hits: 1, Descriptors: []limiter.Descriptor{
		{Entries: entries("typo=v"), HasLimit: true, Limit: limiter.RequestLimit{Requests: 1, Unit: int32(descriptor.Minute)}},
	}}
	for _, req := range []*limiter.Request{both, limited} {
		if err := m.Decide(t.Context(), noon, req, new(limiter.Decision)); err != nil {
			t.Fatal(err)
		}
	}
	if n, series := m.value(metric); n != 0 || series != 0 {
		t.Errorf("%v in %d series before any request without a rule", n, series)
	}
	for range 3 {
		m.ask("d", 1, "typo=v")
	}
	m.want(3, metric, "domain=d")
	m.want(3, metric)
}

// Names are envoyproxy/ratelimit's: StatsD's special characters and the dots of addresses are replaced. In addition, no
// value can start another statistic.
func TestStatisticsOfTheReference(t *testing.T) {
	m := newMeasured(t, 100,
		perMinute("k", "", 3, detailed),
		perMinute("shadowed", "", 2, func(r *descriptor.Rule) { r.Shadow = true }),
		descriptor.NodeSpec{Key: "free", Rule: &descriptor.Rule{Unlimited: true}})
	m.ask("d", 1, "k=10.20.30.40")
	m.ask("d", 1, "k=10.20.30.0/24")
	m.ask("d", 1, "k=a:b|c.d")
	m.ask("d", 1, "k=evil\nother:1|c")
	m.ask("d", 5, "k=") // 3 fit, 2 are over
	m.ask("d", 3, "shadowed=x")
	m.ask("d", 7, "free=x")
	m.ask("nowhere", 1, "k=v")
	if err := m.Decide(context.Background(), noon, &limiter.Request{Domain: "d"}, new(limiter.Decision)); !errors.As(err, new(*limiter.InvalidError)) {
		t.Fatal(err)
	}
	const d = "ratelimit.service.rate_limit.d."
	want := map[string]uint64{
		d + "k_10_20_30_40.total_hits": 1, d + "k_10_20_30_40.within_limit": 1,
		d + "k_10_20_30_0/24.total_hits": 1, d + "k_10_20_30_0/24.within_limit": 1,
		d + "k_a_b_c.d.total_hits": 1, d + "k_a_b_c.d.within_limit": 1,
		d + "k_evil_other_1_c.total_hits": 1, d + "k_evil_other_1_c.within_limit": 1,
		d + "k_.total_hits": 5, d + "k_.over_limit": 2, d + "k_.near_limit": 1,
		// the hit that did not fit
		d + "shadowed.total_hits": 3, d + "shadowed.over_limit": 1, d + "shadowed.near_limit": 1, d + "shadowed.shadow_mode": 1,
		"ratelimit.service.rate_limit.nowhere.domain_not_found":  1,
		"ratelimit.service.call.should_rate_limit.service_error": 1,
	}
	if diff := cmp.Diff(want, m.statistics()); diff != "" {
		t.Errorf("statistics (-want +got):\n%s", diff)
	}
	m.want(7, "ratelimitd_rule_hits_total", "rule=free") // envoyproxy/ratelimit does not count unlimited rules
}

// BenchmarkDecideBeyondTheBound measures values beyond the bound on names, from all goroutines in parallel.
func BenchmarkDecideBeyondTheBound(b *testing.B) {
	tree, err := descriptor.Compile([]descriptor.DomainSpec{{Name: "d", Children: []descriptor.NodeSpec{perMinute("k", "", math.MaxUint32, detailed)}}}, descriptor.Options{})
	if err != nil {
		b.Fatal(err)
	}
	l := limiter.New(limiter.Options{Store: memory.New(memory.Options{}), MaxSeries: 100})
	l.Swap(tree, limiter.Settings{})
	reqs := make([]*limiter.Request, 1<<16)
	for i := range reqs {
		reqs[i] = &limiter.Request{Domain: "d", Descriptors: []limiter.Descriptor{{Entries: entries(fmt.Sprintf("k=%d", i))}}}
	}
	var next atomic.Int64
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		d := new(limiter.Decision)
		for pb.Next() {
			if err := l.Decide(context.Background(), noon, reqs[int(next.Add(1))%len(reqs)], d); err != nil {
				b.Error(err)
				return
			}
		}
	})
}

// Names that share a counter share a name, at every level. Empty values, and limits of requests without entries, have
// the reference's names.
func TestNamesAreTheReferences(t *testing.T) {
	shared := perMinute("w", "x*", 3, detailed)
	shared.ShareThreshold = true
	parent := descriptor.NodeSpec{Key: "p", Value: "a*", ShareThreshold: true, Children: []descriptor.NodeSpec{perMinute("c", "", 3, detailed)}}
	m := newMeasured(t, 100, shared, parent, perMinute("alpha", "", 3, detailed))
	m.ask("d", 1, "w=x1")
	m.ask("d", 1, "w=x2")
	m.ask("d", 1, "p=a1", "c=v")
	m.ask("d", 1, "p=a2", "c=")
	m.ask("d", 1, "alpha=")
	limited := limiter.Descriptor{HasLimit: true, Limit: limiter.RequestLimit{Requests: 3, Unit: int32(descriptor.Minute)}}
	if err := m.Decide(context.Background(), noon, &limiter.Request{Domain: "d", Hits: 1, Descriptors: []limiter.Descriptor{limited}}, new(limiter.Decision)); err != nil {
		t.Fatal(err)
	}
	const d = "ratelimit.service.rate_limit.d."
	want := map[string]uint64{
		d + "w_x*.total_hits": 2, d + "w_x*.within_limit": 2,
		d + "p_a*.c_v.total_hits": 1, d + "p_a*.c_v.within_limit": 1,
		d + "p_a*.c.total_hits": 1, d + "p_a*.c.within_limit": 1,
		d + "alpha_.total_hits": 1, d + "alpha_.within_limit": 1,
		d + ".total_hits": 1, d + ".within_limit": 1,
	}
	if diff := cmp.Diff(want, m.statistics()); diff != "" {
		t.Errorf("statistics (-want +got):\n%s", diff)
	}
}
