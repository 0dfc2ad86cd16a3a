package config

import (
	"context"
	"time"

	"github.com/fsnotify/fsnotify"
)

// Watch calls apply, one call after the other, whenever the folder's rules or the state of its files change, and once
// in the beginning if nothing was loaded before or it has changed since. It returns nil when ctx is done; a call of
// apply that is under way is waited for.
//
// A change is noticed at once through the file system, and by reading all files again every Options.Rescan, for file
// systems that do not tell. Events that come close together are one change: apply is called 100 ms after the last one,
// and at most 500 ms after the first, plus the time that loading takes. Touching a file is no change.
//
// While the folder is missing or cannot be read, the rules in use stay, and it is waited for.
func (f *Folder) Watch(ctx context.Context, apply func(Result)) error {
	f.mu.Lock()
	applied := f.generation
	f.mu.Unlock()

	var p *paths
	var events <-chan fsnotify.Event
	var errs <-chan error
	if w, err := fsnotify.NewWatcher(); err != nil {
		f.o.Logger.Warn("cannot watch the rule folder; changes are noticed more slowly", "every", f.o.Rescan, "error", err)
	} else {
		defer func() { _ = w.Close() }() // nothing can be done about what remains
		p = &paths{watcher: w, log: f.o.Logger}
		events, errs = w.Events, w.Errors
	}

	failing := ""
	loop(ctx, f.o.Rescan, events, errs, p.matters, func() {
		r, generation, err := f.loadWatched(p)
		if err != nil {
			if err.Error() != failing {
				f.o.Logger.Error("cannot read the rule folder, the rules in use stay", "error", err)
			}
			failing = err.Error()
			return
		}
		failing = ""
		if generation != applied {
			applied = generation
			r.Changed = true
			apply(r)
		}
	})
	return nil
}

func (f *Folder) loadWatched(p *paths) (Result, int, error) {
	if p == nil {
		return f.load(nil)
	}
	p.begin()
	defer p.end()
	return f.load(p)
}

// loop calls reload in the beginning, after every burst of events that matter, and at every rescan.
func loop(ctx context.Context, rescan time.Duration, events <-chan fsnotify.Event, errs <-chan error,
	matters func(fsnotify.Event) bool, reload func()) {
	ticks := time.NewTicker(rescan)
	defer ticks.Stop()
	var b burst
	reload()
	for {
		select {
		case <-ctx.Done():
			b.reset()
			return
		case e := <-events:
			if matters(e) {
				b.add()
			}
			continue
		case err := <-errs:
			if err != nil {
				b.add() // events were lost, most likely: look for oneself
			}
			continue
		case <-b.over():
		case <-ticks.C:
		}
		b.reset()
		reload()
	}
}
