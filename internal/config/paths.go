package config

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/ratelimitd/ratelimitd/internal/platform/files"
)

const maxLinks = 40 // symbolic links on the path to one file, as in Linux

// Seen receives the directories and names that a scan depends on. If one of them changes, the next scan may have
// another result. It receives a directory before the scan reads it, so that no later change is missed.
type Seen interface {
	Directory(dir string)  // every name in a directory matters
	Name(dir, name string) // one name in a directory matters
}

// unseen is for a look after which nothing is watched.
type unseen struct{}

func (unseen) Directory(string) {}

func (unseen) Name(string, string) {}

// resolve follows all symbolic links of a path, like filepath.EvalSymlinks. seen gets every name on the way, and a name
// that does not exist yet.
func resolve(path string, seen Seen) (string, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return "", fmt.Errorf("resolve %s: %w", path, err)
	}
	root := filepath.VolumeName(abs) + string(filepath.Separator)
	at, rest := root, parts(abs[len(root):])
	links := 0
	for len(rest) > 0 {
		name := rest[0]
		rest = rest[1:]
		if name == ".." {
			at = filepath.Dir(at)
			continue
		}
		seen.Name(at, name)
		next := filepath.Join(at, name)
		info, err := files.Lstat(next)
		if err != nil {
			return "", err
		}
		if info.Mode()&os.ModeSymlink == 0 {
			at = next
			continue
		}
		if links++; links > maxLinks {
			return "", fmt.Errorf("%s: more than %d symbolic links", path, maxLinks)
		}
		target, err := files.Within(next, func() (string, error) { return os.Readlink(next) })
		if err != nil {
			return "", err
		}
		if filepath.IsAbs(target) {
			at = root
		}
		rest = append(parts(target), rest...)
	}
	return at, nil
}

// parts returns the names of a path.
func parts(path string) []string {
	var names []string
	for _, n := range strings.Split(path, string(filepath.Separator)) {
		if n != "" && n != "." {
			names = append(names, n)
		}
	}
	return names
}
