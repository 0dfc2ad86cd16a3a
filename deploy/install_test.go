package deploy

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestInstallFromSources runs two blocks of pages as they are, except for where the sources come from: how to build the
// program, and how to build a release's program once more.
func TestInstallFromSources(t *testing.T) {
	const origin = "https://github.com/ratelimitd/ratelimitd "
	here, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(here, ".git")); err != nil {
		t.Skip("NOT RUN without a git repository to clone")
	}
	script := "set -eu\nversion=1.2.3\n"
	for _, at := range []struct{ page, first string }{
		{"../docs/do/install.md", "git clone " + origin}, {"../docs/contributing/first-release.md", "VERSION=v$version "},
	} {
		page, err := os.ReadFile(at.page)
		if err != nil {
			t.Fatal(err)
		}
		first := at.first
		_, block, found := strings.Cut(string(page), "\n$ "+first)
		block, _, closed := strings.Cut(first+block, "\n```")
		if !found || !closed {
			t.Fatalf("%s has no block that begins with %q", at.page, first)
		}
		script += strings.ReplaceAll(block, "\n$ ", "\n") + "\n"
	}
	script = strings.Replace(script, origin, "--quiet '"+here+"' ratelimitd ", 1)
	cmd := exec.Command("sh", "-c", script)
	cmd.Dir = t.TempDir()
	// Other tests build with these flags of workshop/scripts/rootfs. With the same flags, this build finds its packages
	// in the build cache.
	cmd.Env = append(os.Environ(), "GOFLAGS=-trimpath -buildvcs=false -tags=grpcnotrace", "CGO_ENABLED=0")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s\nsaid\n%s", err, script, out)
	}
	if said := string(out); !strings.Contains(said, "ratelimitd ") || !strings.Contains(said, "  out/bin/ratelimitd\n") {
		t.Errorf("the commands say\n%s", said)
	}
	program := filepath.Join(cmd.Dir, "ratelimitd", "out", "bin", "ratelimitd")
	if out, err := exec.Command(program, "version").Output(); err != nil || !strings.HasPrefix(string(out), "ratelimitd v1.2.3\n") {
		t.Errorf("the program that workshop/scripts/rootfs made says %q, %v", out, err)
	}
}
