package override

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"io/fs"
	"log/slog"
	"slices"
	"sort"
	"strings"
	"sync"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/config/yamlform"
	"github.com/ratelimitd/ratelimitd/internal/platform/files"
	"github.com/ratelimitd/ratelimitd/internal/platform/metric"
)

const (
	// lookEvery is how often a file is looked at. It is read when it has not changed for that long, so that a file that is
	// being written is not read.
	lookEvery = 200 * time.Millisecond

	mostLogged = 10 // errors of a file
)

// FileOptions select the file of overrides.
type FileOptions struct {
	Path    string
	Log     *slog.Logger    // default slog.Default()
	Metrics metric.Registry // if nil, metrics are counted but not registered
}

// File is a source that reads overrides from a YAML file. People and their tools change the file. A version that cannot
// be read does not replace the active one.
//
// The Version of a record is computed from its content: it changes whenever the content does, whoever changed it.
type File struct {
	o       FileOptions
	metrics *Metrics

	mu      sync.Mutex
	info    fs.FileInfo // state of the file when it was read
	records []Placed    // the overrides, in the order of the file
	listed  []listed    // records, sorted for List; nil until sorted
	set     *Set        // set of the records
	failing string      // why the newest content cannot be used
}

var _ Source = (*File)(nil)

// OpenFile reads the file. It fails if that cannot be used.
func OpenFile(o FileOptions) (*File, error) {
	if o.Log == nil {
		o.Log = slog.Default()
	}
	f := &File{o: o}
	if err := f.load(); err != nil {
		return nil, err
	}
	f.metrics = NewMetrics(o.Metrics)
	f.metrics.Hold(f.set)
	f.metrics.SetUp(true)
	return f, nil
}

// FileError reports a file of overrides that cannot be used.
type FileError struct {
	Path string
	Errs []*yamlform.Error
}

// Error implements error.
func (e *FileError) Error() string {
	lines := make([]string, 0, mostLogged+1)
	for i, err := range e.Errs {
		if i == mostLogged {
			lines = append(lines, fmt.Sprintf("and %d more errors", len(e.Errs)-i))
			break
		}
		lines = append(lines, err.Error())
	}
	return strings.Join(lines, "\n")
}

// load reads the file, and replaces the records if the content is valid.
func (f *File) load() error {
	info, err := files.Stat(f.o.Path)
	if err != nil {
		return fmt.Errorf("read overrides: %w", err)
	}
	if info.Size() > MaxFileSize {
		return fmt.Errorf("read overrides: %s is larger than %d MiB: keep this many overrides in Redis", f.o.Path,
			MaxFileSize>>20)
	}
	data, err := files.Read(f.o.Path, MaxFileSize)
	if err != nil {
		return fmt.Errorf("read overrides: %w", err)
	}
	f.info = info // also of a bad file, which is not read again until it changes
	records, errs := ReadFile(f.o.Path, data)
	if len(errs) > 0 {
		return &FileError{f.o.Path, errs}
	}
	for i := range records {
		records[i].Version = 0
		records[i].Version = contentVersion(records[i].appendYAML(nil))
	}
	f.records, f.listed = records, nil
	f.set = SetOf(records)
	f.set.Version = contentVersion(data)
	return nil
}

// contentVersion returns a number from 1 to 2^53 - 1, which JSON and metrics can hold exactly.
func contentVersion(data []byte) int64 {
	sum := sha256.Sum256(data)
	return int64(binary.BigEndian.Uint64(sum[:])%(1<<53-1)) + 1
}

func identityKey(i *Identity) string { return string(i.appendTo(nil)) }

func byIdentity(records []Placed) map[string]*Placed {
	all := make(map[string]*Placed, len(records))
	for i := range records {
		all[identityKey(&records[i].Identity)] = &records[i]
	}
	return all
}

// Up reports whether the file could be read when it was last looked at.
func (f *File) Up() bool { return f.metrics.Up() }

// Run implements Source. It returns nil when ctx ends.
func (f *File) Run(ctx context.Context, apply func(*Set)) error {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	var applied *Set
	var changing fs.FileInfo // state of the file at the last look, if it differs from the content that was read
	for {
		f.mu.Lock()
		set := f.set
		f.mu.Unlock()
		if set != applied {
			applied = set
			f.metrics.Hold(set)
			apply(set)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			changing = f.look(changing)
		}
	}
}

// look reads the file if it has changed, but not since the last look. It returns how the file is if it may still be
// changing.
func (f *File) look(before fs.FileInfo) fs.FileInfo {
	f.mu.Lock()
	defer f.mu.Unlock()
	now, err := files.Stat(f.o.Path)
	switch {
	case err != nil:
		f.report(fmt.Errorf("read overrides: %w", err))
		return nil
	case files.Same(now, f.info) && !f.missing():
		return nil
	case before == nil || !files.Same(now, before):
		return now
	}
	had := f.set.Version
	err = f.load()
	f.report(err)
	if err == nil && f.set.Version != had {
		f.o.Log.Info("active overrides", "file", f.o.Path, "overrides", f.set.Len(), "version", f.set.Version)
	}
	return nil
}

// missing reports whether the file could not be read at the last look, for a reason that may be over.
func (f *File) missing() bool { return strings.HasPrefix(f.failing, "read overrides: ") }

// report logs why the file cannot be used, once, and when it can be used again.
func (f *File) report(err error) {
	defer f.metrics.SetUp(err == nil) // after the line: an operator who is alerted finds it in the log
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text == f.failing {
		return
	}
	f.failing = text
	if err == nil {
		f.o.Log.Info("the file of overrides can be used again", "file", f.o.Path)
		return
	}
	f.o.Log.Error("the file of overrides cannot be used: the previous overrides stay active", "file", f.o.Path,
		"overrides", f.set.Len(), "error", err)
}

// ReadOnlyError lists the edits that people must make in a file of overrides, because this replica only reads it. It is
// ErrReadOnly.
type ReadOnlyError struct {
	Path  string
	Steps []string // edits to make there
}

// mostSteps is how many bytes of steps an error has. Clients reject long messages of errors.
const mostSteps = 6 << 10

// Error implements error.
func (e *ReadOnlyError) Error() string {
	var text strings.Builder
	fmt.Fprintf(&text, "nothing was changed, because overrides are read from the file %s: change that file", e.Path)
	for i, step := range e.Steps {
		if text.Len()+len(step) > mostSteps {
			fmt.Fprintf(&text, "\nand in the same way %d more", len(e.Steps)-i)
			break
		}
		text.WriteString("\n" + strings.TrimSuffix(step, "\n"))
	}
	return text.String()
}

// Is makes a ReadOnlyError equal to ErrReadOnly.
func (e *ReadOnlyError) Is(target error) bool { return target == ErrReadOnly }

// Write implements Source. It changes nothing, because people and their tools keep the file: the error is a
// *ReadOnlyError that contains the YAML to write. Removing an override that does not exist is not an error.
func (f *File) Write(_ context.Context, author string, edits []Edit) ([]Override, error) {
	if err := CheckEdits(author, edits); err != nil {
		return nil, err
	}
	f.mu.Lock()
	places := byIdentity(f.records)
	f.mu.Unlock()
	written := make([]Override, len(edits))
	todo := &ReadOnlyError{Path: f.o.Path}
	for i := range edits {
		e := &edits[i]
		was := places[identityKey(&e.Identity)]
		var record *Override
		if was != nil {
			record = &was.Override
		}
		if err := e.Check(record); err != nil {
			return nil, err
		}
		o := e.Override
		o.Author, o.Version, o.Changed = author, 0, time.Time{}
		written[i] = o
		switch {
		case e.Remove && was == nil:
		case e.Remove:
			gone := *record
			gone.Version = 0 // it is computed
			todo.Steps = append(todo.Steps, fmt.Sprintf("%s, remove this override:\n%s", was.At.Near(), gone.appendYAML(nil)))
		case was != nil:
			todo.Steps = append(todo.Steps, fmt.Sprintf("%s, replace the override by this:\n%s", was.At.Near(),
				o.appendYAML(nil)))
		default:
			todo.Steps = append(todo.Steps, fmt.Sprintf("add this to `overrides`:\n%s", o.appendYAML(nil)))
		}
	}
	if len(todo.Steps) == 0 {
		return written, nil
	}
	return nil, todo
}

// Get implements Source.
func (f *File) Get(_ context.Context, which []Identity) ([]*Override, error) {
	f.mu.Lock()
	records := f.records
	f.mu.Unlock()
	places := byIdentity(records)
	all := make([]*Override, len(which))
	for i := range which {
		if o := places[identityKey(&which[i])]; o != nil {
			found := o.Override
			all[i] = &found
		}
	}
	return all, nil
}

// List implements Source. It is sorted by domain, and within a domain by Identity.String.
func (f *File) List(_ context.Context, q Query) ([]Override, string, error) {
	domain, text, err := ReadPlace(q.After)
	if err != nil {
		return nil, "", err
	}
	all := f.inOrder()
	first := 0
	if q.After != "" {
		first = sort.Search(len(all), func(i int) bool {
			return cmp.Or(cmp.Compare(all[i].Domain, domain), cmp.Compare(all[i].text, text)) > 0
		})
	}
	var page []Override
	next := ""
	for _, o := range all[first:] {
		switch {
		case !q.Selects(o.Override):
		case len(page) == q.Length():
			return page, next, nil
		default:
			page, next = append(page, *o.Override), Place(o.Domain, o.text)
		}
	}
	return page, "", nil
}

// listed is a record with the text of its identity.
type listed struct {
	text string
	*Override
}

// inOrder returns the records in the order of lists. It sorts them once for each content of the file, because a list
// has many pages.
func (f *File) inOrder() []listed {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.listed == nil {
		f.listed = make([]listed, len(f.records))
		for i := range f.records {
			f.listed[i] = listed{f.records[i].String(), &f.records[i].Override}
		}
		slices.SortFunc(f.listed, func(a, b listed) int {
			return cmp.Or(cmp.Compare(a.Domain, b.Domain), cmp.Compare(a.text, b.text))
		})
	}
	return f.listed
}

// History implements Source. It always fails: people keep the file, in version control or elsewhere.
func (f *File) History(context.Context, Query) ([]Event, error) {
	return nil, fmt.Errorf("%w: see the history of that file where you keep it", ErrReadOnly)
}
