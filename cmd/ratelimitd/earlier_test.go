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

// releases matches the tags of releases. The promise that two versions can share a Redis starts with the first release:
// release.md.
const releases = "v[0-9]*"

// builtEarlier is the program of the earlier version. Tests of one run share it.
var builtEarlier struct {
	once      sync.Once
	directory string
	err       error
}

// removeEarlier removes the program that earlier built.
func removeEarlier() {
	if builtEarlier.directory != "" {
		_ = os.RemoveAll(builtEarlier.directory)
	}
}

// earlier returns the program of the newest release, built from git. Before the first one the test is skipped.
func earlier(t *testing.T) string {
	t.Helper()
	if testing.Short() {
		t.Skip("it builds the service")
	}
	top := filepath.Join("..", "..")
	tag, err := exec.Command("git", "-C", top, "describe", "--tags", "--abbrev=0", "--match", releases).Output()
	if err != nil {
		t.Skip("there is no release yet, or its tag is not in this clone")
	}
	builtEarlier.once.Do(func() {
		if builtEarlier.directory, builtEarlier.err = os.MkdirTemp("", "earlier"); builtEarlier.err == nil {
			builtEarlier.err = buildEarlier(top, builtEarlier.directory, strings.TrimSpace(string(tag)))
		}
	})
	if builtEarlier.err != nil {
		t.Fatal(builtEarlier.err)
	}
	return filepath.Join(builtEarlier.directory, "ratelimitd")
}

func buildEarlier(top, directory, tag string) error {
	archive := filepath.Join(directory, "sources.tar")
	sources := filepath.Join(directory, "sources")
	if err := os.Mkdir(sources, 0o755); err != nil {
		return err
	}
	build := exec.Command("go", "build", "-buildvcs=false", "-o", filepath.Join(directory, "ratelimitd"), "./cmd/ratelimitd")
	build.Dir = sources
	for _, c := range []*exec.Cmd{
		exec.Command("git", "-C", top, "archive", "--output", archive, tag),
		exec.Command("tar", "-xf", archive, "-C", sources),
		build,
	} {
		if said, err := c.CombinedOutput(); err != nil {
			return fmt.Errorf("build the version %s: %s: %w\n%s", tag, strings.Join(c.Args, " "), err, said)
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
