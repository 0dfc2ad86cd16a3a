package deploy

import (
	"os"
	"strings"
	"testing"

	"gopkg.in/yaml.v3"
)

// TestEveryAlertIsExplained checks that each alert has a section of docs/do/runbook.md that its runbook_url leads to,
// with its meaning, the places to look at and the steps to take. Each alert also has tests in which it is silent and in
// which it fires, and no section is without an alert.
func TestEveryAlertIsExplained(t *testing.T) {
	type file struct {
		Groups []struct {
			Rules []struct {
				Alert       string
				Annotations map[string]string
			}
		}
		Tests []struct {
			AlertRuleTest []struct {
				Alertname string
				ExpAlerts []any `yaml:"exp_alerts"`
			} `yaml:"alert_rule_test"`
		}
	}
	read := func(name string) (f file) {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := yaml.Unmarshal(b, &f); err != nil {
			t.Fatal(err)
		}
		return f
	}
	page, err := os.ReadFile("../docs/do/runbook.md")
	if err != nil {
		t.Fatal(err)
	}
	sections := make(map[string]string)
	for _, s := range strings.Split(string(page), "\n## ")[1:] {
		name, text, _ := strings.Cut(s, "\n")
		sections[name] = text
	}
	silent, fires := make(map[string]bool), make(map[string]bool)
	for _, test := range read("prometheus/alerts_test.yml").Tests {
		for _, a := range test.AlertRuleTest {
			silent[a.Alertname] = silent[a.Alertname] || len(a.ExpAlerts) == 0
			fires[a.Alertname] = fires[a.Alertname] || len(a.ExpAlerts) > 0
		}
	}
	const runbook = "https://github.com/ratelimitd/ratelimitd/blob/main/docs/do/runbook.md#"
	alerts := 0
	for _, g := range read("prometheus/alerts.yml").Groups {
		for _, r := range g.Rules {
			alerts++
			if got, want := r.Annotations["runbook_url"], runbook+strings.ToLower(r.Alert); got != want {
				t.Errorf("%s: runbook_url is %q, want %q", r.Alert, got, want)
			}
			for _, part := range [...]string{"**Means.** ", "**Look.**", "**Do.** "} {
				if !strings.Contains(sections[r.Alert], part) {
					t.Errorf("docs/do/runbook.md: the section %s does not have %s", r.Alert, part)
				}
			}
			if !silent[r.Alert] || !fires[r.Alert] {
				t.Errorf("alerts_test.yml: %s is tried where it is silent: %t, where it fires: %t", r.Alert, silent[r.Alert], fires[r.Alert])
			}
			delete(sections, r.Alert)
		}
	}
	if alerts < 10 {
		t.Errorf("only %d alerts were found", alerts)
	}
	for name := range sections {
		t.Errorf("docs/do/runbook.md has a section %s, and there is no such alert", name)
	}
}
