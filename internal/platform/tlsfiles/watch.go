package tlsfiles

import (
	"context"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/ratelimitd/ratelimitd/internal/platform/files"
)

// settle is the time between the first event and the read, so that a change of both certificate and key is complete.
const settle = 100 * time.Millisecond

// Run reads the files again whenever they may have changed, until ctx is done. It returns nil.
//
// It watches the directories of the files, not the files: Kubernetes swaps a symbolic link next to them, and other
// tools rename a new file to the old name. If a link leads to a directory that is not watched, or the file system
// reports nothing, the next rescan finds the change.
func (f *Files) Run(ctx context.Context) error {
	var events <-chan fsnotify.Event
	var errs <-chan error
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		f.o.Log.Warn("cannot watch TLS files; changes are noticed more slowly", "every", f.o.Rescan, "error", err)
	} else {
		defer func() { _ = watcher.Close() }()
		events, errs = watcher.Events, watcher.Errors
	}
	rescan := time.NewTicker(f.o.Rescan)
	defer rescan.Stop()
	var settled <-chan time.Time
	f.watch(watcher)
	f.Reload() // the files may have changed since Load
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-events:
		case err := <-errs:
			f.o.Log.Debug("events of TLS files were lost", "error", err)
		case <-settled:
			settled = nil
			f.Reload()
			continue
		case <-rescan.C:
			f.watch(watcher) // a directory may have been replaced
			f.Reload()
			continue
		}
		if settled == nil {
			settled = time.After(settle)
		}
	}
}

// watch adds the directories of the files to the watcher, unless they are watched already.
func (f *Files) watch(w *fsnotify.Watcher) {
	if w == nil {
		return
	}
	for _, path := range []string{f.o.Cert, f.o.Key, f.o.CA} {
		if path == "" {
			continue
		}
		if err := files.Watch(w, filepath.Dir(path)); err != nil {
			f.o.Log.Debug("cannot watch a directory of TLS files; changes are noticed more slowly", "every", f.o.Rescan, "error",
				err)
		}
	}
}
