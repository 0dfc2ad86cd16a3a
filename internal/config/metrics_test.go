package config

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/ratelimitd/ratelimitd/internal/platform/metric/prom"
)

func TestMetrics(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "rules")
	registry := prometheus.NewPedanticRegistry()
	f := NewDirectory(Options{Dir: dir, Logger: new(logged).logger(), Metrics: prom.With(registry)})
	start := time.Now()
	want := func(when, text string) {
		t.Helper()
		text = "# HELP ratelimitd_rules Active rules.\n# TYPE ratelimitd_rules gauge\n" +
			"# HELP ratelimitd_rule_file_state 1 for each rule file or xDS resource in its state: loaded, stale or rejected.\n# TYPE ratelimitd_rule_file_state gauge\n" +
			"# HELP ratelimitd_rule_reloads_total Reloads of changed rules: success, or error in any file.\n# TYPE ratelimitd_rule_reloads_total counter\n" + text
		names := []string{"ratelimitd_rules", "ratelimitd_rule_reloads_total"}
		if strings.Contains(text, "ratelimitd_rule_file_state{") {
			names = append(names, "ratelimitd_rule_file_state")
		}
		if err := testutil.GatherAndCompare(registry, strings.NewReader(text), names...); err != nil {
			t.Errorf("%s: %v", when, err)
		}
	}
	reloads := func(success, failed string) string {
		return "ratelimitd_rule_reloads_total{result=\"success\"} " + success + "\nratelimitd_rule_reloads_total{result=\"error\"} " + failed + "\n"
	}
	want("before the first load", "ratelimitd_rules 0\n"+reloads("0", "0"))

	if _, err := f.Load(); err == nil {
		t.Fatal("a directory that is not there was read")
	}
	want("a directory that is not there", "ratelimitd_rules 0\n"+reloads("0", "1"))

	write(t, filepath.Join(dir, "a.yaml"), rules("a", 1))
	write(t, filepath.Join(dir, "b.yaml"), rules("b", 1))
	load(t, f, "a.yaml=loaded", "b.yaml=loaded")
	loaded := "ratelimitd_rule_file_state{file=\"a.yaml\",state=\"loaded\"} 1\n"
	want("good files", loaded+"ratelimitd_rule_file_state{file=\"b.yaml\",state=\"loaded\"} 1\nratelimitd_rules 2\n"+reloads("1", "1"))

	load(t, f, "a.yaml=loaded", "b.yaml=loaded")
	want("no change", loaded+"ratelimitd_rule_file_state{file=\"b.yaml\",state=\"loaded\"} 1\nratelimitd_rules 2\n"+reloads("1", "1"))

	write(t, filepath.Join(dir, "b.yaml"), "domain: [")
	write(t, filepath.Join(dir, "c\xff.yaml"), "domain: [")
	load(t, f, "a.yaml=loaded", "b.yaml=stale", "c\xff.yaml=rejected")
	want("bad files", loaded+"ratelimitd_rule_file_state{file=\"b.yaml\",state=\"stale\"} 1\n"+
		"ratelimitd_rule_file_state{file=\"\\\"c\\\\xff.yaml\\\"\",state=\"rejected\"} 1\nratelimitd_rules 2\n"+reloads("1", "2"))
	var stats strings.Builder
	f.Statistics(func(path, stat string, n uint64) { fmt.Fprintf(&stats, "%s.%s: %d\n", path, stat, n) })
	if diff := cmp.Diff("ratelimit.service.config_load_error: 2\nratelimit.service.config_load_success: 1\n", stats.String()); diff != "" {
		t.Errorf("statistics (-want +got):\n%s", diff)
	}

	must(t, os.Remove(filepath.Join(dir, "b.yaml")))
	must(t, os.Remove(filepath.Join(dir, "c\xff.yaml")))
	load(t, f, "a.yaml=loaded")
	want("removed files", loaded+"ratelimitd_rules 1\n"+reloads("2", "2"))

	families, err := registry.Gather()
	must(t, err)
	for _, family := range families {
		if family.GetName() != "ratelimitd_rules_last_reload_timestamp_seconds" {
			continue
		}
		if at := family.GetMetric()[0].GetGauge().GetValue(); at < float64(start.Unix()) || at > float64(time.Now().Unix()+1) {
			t.Errorf("last reload at %f, want now", at)
		}
		return
	}
	t.Error("there is no time of the last reload")
}

// Processes with the same rules have the same checksum, wherever the rules come from. Every part of a rule changes the
// checksum.
func TestRulesChecksum(t *testing.T) {
	sumOf := func(files ...string) uint64 {
		t.Helper()
		dir := t.TempDir()
		for i, text := range files {
			write(t, filepath.Join(dir, fmt.Sprintf("%d.yaml", i)), text)
		}
		registry := prometheus.NewPedanticRegistry()
		f := NewDirectory(Options{Dir: dir, Logger: new(logged).logger(), Metrics: prom.With(registry)})
		_, err := f.Load()
		must(t, err)
		families, err := registry.Gather()
		must(t, err)
		for _, family := range families {
			if family.GetName() == "ratelimitd_rules_checksum" {
				v := family.GetMetric()[0].GetGauge().GetValue()
				if v != float64(uint64(v)) || v >= 1<<53 {
					t.Errorf("%f is no number that a float64 holds exactly", v)
				}
				return uint64(v)
			}
		}
		t.Fatal("no checksum")
		return 0
	}
	const one = "domain: a\ndescriptors: [{key: k, rate_limit: {unit: day, requests_per_unit: 5}}, {key: l, rate_limit: {unit: hour, requests_per_unit: 1}}]\n"
	const two = "domain: b\ndescriptors: [{key: k, value: v, rate_limit: {unit: day, requests_per_unit: 5}}]\n"
	want := sumOf(one, two)
	if want == 0 {
		t.Error("rules have the checksum of none")
	}
	for what, got := range map[string]uint64{
		"other names of files": sumOf(two, one),
		"other layout": sumOf("# a comment\ndomain: a\ndescriptors:\n- {key: l, rate_limit: {requests_per_unit: 1, unit: HOUR}}\n" +
			"- {key: k, rate_limit: {unit: day, requests_per_unit: 5, unit_multiplier: 1}}\n---\n" + two),
	} {
		if got != want {
			t.Errorf("%s: %d, want %d", what, got, want)
		}
	}
	seen := map[uint64]string{want: "the rules"}
	for _, change := range [][2]string{
		{"domain: b", "domain: c"}, {"key: k, value", "key: m, value"}, {"value: v", "value: w"}, {"value: v", "value: v*"}, {"value: v", "value_regex: v"},
		{"unit: day", "unit: week"}, {"unit: day", "unit: day, unit_multiplier: 2"}, {"unit: day", "unit: day, calendar: UTC"}, {"unit: day", "unit: day, calendar: Asia/Seoul"},
		{"_unit: 5", "_unit: 6"}, {"_unit: 5", "_unit: 5, algorithm: sliding_window"}, {"_unit: 5", "_unit: 5, algorithm: token_bucket"},
		{"_unit: 5", "_unit: 5, algorithm: token_bucket, burst: 9"}, {"_unit: 5", "_unit: 5, name: n"}, {"_unit: 5", "_unit: 5, replaces: [{name: n}]"},
		{"{key: k", "{shadow_mode: true, key: k"}, {"{key: k", "{quota_mode: true, key: k"}, {"{key: k", "{detailed_metric: true, key: k"},
		{"{key: k", "{on_error: allow, key: k"}, {"{key: k", "{metadata: {a: b}, key: k"}, {"{key: k", "{metadata: {a: c}, key: k"},
		{"domain: b", "domain: b\nadmission: all_or_nothing"}, {"domain: b", "domain: b\non_error: deny"}, {"domain: b", "domain: b\nheaders: []"}, {"domain: b", "domain: b\nheaders: [ietf]"},
		{"unit: day, requests_per_unit: 5", "unlimited: true"},
		{"descriptors: [", "descriptors: [{key: k, value: exempt}, "}, // a level without a limit exempts its customers
		{"descriptors: [", "descriptors: [{key: k, value: exempt*}, "},
		{"value: v", "values: [v, w]"}, {"value: v", "values: [v, x]"}, {"value: v", "value: v*, share_threshold: true"}, {"value: v", "value: v*, value_to_metric: true"},
	} {
		text := strings.Replace(two, change[0], change[1], 1)
		got := sumOf(one, text)
		if other, taken := seen[got]; taken {
			t.Errorf("%s: the same checksum as %s", change[1], other)
		}
		seen[got] = change[1]
	}
	if got := sumOf(one); got == want {
		t.Error("a file is missing, and the checksum is the same")
	}
	// The first pattern that matches wins.
	const star, other = "{key: k, value: a*, rate_limit: {unit: day, requests_per_unit: 5}}", "{key: k, value: '*b', rate_limit: {unit: day, requests_per_unit: 6}}"
	if sumOf("domain: a\ndescriptors: ["+star+", "+other+"]\n") == sumOf("domain: a\ndescriptors: ["+other+", "+star+"]\n") {
		t.Error("patterns in another order have the same checksum")
	}
}
