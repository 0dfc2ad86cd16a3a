package deploy

import (
	"os"
	"os/exec"
	"testing"
)

// TestPrometheus asks Prometheus' own tool: the configuration is sound, the alert rules are, and their unit tests pass.
func TestPrometheus(t *testing.T) {
	if _, err := exec.LookPath("promtool"); err != nil {
		missing(t, "promtool: workshop/scripts/install-promtool gets it")
	}
	for _, args := range [][]string{
		{"check", "config", "--syntax-only", "prometheus.yml"},
		{"check", "rules", "alerts.yml"},
		{"test", "rules", "alerts_test.yml"},
	} {
		cmd := exec.Command("promtool", args...)
		cmd.Dir = "prometheus"
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("promtool %q: %v\n%s", args, err, out)
		}
	}
}

// missing skips a test because something that it needs is not installed. In CI the test fails instead, because a
// skipped test would go unnoticed.
func missing(t *testing.T, what string) {
	t.Helper()
	if os.Getenv("CI") != "" {
		t.Fatalf("this test needs %s", what)
	}
	t.Skipf("NOT RUN without %s", what)
}
