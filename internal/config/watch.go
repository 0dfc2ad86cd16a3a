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
// 400 ms after the last write to a file, and at most 500 ms after the first, plus the time that loading takes. A file that
// is still being written then is not read before it has stopped growing. Touching a file is no change.
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
	loop(ctx, f.o.Rescan, events, errs, p.matters, func(quiet bool) (again bool) {
		r, generation, growing, err := f.loadWatched(p, quiet)
		if err != nil {
			if err.Error() != failing {
				f.o.Logger.Error("cannot read the rule folder, the rules in use stay", "rules", f.inForce(), "error", err)
			}
			failing = err.Error()
			return false
		}
		failing = ""
		if generation != applied {
			applied = generation
			r.Changed = true
			apply(r)
		}
		return growing
	})
	return nil
}

func (f *Folder) loadWatched(p *paths, quiet bool) (r Result, generation int, growing bool, err error) {
	if p == nil {
		return f.load(nil, quiet)
	}
	p.begin()
	defer p.end()
	return f.load(p, quiet)
}

// loop calls reload in the beginning, after every burst of events that matter, and at every rescan. It tells reload
// whether the burst has come to its end, and calls it again soon when reload asks for that.
func loop(ctx context.Context, rescan time.Duration, events <-chan fsnotify.Event, errs <-chan error,
	matters func(fsnotify.Event) bool, reload func(quiet bool) (again bool)) {
	ticks := time.NewTicker(rescan)
	defer ticks.Stop()
	var b burst
	look := func(quiet bool) {
		b.reset()
		if reload(quiet) {
			b.add(grownFor)
		}
	}
	look(false)
	for {
		select {
		case <-ctx.Done():
			b.reset()
			return
		case e := <-events:
			switch {
			case !matters(e):
			case e.Has(fsnotify.Write):
				b.add(grownFor)
			default:
				b.add(quietFor)
			}
			continue
		case err := <-errs:
			if err != nil {
				b.add(quietFor) // events were lost, most likely: look for oneself
			}
			continue
		case <-b.over():
			look(b.quiet())
		case <-ticks.C:
			look(false)
		}
	}
}
