package deploy

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
)

var envName = regexp.MustCompile(`\$([A-Z][A-Z0-9_]+)`)

// knownEnv is every variable that the service reads, from its own help.
var knownEnv = sync.OnceValues(func() (map[string]bool, error) {
	dir, err := rootfs()
	if err != nil {
		return nil, err
	}
	help, err := exec.Command(filepath.Join(dir, "bin/ratelimitd"), "help", "settings").Output()
	if err != nil {
		return nil, err
	}
	names := make(map[string]bool)
	for _, m := range envName.FindAllSubmatch(help, -1) {
		names[string(m[1])] = true
	}
	return names, nil
})

// checkEnv reports a variable that the service would not read.
func checkEnv(t *testing.T, where, name string) {
	t.Helper()
	known, err := knownEnv()
	if err != nil {
		t.Fatal(err)
	}
	if len(known) < 50 {
		t.Fatalf("the help names only %d variables", len(known))
	}
	if !known[name] {
		t.Errorf("%s sets %s, which the service does not read", where, name)
	}
}

// checkRules reports the errors and warnings of `ratelimitd check` about a rule file.
func checkRules(t *testing.T, name, text string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), filepath.Base(name))
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(filepath.Join(image(t), "bin/ratelimitd"), "check", file).CombinedOutput()
	if err != nil || strings.Contains(string(out), ": warning: ") {
		t.Errorf("ratelimitd check %s: %v\n%s", name, err, out)
	}
}
