package config

import (
	"maps"
	"path/filepath"
	"slices"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/config/yamlform"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// removeAll tells how to remove all rules on purpose. A restart alone does not remove them: a service that starts
// without a good file answers every request with an error.
const removeAll = "To remove all rules, leave one file with only a `domain`, and restart the service"

// emptied reports whether a reload to these files would remove the last rule. A directory may be unmounted, or emptied
// by mistake.
func (f *Directory) emptied(files map[string]*ruleFile) bool {
	if f.last.Tree == nil || len(f.last.Tree.Rules) == 0 {
		return false
	}
	for _, file := range files {
		if file.inUse != nil && file.inUse.rules > 0 {
			return false
		}
	}
	return true
}

// keep rejects a reload that would remove the last rule. The active rules stay, and the files they came from become
// stale.
func (f *Directory) keep(files map[string]*ruleFile, now time.Time) {
	next := Result{Tree: f.last.Tree, Skipped: f.last.Skipped, Changed: true}
	said := make(map[string][]string, len(f.files))
	for name, old := range f.files {
		said[name] = old.status.Errors
		if old.inUse == nil || old.inUse.rules == 0 {
			continue // it had no rules to keep
		}
		kept, why := *old, "it holds no rules any more"
		file := files[name]
		switch {
		case file == nil:
			kept.gone, why = true, "it is gone"
		case len(file.newest.errs) > 0:
			kept.sum, kept.newest, kept.gone, why = file.sum, file.newest, false, file.newest.errs[0].Error()
		default:
			kept.sum, kept.newest, kept.gone = file.sum, file.newest, false
		}
		kept.good = kept.inUse
		msg := why + ", and this directory would have no rules left: its last rules stay active. " + removeAll
		status := statusOf(name, descriptor.FileStale, kept.inUse,
			[]*yamlform.Error{{File: filepath.Join(f.o.Dir, filepath.FromSlash(name)), Msg: msg}})
		if status.Since = now; kept.status.State == descriptor.FileStale {
			status.Since = kept.status.Since
		}
		kept.status = status
		files[name] = &kept
	}
	names := slices.Sorted(maps.Keys(files))
	for _, name := range names {
		if files[name].inUse != nil {
			next.InUse++
		}
		next.Files = append(next.Files, files[name].status)
	}
	f.files, f.last = files, next
	f.generation++
	f.metrics.rejected(next.Files)
	f.metrics.emptied(goneKept(true))
	// Log last, so that the metrics already agree with the log.
	for _, name := range names {
		file := files[name]
		if file.status.State != descriptor.FileLoaded && !slices.Equal(said[name], file.status.Errors) {
			f.o.Logger.Error("rule file rejected", "file", name, "state", string(file.status.State), "rules", file.status.Rules,
				"errors", file.status.Errors[:min(len(file.status.Errors), errorsLogged)])
		}
	}
	f.o.Logger.Error("reload ignored: it would remove every rule; keeping the active rules", "directory", f.o.Dir, "rules",
		len(f.last.Tree.Rules), "files", next.InUse,
		"because", "an empty directory is probably a mistake. "+removeAll)
}
