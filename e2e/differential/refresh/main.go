// Command refresh makes the copy of an earlier version in e2e/differential/before from a commit. Run it in the folder e2e:
//
//	go run ./differential/refresh COMMIT
//
// It copies package limiter and the packages whose types belong to its contract, without their tests, and renames the imports between
// them. If a refactoring changes another package so much that the copy does not compile any more, add that package to the list, and every
// package that has its types in common with it.
package main

import (
	"errors"
	"fmt"
	"go/format"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
)

const module = "github.com/ratelimitd/ratelimitd/"

// copied are the folders that the copy has.
var copied = []string{"internal/limiter", "internal/backend", "internal/backend/memory"}

// adapter is the folder that runs one version. A commit that does not have it gets today's.
const adapter = "e2e/differential/adapter"

const before = "e2e/differential/before"

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: refresh COMMIT")
		os.Exit(2)
	}
	if err := run("..", os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "refresh:", err)
		os.Exit(1)
	}
}

func run(top, revision string) error {
	out, err := git(top, "rev-parse", "--verify", revision+"^{commit}")
	if err != nil {
		return err
	}
	commit := strings.TrimSpace(out)
	files, err := copyOf(top, commit)
	if err != nil {
		return err
	}
	to := filepath.Join(top, filepath.FromSlash(before))
	if err := os.RemoveAll(to); err != nil {
		return err
	}
	for name, text := range files {
		name = filepath.Join(to, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// copyOf returns the files of the copy of a commit, by their names below the folder before.
func copyOf(top, commit string) (map[string]string, error) {
	files := map[string]string{"COMMIT": commit + "\n"}
	for _, folder := range copied {
		if err := addFolder(files, top, commit, folder); err != nil {
			return nil, err
		}
	}
	err := addFolder(files, top, commit, adapter)
	if errors.Is(err, errNoFolder) {
		err = addToday(files, top)
	}
	return files, err
}

var errNoFolder = errors.New("the commit has no such folder")

// addFolder adds the Go files of a folder in a commit.
func addFolder(files map[string]string, top, commit, folder string) error {
	names, err := git(top, "ls-tree", "--name-only", commit, folder+"/")
	if err != nil {
		return err
	}
	if names == "" {
		return fmt.Errorf("%w: %s", errNoFolder, folder)
	}
	for _, name := range strings.Fields(names) {
		if !wanted(name) {
			continue
		}
		text, err := git(top, "show", commit+":"+name)
		if err != nil {
			return err
		}
		if files[placeOf(folder)+"/"+path.Base(name)], err = rename(text); err != nil {
			return err
		}
	}
	return nil
}

// addToday adds the adapter as it is in the working tree.
func addToday(files map[string]string, top string) error {
	folder := os.DirFS(filepath.Join(top, filepath.FromSlash(adapter)))
	names, err := fs.Glob(folder, "*.go")
	if err != nil {
		return err
	}
	for _, name := range names {
		text, err := fs.ReadFile(folder, name)
		if err != nil {
			return err
		}
		if !wanted(name) {
			continue
		}
		if files[placeOf(adapter)+"/"+name], err = rename(string(text)); err != nil {
			return err
		}
	}
	return nil
}

func wanted(name string) bool {
	return strings.HasSuffix(name, ".go") && !strings.HasSuffix(name, "_test.go")
}

// placeOf returns the place of a folder in the copy.
func placeOf(folder string) string {
	if folder == adapter {
		return "adapter"
	}
	return strings.TrimPrefix(folder, "internal/")
}

// moved are packages that stood elsewhere when the copy was made.
var moved = map[string]string{
	"internal/events": "internal/limiter/events", "internal/hotkeys": "internal/limiter/hotkeys", "internal/usage": "internal/limiter/usage",
	"internal/override": "internal/config/override",
}

// rename makes a file import the copies, and other packages from where they are today.
func rename(text string) (string, error) {
	for from, to := range moved {
		text = strings.ReplaceAll(text, `"`+module+from+`"`, `"`+module+to+`"`)
	}
	for _, folder := range copied {
		text = strings.ReplaceAll(text, `"`+module+folder+`"`, `"`+module+before+"/"+placeOf(folder)+`"`)
	}
	out, err := format.Source([]byte(text)) // the imports have another order
	return string(out), err
}

func git(top string, args ...string) (string, error) {
	out, err := exec.Command("git", append([]string{"-C", top}, args...)...).Output()
	if failed := (*exec.ExitError)(nil); errors.As(err, &failed) {
		return "", fmt.Errorf("git %s: %s", strings.Join(args, " "), strings.TrimSpace(string(failed.Stderr)))
	}
	return string(out), err
}
