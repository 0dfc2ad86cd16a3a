package config

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/ratelimitd/ratelimitd/internal/config/yamlform"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/platform/files"
	"github.com/ratelimitd/ratelimitd/internal/platform/metric"
)

// Options are the settings of a Directory. Only Dir must be set.
type Options struct {
	Dir string // the directory of rule files, read with all directories below it
	// rules that do not change, and own their domains before any file of the directory; they must be without errors
	Fixed    []File
	Defaults []File // the same, but each domain is used only if no file of the directory has it
	// a probable mistake is an error even if envoyproxy/ratelimit accepts it; if false, it is a warning
	Strict       bool
	MergeDomains bool               // files may share a domain; if false, the domain belongs to the file that sorts first
	NoRegions    bool               // see CompileOptions
	Rescan       time.Duration      // how often all files are read again without an event of the file system; 0 means 10 s
	MaxFileSize  int64              // bytes; a larger file is rejected; 0 means 64 MiB
	Tree         descriptor.Options // how trees are compiled
	Logger       *slog.Logger       // nil means slog.Default()
	Metrics      metric.Registry    // nil disables metrics
}

// Result is the content of a directory at one time.
type Result struct {
	// Tree contains the rules of all files in use. It is the same pointer as before if no rule changed.
	Tree *descriptor.Tree
	// Files is the state of every rule file, sorted by name. It must not be changed.
	Files []descriptor.FileStatus
	// InUse is the number of files with a version in use. 0 means that no file is good: by default a service should not
	// start then.
	InUse int
	// Unreadable are the errors of files that could not be read.
	Unreadable []*yamlform.Error
	// Skipped are the files of the directory that are not read as rules, because of their names.
	Skipped []Skipped
	// Changed reports whether anything differs from the previous result: the content or the state of a file, or which
	// files exist.
	Changed bool
}

// Directory holds the rule files of one directory, each with its last good version.
type Directory struct {
	o       Options
	fixed   []*source
	backup  []*source // fallback from Options.Defaults: one source for each domain
	metrics metrics

	mu         sync.Mutex
	files      map[string]*ruleFile
	skipped    map[string]skippedFile
	looks      map[string]fs.FileInfo // the last checks of files that were growing
	last       Result
	generation int // counts the results that were Changed
}

// skippedFile is a file that is not read as rules while it has this content.
type skippedFile struct {
	sum sum
	Skipped
}

// ruleFile is one rule file.
type ruleFile struct {
	sum    sum     // checksum of the newest content; zero if that cannot be read
	newest *source // the rules of the newest content, or why it cannot be read
	good   *source // the last version that was in use while it was the newest; nil without one
	inUse  *source // newest, good or nil
	cut    bool    // its newest content does not end with a line: it may be incomplete
	gone   bool    // removed from the directory; its rules stay, because otherwise there would be no rules
	status descriptor.FileStatus
}

// NewDirectory returns a directory that has not been read yet.
func NewDirectory(o Options) *Directory {
	if o.Rescan <= 0 {
		o.Rescan = 10 * time.Second
	}
	if o.MaxFileSize <= 0 {
		o.MaxFileSize = 64 << 20
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	f := &Directory{o: o, files: make(map[string]*ruleFile)}
	for _, file := range o.Fixed {
		f.fixed = append(f.fixed, file.read(!o.Strict))
	}
	for _, file := range o.Defaults {
		whole := file.read(!o.Strict)
		for i := range whole.domains {
			one := *whole
			one.domains = whole.domains[i : i+1]
			f.backup = append(f.backup, &one)
		}
	}
	metric.Register(o.Metrics, f.metrics.families()...)
	return f
}

// Load reads the directory. A file whose content did not change is not parsed again.
//
// It returns an error only if the directory itself cannot be read. Then the result is the previous one, or the zero
// Result before the first. A bad file is not an error: its last good version stays in use, and its state gives the
// reason.
func (f *Directory) Load() (Result, error) {
	look, err := f.Look(unseen{}, true)
	return look.Result, err
}

// Look is the result of looking at a directory that is followed.
type Look struct {
	Result
	Generation int  // differs from that of an earlier look if the Result does
	Growing    bool // a file is still being written, and must be read later
}

// Look is Load for a directory that is followed: package follow does it. quiet means that no event reports a write at
// the moment.
func (f *Directory) Look(seen Seen, quiet bool) (Look, error) {
	r, generation, growing, err := f.load(seen, quiet)
	return Look{r, generation, growing}, err
}

// Generation is that of the newest look.
func (f *Directory) Generation() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.generation
}

// Options returns the settings, with their defaults.
func (f *Directory) Options() Options { return f.o }

// Active returns how many rules are active.
func (f *Directory) Active() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.last.Tree == nil {
		return 0
	}
	return len(f.last.Tree.Rules)
}

// load reads the directory. quiet means that no event reports a write at the moment. growing means that some file is
// still being written and must be read later.
func (f *Directory) load(seen Seen, quiet bool) (r Result, generation int, growing bool, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	met, reads, err := f.scanAndRead(seen, quiet)
	before := f.last
	before.Changed = false
	if err != nil {
		f.metrics.failed.Add(1)
		f.metrics.gone.Store(goneKept(before.Tree != nil && len(before.Tree.Rules) > 0))
		return before, f.generation, false, fmt.Errorf("read rule directory %s: %w", f.o.Dir, err)
	}
	files := make(map[string]*ruleFile, len(met))
	skipped := make(map[string]skippedFile)
	looks := make(map[string]fs.FileInfo)
	changed := f.last.Tree == nil
	for i, m := range met {
		switch r, old := &reads[i], f.files[m.name]; {
		case r.skipped != nil:
			skipped[m.name] = *r.skipped
		case r.growing != nil:
			looks[m.name] = r.growing
			if f.looks[m.name] == nil {
				f.o.Logger.Info("rule file is being written, it is read when it has stopped growing", "file", m.name)
			}
			if old != nil && !old.gone {
				files[m.name] = old
			}
		case r.fresh != nil:
			files[m.name] = r.fresh
			changed = true
		case old != nil:
			files[m.name] = old
		}
	}
	f.skip(skipped)
	f.looks = looks
	before.Skipped = f.last.Skipped
	present := 0
	for _, file := range f.files {
		if !file.gone {
			present++
		}
	}
	if !changed && len(files) == present {
		f.metrics.gone.Store(f.metrics.settled.Load()) // the directory can be read again
		return before, f.generation, len(looks) > 0, nil
	}
	if err := f.settle(files); err != nil {
		f.metrics.failed.Add(1)
		return before, f.generation, len(looks) > 0, err
	}
	return f.last, f.generation, len(looks) > 0, nil
}

// maxScans is how often the directory is scanned at most if files vanish after a scan has found them.
const maxScans = 5

// scanAndRead lists the files of the directory and reads those that have changed. The directory may be replaced during
// the scan, like a ConfigMap's. Then files of the old version vanish after the scan has found them. That is not an
// error, so the directory is scanned again.
func (f *Directory) scanAndRead(seen Seen, quiet bool) (met []found, reads []readResult, err error) {
	var before []found
	for scans := 1; ; scans++ {
		scanned, err := scan(f.o.Dir, seen)
		switch {
		case os.IsNotExist(err) && scans < maxScans:
			continue
		case err != nil:
			return nil, nil, err
		case scans > 1 && slices.EqualFunc(scanned, before, found.equal):
			return met, reads, nil // the unreadable names have not vanished: they are links to names that do not exist
		}
		before = scanned
		met = f.expandUnreadable(scanned)
		reads = f.readAll(met, quiet)
		vanished := slices.ContainsFunc(met, func(m found) bool { return os.IsNotExist(m.err) }) ||
			slices.ContainsFunc(reads, func(r readResult) bool { return r.vanished })
		if !vanished || scans == maxScans {
			return met, reads, nil
		}
	}
}

// readAll reads the files that have changed, several at a time.
func (f *Directory) readAll(met []found, quiet bool) []readResult {
	reads := make([]readResult, len(met))
	var g errgroup.Group
	g.SetLimit(runtime.GOMAXPROCS(0))
	for i, m := range met {
		g.Go(func() error {
			reads[i] = f.read(m, quiet)
			return nil
		})
	}
	_ = g.Wait() // none of them fails: an unreadable file is a bad file
	return reads
}

// skip stores which files are skipped and logs the new ones: one line for each file with rules, and one line for all
// other files with the same reason.
func (f *Directory) skip(skipped map[string]skippedFile) {
	var all []Skipped
	others := map[string][]string{} // file names, keyed by reason
	for _, name := range slices.Sorted(maps.Keys(skipped)) {
		s := skipped[name]
		if s.Why == "" {
			continue
		}
		all = append(all, s.Skipped)
		switch {
		case f.skipped[name].Skipped == s.Skipped:
		case s.Rules:
			f.o.Logger.Warn("file skipped: none of its rules is active", "file", name, "because", s.Why)
		default:
			others[s.Why] = append(others[s.Why], name)
		}
	}
	for _, why := range slices.Sorted(maps.Keys(others)) {
		level := slog.LevelInfo
		if why == ofTests {
			level = slog.LevelDebug // no author expects these to be rules
		}
		names := others[why]
		f.o.Logger.Log(context.Background(), level, "files skipped", "files", names[:min(len(names), mostNamed)],
			"total_files", len(names), "because", why)
	}
	f.skipped, f.last.Skipped = skipped, all
}

// expandUnreadable replaces each directory that cannot be read with the known files below it. They count as unreadable,
// not as removed.
func (f *Directory) expandUnreadable(met []found) []found {
	var out []found
	for _, m := range met {
		out = append(out, m)
		if !m.dir {
			continue
		}
		for name := range f.files {
			if strings.HasPrefix(name, m.name+"/") {
				out = append(out, found{name: name, err: m.err})
			}
		}
	}
	slices.SortFunc(out, func(a, b found) int { return strings.Compare(a.name, b.name) })
	return out
}

// readResult is the result of reading a file: one of the first three, or none of them if the file is unchanged.
type readResult struct {
	fresh    *ruleFile    // its newest version
	growing  fs.FileInfo  // it is being written
	skipped  *skippedFile // it is not a rule file
	vanished bool         // a scan has found it, but it was gone when it was read
}

// read reads a file if it has changed.
func (f *Directory) read(m found, quiet bool) readResult {
	old := f.files[m.name]
	known := old
	if old != nil && old.gone {
		known = nil // it exists again
	}
	name := filepath.Join(f.o.Dir, filepath.FromSlash(m.name))
	bad := func(err error) readResult {
		vanished := m.err == nil && os.IsNotExist(err)
		if m.nonRule != "" && old == nil {
			return readResult{skipped: &skippedFile{Skipped: Skipped{Name: m.name}}, vanished: vanished}
		}
		e := &yamlform.Error{File: name, Msg: "cannot be read: " + err.Error()}
		if known != nil && known.sum == (sum{}) && *known.newest.errs[0] == *e {
			return readResult{vanished: vanished}
		}
		return readResult{fresh: old.next(sum{}, &source{errs: []*yamlform.Error{e}}), vanished: vanished}
	}
	if m.err != nil {
		return bad(m.err)
	}
	look, err := files.Stat(m.path)
	if err != nil {
		return bad(err)
	}
	skipped, isSkipped := f.skipped[m.name]
	if known != nil && known.sum != (sum{}) || isSkipped {
		s, err := sumFile(m.path, f.o.MaxFileSize)
		switch {
		case err != nil:
			return bad(err)
		case isSkipped && s == skipped.sum:
			return readResult{skipped: &skipped}
		case known != nil && s == known.sum:
			return readResult{}
		}
	}
	if !settled(quiet, f.looks[m.name], look) {
		return readResult{growing: look}
	}
	data, err := readFile(m.path, f.o.MaxFileSize)
	if err != nil {
		return bad(err)
	}
	if after, err := files.Stat(m.path); err == nil && !files.Same(look, after) {
		return readResult{growing: after}
	}
	s := sumOf(data)
	if known != nil && s == known.sum {
		return readResult{}
	}
	if why, skip := m.nonRule.skip(m.name, data); skip {
		if m.nonRule == namedHidden && !why.Rules {
			why.Why = "" // do not log swap files of editors
		}
		return readResult{skipped: &skippedFile{s, why}}
	}
	fresh := old.next(s, (&File{Name: name, Data: data, Elsewhere: m.elsewhere}).read(!f.o.Strict))
	fresh.cut = !bytes.HasSuffix(data, []byte("\n"))
	return readResult{fresh: fresh}
}

// next returns the file with new content.
func (r *ruleFile) next(s sum, newest *source) *ruleFile {
	n := &ruleFile{sum: s, newest: newest}
	if r != nil {
		n.good, n.inUse, n.status = r.good, r.inUse, r.status
	}
	return n
}

// settle decides which version of each file is in use, compiles them, and makes the result active.
func (f *Directory) settle(files map[string]*ruleFile) error {
	l := ledger{merge: f.o.MergeDomains, alone: f.o.NoRegions, tree: f.o.Tree}
	for _, fixed := range f.fixed {
		l.admit(fixed)
	}
	now := time.Now()
	sameRules := f.last.Tree != nil && len(files) == len(f.files)
	next := Result{Tree: f.last.Tree, Changed: true}
	done := make(map[string]*ruleFile, len(files))
	var lines []func() // log lines, written when nothing can fail any more
	level := slog.LevelInfo
	if f.last.Tree == nil && len(files) > mostNamed {
		level = slog.LevelDebug
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		file := *files[name] // a copy: if the tree cannot be compiled, the old state must be unchanged
		before := file.inUse
		state := descriptor.FileLoaded
		errs := l.admit(file.newest)
		switch {
		case len(errs) == 0:
			file.inUse, file.good = file.newest, file.newest
		case file.good != nil && len(l.admit(file.good)) == 0:
			file.inUse, state = file.good, descriptor.FileStale
		default:
			file.inUse, state = nil, descriptor.FileRejected
		}
		if f.files[name] == nil || before != file.inUse {
			sameRules = false
		}
		if file.inUse != nil {
			next.InUse++
		}
		if file.sum == (sum{}) {
			next.Unreadable = append(next.Unreadable, file.newest.errs...)
		}
		status := statusOf(name, state, file.inUse, errs)
		status.Since = now
		if file.status.State == state {
			status.Since = file.status.Since
		}
		if line := f.logChange(file.status, status, before != file.inUse, level); line != nil {
			lines = append(lines, line)
		}
		file.status = status
		next.Files = append(next.Files, status)
		done[name] = &file
	}
	for _, domain := range f.backup {
		_ = l.admit(domain) // an error: a file of the directory has the domain
	}
	if f.emptied(done) {
		f.keep(done, now)
		return nil
	}
	if !sameRules {
		tree, err := l.compile()
		if err != nil {
			return fmt.Errorf("use rule directory %s: %w", f.o.Dir, err)
		}
		next.Tree = tree
	}
	for _, name := range slices.Sorted(maps.Keys(f.files)) {
		if files[name] == nil {
			lines = append(lines, func() { f.o.Logger.Info("rule file removed", "file", name) })
		}
	}
	next.Skipped = f.last.Skipped
	before := f.last
	f.files, f.last = done, next
	f.generation++
	f.metrics.reloaded(&next, now)
	for _, line := range lines {
		line()
	}
	warnOfDrops(f.o.Logger, &before, &next, func(name string) bool { return done[name] != nil && done[name].cut })
	return nil
}
