package deploy

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestSystemdUnit checks the variables of the package's unit and of its file of settings, and lets systemd read the
// unit.
func TestSystemdUnit(t *testing.T) {
	unit, err := os.ReadFile("systemd/ratelimitd.service")
	if err != nil {
		t.Fatal(err)
	}
	settings, err := os.ReadFile("systemd/ratelimitd.env")
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for where, m := range map[string][][]string{
		"the unit":                regexp.MustCompile(`(?m)[= ]([A-Z_]+)=`).FindAllStringSubmatch(string(unit), -1),
		"/etc/default/ratelimitd": regexp.MustCompile(`(?m)^#?([A-Z_]+)=`).FindAllStringSubmatch(string(settings), -1),
	} {
		for _, name := range m {
			found++
			checkEnv(t, where, name[1])
		}
	}
	if found < 4 {
		t.Errorf("only %d variables are found", found)
	}

	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("NOT RUN without systemd-analyze: systemd has not read the unit")
	}
	name := filepath.Join(t.TempDir(), "ratelimitd.service")
	const program = "ExecStart=/usr/bin/ratelimitd "
	if !strings.Contains(string(unit), program) {
		t.Fatalf("the unit has no %s", program)
	}
	here := strings.Replace(string(unit), program, "ExecStart=/bin/true ", 1) // it must exist
	if err := os.WriteFile(name, []byte(here), 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(analyze, "verify", "--man=no", name).CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("systemd-analyze verify: %v\n%s", err, out)
	}
	// 0 is the least exposed, 100 the most. A unit without hardening has 96.
	if out, err := exec.Command(analyze, "security", "--offline=true", "--threshold=20", name).CombinedOutput(); err != nil {
		t.Errorf("systemd-analyze security: %v\n%s", err, out)
	}
}
