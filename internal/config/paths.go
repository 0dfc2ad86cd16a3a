package config

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"github.com/fsnotify/fsnotify"

	"github.com/ratelimitd/ratelimitd/internal/platform/files"
)

const maxLinks = 40 // symbolic links on the path to one file, as in Linux

// paths resolves paths. It watches every directory in which a change could make a path resolve to something else. A nil
// *paths only resolves.
//
// Only directories are watched: a watch on a file would be lost with every rename over it.
type paths struct {
	watcher *fsnotify.Watcher
	log     *slog.Logger
	full    bool // a directory could not be watched; this is logged once

	// all contains the directories in which every name matters; some contains the names that matter in other directories.
	all  map[string]bool
	some map[string]map[string]bool
}

// begin forgets which names matter. The scan that follows adds them again.
func (p *paths) begin() {
	p.all = make(map[string]bool)
	p.some = make(map[string]map[string]bool)
}

// end stops watching directories that no longer matter.
func (p *paths) end() {
	for _, dir := range p.watcher.WatchList() {
		if !p.all[dir] && p.some[dir] == nil {
			_ = p.watcher.Remove(dir) // the watch may be gone already
		}
	}
}

// watchAll watches all names in a directory.
func (p *paths) watchAll(dir string) {
	if p == nil || p.all[dir] {
		return
	}
	p.all[dir] = true
	p.add(dir)
}

// watchName watches one name in a directory.
func (p *paths) watchName(dir, name string) {
	if p == nil {
		return
	}
	if p.some[dir] == nil {
		p.some[dir] = make(map[string]bool)
		p.add(dir)
	}
	p.some[dir][name] = true
}

func (p *paths) add(dir string) {
	// A directory is added again even if it is watched: it may have been replaced by another one of the same name.
	err := files.Watch(p.watcher, dir)
	if err == nil || os.IsNotExist(err) || p.full {
		return
	}
	p.full = true
	p.log.Warn("cannot watch a directory of rules; changes in it are noticed more slowly", "folder", dir, "error", err)
}

// matters reports whether an event is about a name that matters.
func (p *paths) matters(e fsnotify.Event) bool {
	if p.all[e.Name] || p.some[e.Name] != nil {
		return true // the directory itself was removed, renamed or changed its mode
	}
	dir, name := filepath.Split(e.Name)
	dir = filepath.Clean(dir)
	if p.all[dir] && e.Has(fsnotify.Create) {
		p.watchBelow(e.Name)
	}
	return p.all[dir] || p.some[dir][name]
}

// watchBelow watches a new directory at once, instead of with the next scan, so that a reload waits while it is filled.
func (p *paths) watchBelow(path string) {
	if info, err := files.Lstat(path); err != nil || !info.IsDir() || strings.HasPrefix(filepath.Base(path), ".") {
		return
	}
	p.watchAll(path)
	entries, err := files.ReadDir(path)
	if err != nil {
		return // the scan reports the error
	}
	for _, e := range entries {
		if e.IsDir() {
			p.watchBelow(filepath.Join(path, e.Name()))
		}
	}
}

// resolve follows all symbolic links of a path, like filepath.EvalSymlinks, and watches every name on the way. If the path
// does not exist yet, it also watches the missing name.
func (p *paths) resolve(path string) (string, error) {
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
		p.watchName(at, name)
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
