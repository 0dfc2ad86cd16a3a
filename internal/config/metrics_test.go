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
)

func TestMetrics(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "rules")
	registry := prometheus.NewPedanticRegistry()
	f := NewFolder(Options{Dir: dir, Logger: new(logged).logger(), Metrics: registry})
	start := time.Now()
	want := func(when, text string) {
		t.Helper()
		text = "# HELP ratelimitd_rules Rules in use.\n# TYPE ratelimitd_rules gauge\n" +
			"# HELP ratelimitd_rule_file_state 1 for every rule file or resource, with its state: loaded, stale or rejected.\n# TYPE ratelimitd_rule_file_state gauge\n" +
			"# HELP ratelimitd_rule_reloads_total Times that changed rules were read: with success, or with an error in some file, the folder, or some resource.\n# TYPE ratelimitd_rule_reloads_total counter\n" + text
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
		t.Fatal("a folder that is not there was read")
	}
	want("a folder that is not there", "ratelimitd_rules 0\n"+reloads("0", "1"))

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
	t.Error("the time of the last reload is not told")
}
