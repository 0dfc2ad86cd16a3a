package follow

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"github.com/fsnotify/fsnotify"

	"github.com/ratelimitd/ratelimitd/internal/platform/files"
)

// paths watches every directory in which a change could make a look find something else. It is the config.Seen of the
// looks.
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

// begin clears the names that matter. The scan that follows adds them again.
func (p *paths) begin() {
	p.all = make(map[string]bool)
	p.some = make(map[string]map[string]bool)
}

// end stops watching directories that no longer matter.
func (p *paths) end() {
	if p.watcher == nil {
		return
	}
	for _, dir := range p.watcher.WatchList() {
		if !p.all[dir] && p.some[dir] == nil {
			_ = p.watcher.Remove(dir) // the watch may be gone already
		}
	}
}

// Directory implements config.Seen: it watches all names in a directory.
func (p *paths) Directory(dir string) {
	if p.all[dir] {
		return
	}
	p.all[dir] = true
	p.add(dir)
}

// Name implements config.Seen: it watches one name in a directory.
func (p *paths) Name(dir, name string) {
	if p.some[dir] == nil {
		p.some[dir] = make(map[string]bool)
		p.add(dir)
	}
	p.some[dir][name] = true
}

func (p *paths) add(dir string) {
	if p.watcher == nil { // only time shows changes
		return
	}
	// A directory is added again even if it is watched: it may have been replaced by another one of the same name.
	err := files.Watch(p.watcher, dir)
	if err == nil || os.IsNotExist(err) || p.full {
		return
	}
	p.full = true
	p.log.Warn("cannot watch a directory of rules; changes in it are noticed more slowly", "directory", dir, "error", err)
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

// watchBelow watches a new directory immediately, instead of with the next scan, so that a reload waits while it is
// filled.
func (p *paths) watchBelow(path string) {
	if info, err := files.Lstat(path); err != nil || !info.IsDir() || strings.HasPrefix(filepath.Base(path), ".") {
		return
	}
	p.Directory(path)
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
