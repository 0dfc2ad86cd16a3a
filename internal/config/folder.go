package config

import (
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// Options are the settings of a Folder. Only Dir must be set.
type Options struct {
	Dir          string                // the folder of rule files, read with all folders below it
	MergeDomains bool                  // files that give the same domain share it; else it belongs to the file that sorts first
	Rescan       time.Duration         // how often all files are read again, whatever the file system reported; 0 means 10 s
	MaxFileSize  int64                 // bytes; a larger file is refused; 0 means 64 MiB
	Logger       *slog.Logger          // nil means slog.Default()
	Metrics      prometheus.Registerer // nil: no metrics
}

// Result is what a folder holds at one time.
type Result struct {
	// Tree is made of all files in use. It is the same pointer as before if no rule changed.
	Tree *descriptor.Tree
	// Files is the state of every rule file, sorted by name. Nobody may write to it.
	Files []descriptor.FileStatus
	// InUse is how many files have a version in use. 0 means that there is not one good file: a service should not
	// start with this, unless it was told to.
	InUse int
	// Changed says whether anything is different from the result before: a file's content, its state, or which files
	// there are.
	Changed bool
}

// Folder holds the rule files of one folder, each with its last good version.
type Folder struct {
	o       Options
	metrics metrics

	mu         sync.Mutex
	files      map[string]*ruleFile
	last       Result
	generation int // counts the results that were Changed
}

// ruleFile is one rule file.
type ruleFile struct {
	sum    sum     // of the newest content; zero if that cannot be read
	newest *source // what the newest content says, or why it cannot be read
	good   *source // the last version that was in use as the newest one; nil if there was none
	inUse  *source // newest, good or nil
	status descriptor.FileStatus
}

// NewFolder returns a folder that has not been read yet.
func NewFolder(o Options) *Folder {
	if o.Rescan <= 0 {
		o.Rescan = 10 * time.Second
	}
	if o.MaxFileSize <= 0 {
		o.MaxFileSize = 64 << 20
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	f := &Folder{o: o, files: make(map[string]*ruleFile)}
	if o.Metrics != nil {
		o.Metrics.MustRegister(&f.metrics)
	}
	return f
}

// Load reads the folder. Files are told apart by their content alone; what did not change is not parsed again.
//
// It fails only if the folder itself cannot be read: then the result is the one before, the zero Result if there was
// none. A bad file is no failure: its
// last good version stays in use, and its state tells why.
func (f *Folder) Load() (Result, error) {
	r, _, err := f.load(nil)
	return r, err
}

func (f *Folder) load(p *paths) (Result, int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	met, err := p.scan(f.o.Dir)
	before := f.last
	before.Changed = false
	if err != nil {
		f.metrics.failed.Add(1)
		return before, f.generation, fmt.Errorf("read rule folder %s: %w", f.o.Dir, err)
	}
	met = f.below(met)

	files := make(map[string]*ruleFile, len(met))
	fresh := make([]*ruleFile, len(met))
	var g errgroup.Group
	g.SetLimit(runtime.GOMAXPROCS(0))
	for i, m := range met {
		old := f.files[m.name]
		files[m.name] = old
		g.Go(func() error {
			fresh[i] = f.read(m, old)
			return nil
		})
	}
	_ = g.Wait() // none of them fails: an unreadable file is a bad file

	changed := f.last.Tree == nil || len(files) != len(f.files)
	for i, m := range met {
		if fresh[i] != nil {
			files[m.name] = fresh[i]
			changed = true
		}
	}
	if !changed {
		return before, f.generation, nil
	}
	if err := f.settle(files); err != nil {
		f.metrics.failed.Add(1)
		return before, f.generation, err
	}
	return f.last, f.generation, nil
}

// below puts in the place of a folder that cannot be read the files that were known below it: each of them is a file
// that cannot be read, not a file that was removed.
func (f *Folder) below(met []found) []found {
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

// read returns the newest version of a file, nil if it is the one that is known.
func (f *Folder) read(m found, old *ruleFile) *ruleFile {
	name := filepath.Join(f.o.Dir, filepath.FromSlash(m.name))
	bad := func(err error) *ruleFile {
		e := &Error{File: name, Msg: "cannot be read: " + err.Error()}
		if old != nil && old.sum == (sum{}) && *old.newest.errs[0] == *e {
			return nil
		}
		return old.next(sum{}, &source{errs: []*Error{e}})
	}
	if m.err != nil {
		return bad(m.err)
	}
	if old != nil && old.sum != (sum{}) {
		s, err := sumFile(m.path, f.o.MaxFileSize)
		if err != nil {
			return bad(err)
		}
		if s == old.sum {
			return nil
		}
	}
	data, err := readFile(m.path, f.o.MaxFileSize)
	if err != nil {
		return bad(err)
	}
	s := sumOf(data)
	if old != nil && s == old.sum {
		return nil
	}
	return old.next(s, readSource(name, data))
}

// next is the file with a new content.
func (r *ruleFile) next(s sum, newest *source) *ruleFile {
	n := &ruleFile{sum: s, newest: newest}
	if r != nil {
		n.good, n.inUse, n.status = r.good, r.inUse, r.status
	}
	return n
}

// settle decides which version of each file is in use, makes the tree of them, and takes over.
func (f *Folder) settle(files map[string]*ruleFile) error {
	l := ledger{merge: f.o.MergeDomains}
	now := time.Now()
	sameRules := f.last.Tree != nil && len(files) == len(f.files)
	next := Result{Tree: f.last.Tree, Changed: true}
	settled := make(map[string]*ruleFile, len(files))
	var told []func()
	for _, name := range slices.Sorted(maps.Keys(files)) {
		file := *files[name] // copied: if the tree cannot be made, nothing must have happened
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
		status := statusOf(name, state, file.inUse, errs)
		status.Since = now
		if file.status.State == state {
			status.Since = file.status.Since
		}
		if tell := f.tell(file.status, status, before != file.inUse); tell != nil {
			told = append(told, tell)
		}
		file.status = status
		next.Files = append(next.Files, status)
		settled[name] = &file
	}
	if !sameRules {
		tree, err := l.compile()
		if err != nil {
			return fmt.Errorf("use rule folder %s: %w", f.o.Dir, err)
		}
		next.Tree = tree
	}
	for _, name := range slices.Sorted(maps.Keys(f.files)) {
		if files[name] == nil {
			told = append(told, func() { f.o.Logger.Info("rule file removed", "file", name) })
		}
	}
	f.files, f.last = settled, next
	f.generation++
	f.metrics.reloaded(&next, now)
	for _, tell := range told {
		tell()
	}
	return nil
}

func statusOf(name string, state descriptor.FileState, inUse *source, errs []*Error) descriptor.FileStatus {
	s := descriptor.FileStatus{Name: name, State: state}
	if inUse != nil {
		s.Rules = inUse.rules
		for i := range inUse.domains {
			if !slices.Contains(s.Domains, inUse.domains[i].Name) {
				s.Domains = append(s.Domains, inUse.domains[i].Name)
			}
		}
	}
	for _, e := range errs {
		s.Errors = append(s.Errors, e.Error())
	}
	return s
}

const errorsLogged = 10 // of one file; its status has all

// tell returns what writes the log line of a file whose state, errors or rules changed, nil if none did.
func (f *Folder) tell(before, after descriptor.FileStatus, rules bool) func() {
	if before.State == after.State && !rules && slices.Equal(before.Errors, after.Errors) {
		return nil
	}
	log := f.o.Logger.With("file", after.Name, "state", string(after.State))
	if after.State == descriptor.FileLoaded {
		return func() { log.Info("rule file loaded", "domains", after.Domains, "rules", after.Rules) }
	}
	shown := after.Errors[:min(len(after.Errors), errorsLogged)]
	msg := "rule file rejected, nothing of it is in use"
	if after.State == descriptor.FileStale {
		msg = "rule file rejected, its last good version stays in use"
	}
	return func() { log.Error(msg, "rules", after.Rules, "errors", shown, "total_errors", len(after.Errors)) }
}
