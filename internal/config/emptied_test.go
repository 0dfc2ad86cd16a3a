package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/ratelimitd/ratelimitd/internal/platform/metric/prom"
)

// goneIs compares the values of ratelimitd_rules_gone.
func goneIs(t *testing.T, registry *prometheus.Registry, kept, removed string) {
	t.Helper()
	if err := testutil.GatherAndCompare(registry, strings.NewReader(`
# HELP ratelimitd_rules_gone 1 while all rules are gone: kept (the earlier rules stay active) or removed.
# TYPE ratelimitd_rules_gone gauge
ratelimitd_rules_gone{rules="kept"} `+kept+`
ratelimitd_rules_gone{rules="removed"} `+removed+`
`), "ratelimitd_rules_gone"); err != nil {
		t.Error(err)
	}
}

// If a directory loses all of its rules in one reload, for any reason, the active rules stay until there are new ones.
func TestNoReloadRemovesTheLastRule(t *testing.T) {
	for name, c := range map[string]struct {
		change func(t *testing.T, dir string)
		states []string
	}{
		"the files are removed": {func(t *testing.T, dir string) {
			must(t, os.Remove(filepath.Join(dir, "a.yaml")))
			must(t, os.Remove(filepath.Join(dir, "b.yaml")))
		}, []string{"a.yaml=stale", "b.yaml=stale"}},
		"an empty directory takes the place of the directory": {func(t *testing.T, dir string) {
			must(t, os.RemoveAll(dir+".old"))
			must(t, os.Rename(dir, dir+".old"))
			must(t, os.Mkdir(dir, 0o755))
		}, []string{"a.yaml=stale", "b.yaml=stale"}},
		"bad files take the place of good ones": {func(t *testing.T, dir string) {
			must(t, os.RemoveAll(dir))
			write(t, filepath.Join(dir, "c.yaml"), "domian: c\n")
		}, []string{"a.yaml=stale", "b.yaml=stale", "c.yaml=rejected"}},
		"no file has rules any more": {func(t *testing.T, dir string) {
			write(t, filepath.Join(dir, "a.yaml"), "domain: a\n")
			write(t, filepath.Join(dir, "b.yaml"), "domain: b\n")
		}, []string{"a.yaml=stale", "b.yaml=stale"}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "rules")
			fill := func(n int) {
				write(t, filepath.Join(dir, "a.yaml"), rules("a", n))
				write(t, filepath.Join(dir, "b.yaml"), rules("b", n))
			}
			fill(1)
			var log logged
			registry := prometheus.NewPedanticRegistry()
			f := NewDirectory(Options{Dir: dir, Logger: log.logger(), Metrics: prom.With(registry)})
			first := load(t, f, "a.yaml=loaded", "b.yaml=loaded")
			goneIs(t, registry, "0", "0")
			log.take()

			c.change(t, dir)
			r := load(t, f, c.states...)
			if r.Tree != first.Tree || r.InUse != 2 || requests(r.Tree, "a") != 1 || requests(r.Tree, "b") != 1 {
				t.Errorf("%+v", r)
			}
			if len(r.Files[0].Errors) != 1 || !strings.Contains(r.Files[0].Errors[0], "its last rules stay active") {
				t.Errorf("the state of a file: %+v", r.Files[0])
			}
			if said := log.take(); !strings.Contains(said, "level=ERROR") || !strings.Contains(said, "reload ignored: it would remove every rule") || !strings.Contains(said, "leave one file with only a `domain`, and restart the service") {
				t.Errorf("the log:\n%s", said)
			}
			goneIs(t, registry, "1", "0")
			if again := load(t, f, c.states...); again.Changed || log.take() != "" {
				t.Errorf("again: %+v", again)
			}

			// First the same rules return, then other ones.
			fill(1)
			must(t, os.RemoveAll(filepath.Join(dir, "c.yaml")))
			if r := load(t, f, "a.yaml=loaded", "b.yaml=loaded"); !r.Changed || requests(r.Tree, "b") != 1 {
				t.Errorf("the same rules again: %+v", r)
			}
			goneIs(t, registry, "0", "0")
			c.change(t, dir)
			load(t, f, c.states...)
			must(t, os.RemoveAll(dir))
			write(t, filepath.Join(dir, "d.yaml"), rules("d", 4))
			if r := load(t, f, "d.yaml=loaded"); requests(r.Tree, "d") != 4 || r.Tree.Domain("a") != nil {
				t.Errorf("other rules: %+v", r)
			}
			goneIs(t, registry, "0", "0")

			// The directory is removed: the rules stay, and the metric reports it.
			must(t, os.RemoveAll(dir))
			if r, err := f.Load(); err == nil || requests(r.Tree, "d") != 4 {
				t.Errorf("without a directory: %+v, %v", r, err)
			}
			goneIs(t, registry, "1", "0")
			write(t, filepath.Join(dir, "d.yaml"), rules("d", 4))
			if r := load(t, f, "d.yaml=loaded"); r.Changed {
				t.Errorf("the directory is back: %+v", r)
			}
			goneIs(t, registry, "0", "0")
		})
	}
}

// The log's advice for removing all rules works: a service that starts with a file without rules loads it.
func TestAFileWithoutRulesIsLoadedAtTheStart(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "a.yaml"), "domain: a\n")
	if r := load(t, NewDirectory(Options{Dir: dir}), "a.yaml=loaded"); r.InUse != 1 || len(r.Tree.Rules) != 0 {
		t.Errorf("%+v", r)
	}
}

// When a reload removes half of a domain's rules, or of all rules, the log names the domains and files that lost them.
func TestDroppedRulesAreNamed(t *testing.T) {
	dir := t.TempDir()
	var log logged
	f := NewDirectory(Options{Dir: dir, Logger: log.logger()})
	many := func(domain string, n int) string {
		text := "domain: " + domain + "\ndescriptors:\n"
		for i := range n {
			text += "  - {key: k, value: v" + strings.Repeat("x", i) + ", rate_limit: {unit: day, requests_per_unit: 1}}\n"
		}
		return text
	}
	a, b, c := filepath.Join(dir, "a.yaml"), filepath.Join(dir, "b.yaml"), filepath.Join(dir, "c.yaml")
	write(t, a, many("a", 10))
	write(t, b, many("b", 9))
	write(t, c, many("c", 1))
	load(t, f, "a.yaml=loaded", "b.yaml=loaded", "c.yaml=loaded")
	log.take()

	write(t, a, many("a", 6)) // less than half
	write(t, b, many("b", 7))
	load(t, f, "a.yaml=loaded", "b.yaml=loaded", "c.yaml=loaded")
	if said := log.take(); strings.Contains(said, "drops many") {
		t.Errorf("a few rules:\n%s", said)
	}
	write(t, a, many("a", 3))
	must(t, os.Remove(c))
	load(t, f, "a.yaml=loaded", "b.yaml=loaded")
	if said := log.take(); !strings.Contains(said, `level=WARN msg="a reload drops many rules" domains="[a: 3 of 6 c: 1 of 1]" more_domains=0 from="[a.yaml: 3 of 6 c.yaml: 1 of 1]" more_from=0 rules_before=14 rules_now=10 gone="[a.k_vxxx a.k_vxxxx a.k_vxxxxx c.k_v]"`) {
		t.Errorf("half of a domain's rules:\n%s", said)
	}

	text := many("b", 7) // a file that is cut off, and is still YAML
	write(t, b, text[:strings.Index(text, "  - {key: k, value: vxxxxxx,")-1])
	load(t, f, "a.yaml=loaded", "b.yaml=loaded")
	if said := log.take(); !strings.Contains(said, `level=WARN msg="a rule file lost rules and ends in the middle of a line: is it complete?" files="[b.yaml: 1 of 7]" gone=[b.k_vxxxxxx]`) {
		t.Errorf("a file that was cut off:\n%s", said)
	}
}
