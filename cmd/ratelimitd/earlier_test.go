package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/testkit/servicetest"
)

// earlierCommit is the earlier version that must be able to share a Redis with this one.
const earlierCommit = "cdd1423"

// builtEarlier is the program of the earlier version. Tests of one run share it.
var builtEarlier struct {
	once   sync.Once
	folder string
	err    error
}

// removeEarlier removes the program that earlier built.
func removeEarlier() {
	if builtEarlier.folder != "" {
		_ = os.RemoveAll(builtEarlier.folder)
	}
}

// earlier returns the program of the earlier version, built from git. Without its commit, as in a clone without the history, the test
// is skipped; it fails where CI is set.
func earlier(t *testing.T) string {
	t.Helper()
	if testing.Short() {
		t.Skip("it builds the service")
	}
	top := filepath.Join("..", "..")
	if said, err := exec.Command("git", "-C", top, "cat-file", "-e", earlierCommit+"^{commit}").CombinedOutput(); err != nil {
		if os.Getenv("CI") != "" {
			t.Fatalf("the commit %s is not in this clone, and the version before must be built from it: fetch the whole history (%v, %s)", earlierCommit, err, said)
		}
		t.Skipf("NOT RUN without the commit %s: fetch the whole history with git fetch --unshallow", earlierCommit)
	}
	builtEarlier.once.Do(func() {
		if builtEarlier.folder, builtEarlier.err = os.MkdirTemp("", "earlier"); builtEarlier.err == nil {
			builtEarlier.err = buildEarlier(top, builtEarlier.folder)
		}
	})
	if builtEarlier.err != nil {
		t.Fatal(builtEarlier.err)
	}
	return filepath.Join(builtEarlier.folder, "ratelimitd")
}

func buildEarlier(top, folder string) error {
	archive := filepath.Join(folder, "sources.tar")
	sources := filepath.Join(folder, "sources")
	if err := os.Mkdir(sources, 0o755); err != nil {
		return err
	}
	build := exec.Command("go", "build", "-buildvcs=false", "-o", filepath.Join(folder, "ratelimitd"), "./cmd/ratelimitd")
	build.Dir = sources
	for _, c := range []*exec.Cmd{
		exec.Command("git", "-C", top, "archive", "--output", archive, earlierCommit),
		exec.Command("tar", "-xf", archive, "-C", sources),
		build,
	} {
		if said, err := c.CombinedOutput(); err != nil {
			return fmt.Errorf("build the version %s: %s: %w\n%s", earlierCommit, strings.Join(c.Args, " "), err, said)
		}
	}
	return nil
}

// startVersion starts this version, or the earlier one.
func startVersion(t *testing.T, before bool, env map[string]string, args ...string) *servicetest.Process {
	t.Helper()
	cmd := command(t, env, args...)
	name := "the service"
	if before {
		cmd.Path, name = earlier(t), "the earlier version"
		cmd.Args[0] = cmd.Path
	}
	servicetest.NotAtMidnight()
	return servicetest.Start(t, name, cmd)
}
