package rulecheck

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/config/override"
)

// A file of overrides that the service rejects because of its size is rejected here too, before it is parsed.
func TestOverridesThatAreTooLarge(t *testing.T) {
	dir := t.TempDir()
	rules, large := filepath.Join(dir, "rules.yaml"), filepath.Join(dir, "large.txt")
	if err := os.WriteFile(rules, []byte("domain: d\ndescriptors:\n- {key: k, rate_limit: {unit: day, requests_per_unit: 1}}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(large, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(large, override.MaxFileSize+1); err != nil {
		t.Fatal(err)
	}
	report, err := Run(Options{Paths: []string{rules}, Overrides: []string{large}})
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range report.Findings {
		if f.Severity == Error && strings.Contains(f.Message, "has more than 16777216 bytes") {
			return
		}
	}
	t.Errorf("findings: %+v", report.Findings)
}
