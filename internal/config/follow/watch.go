package follow

import (
	"context"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/ratelimitd/ratelimitd/internal/config"
)

// Directory calls apply whenever the directory's rules or the state of its files change, one call at a time. It also
// calls apply at the start if nothing was loaded before or the directory has changed since. It returns nil when ctx is
// done, after a running call of apply.
//
// Changes are reported by the file system. For file systems that do not report them, all files are read again every
// Options.Rescan. Events that come close together are one change: apply is called 100 ms after the last event, 400 ms
// after the last write to a file, and at most 500 ms after the first event, plus the time of loading. A file that is
// still being written then is read when it has stopped growing. Touching a file is not a change.
//
// While the directory is missing or cannot be read, the rules in use stay, and Directory tries again.
func Directory(ctx context.Context, f *config.Directory, apply func(config.Result)) error {
	applied, o := f.Generation(), f.Options()
	p := &paths{log: o.Logger}
	var events <-chan fsnotify.Event
	var errs <-chan error
	if w, err := fsnotify.NewWatcher(); err != nil {
		o.Logger.Warn("cannot watch the rule directory; changes are noticed more slowly", "every", o.Rescan, "error", err)
	} else {
		defer func() { _ = w.Close() }() // an error here has no consequences
		p.watcher = w
		events, errs = w.Events, w.Errors
	}

	failing := ""
	loop(ctx, o.Rescan, events, errs, p.matters, func(quiet bool) (again bool) {
		p.begin()
		found, err := f.Look(p, quiet)
		p.end()
		if err != nil {
			if err.Error() != failing {
				o.Logger.Error("cannot read the rule directory, the rules in use stay", "rules", f.Active(), "error", err)
			}
			failing = err.Error()
			return false
		}
		failing = ""
		if found.Generation != applied {
			applied = found.Generation
			found.Changed = true
			apply(found.Result)
		}
		return found.Growing
	})
	return nil
}

// loop calls reload at the start, after every burst of events, and at every rescan. The argument of reload is whether
// the burst has ended. If reload returns true, it is called again soon.
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
				b.add(quietFor) // probably events were lost: read the directory
			}
			continue
		case <-b.over():
			look(b.quiet())
		case <-ticks.C:
			look(false)
		}
	}
}
