package override

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ratelimitd/ratelimitd/internal/yamlform"
)

const (
	// lookEvery is how often a file is looked at. It is read when it has not changed for so long, so that a file that is being written is
	// not read.
	lookEvery = 200 * time.Millisecond

	lockWithin = 5 * time.Second // a write waits so long for that of another process
	lockEvery  = 5 * time.Millisecond

	mostEvents = 1000 // that a File remembers
	mostLogged = 10   // errors of a file
)

// FileOptions say which file has the overrides.
type FileOptions struct {
	Path    string
	Log     *slog.Logger          // default slog.Default()
	Metrics prometheus.Registerer // nil: counted, but not registered
}

// File is a source that keeps overrides in a YAML file. People, a ConfigMap or Write change it. A version that cannot be read does not
// replace the one in force.
//
// The Version of a record is computed from its content: it is another one after each change, whoever made it. The history is that of
// this process alone.
type File struct {
	o       FileOptions
	metrics *Metrics

	mu      sync.Mutex
	info    fs.FileInfo // of what was read
	records []Override  // in the order of the file
	listed  []listed    // records, sorted for List; nil: not sorted yet
	set     *Set        // of records
	events  []Event     // the oldest first
	last    int64       // version of the newest event
	failing string      // why the newest content cannot be used

	written chan struct{} // Write has changed the set
}

var _ Source = (*File)(nil)

// OpenFile reads the file. It fails if that cannot be used.
func OpenFile(o FileOptions) (*File, error) {
	if o.Log == nil {
		o.Log = slog.Default()
	}
	f := &File{o: o, written: make(chan struct{}, 1)}
	if _, err := f.load(); err != nil {
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

// load reads the file, and replaces what was read before if it can be used. It returns the records of before.
func (f *File) load() (before []Override, err error) {
	info, err := os.Stat(f.o.Path)
	if err != nil {
		return nil, fmt.Errorf("read overrides: %w", err)
	}
	if info.Size() > MaxFileSize {
		return nil, fmt.Errorf("read overrides: %s is larger than %d MiB: keep so many overrides in Redis", f.o.Path, MaxFileSize>>20)
	}
	data, err := os.ReadFile(f.o.Path)
	if err != nil {
		return nil, fmt.Errorf("read overrides: %w", err)
	}
	f.info = info // also of a bad file, which is not read again until it changes
	records, errs := ReadFile(f.o.Path, data)
	if len(errs) > 0 {
		return nil, &FileError{f.o.Path, errs}
	}
	for i := range records {
		records[i].Version = 0
		records[i].Version = contentVersion(records[i].appendYAML(nil))
	}
	before = f.records
	f.records, f.listed = records, nil
	f.set = NewSet(contentVersion(data), func(yield func(*Identity, Numbers) bool) {
		for i := range records {
			if !yield(&records[i].Identity, records[i].Numbers) {
				return
			}
		}
	})
	return before, nil
}

// contentVersion returns a number from 1 to 2^53 - 1, which JSON and metrics can hold exactly.
func contentVersion(data []byte) int64 {
	sum := sha256.Sum256(data)
	return int64(binary.BigEndian.Uint64(sum[:])%(1<<53-1)) + 1 //nolint:gosec // 53 bits
}

// reload reads the file, and remembers what has changed.
func (f *File) reload() error {
	before, err := f.load()
	if err != nil {
		return err
	}
	gone := byIdentity(before)
	var events []Event
	for i := range f.records {
		after := &f.records[i]
		key := identityKey(&after.Identity)
		was := gone[key]
		delete(gone, key)
		if was == nil || was.Version != after.Version {
			events = append(events, Event{Author: after.Author, Reason: after.Reason, Before: was, After: after})
		}
	}
	for i := range before {
		if was := gone[identityKey(&before[i].Identity)]; was != nil {
			events = append(events, Event{Before: was})
		}
	}
	f.remember(events, time.Now().UTC())
	return nil
}

// remember adds events to the history.
func (f *File) remember(events []Event, now time.Time) {
	for _, e := range events {
		f.last++
		e.Version, e.At = f.last, now
		f.events = append(f.events, e)
	}
	if n := len(f.events) - mostEvents; n > 0 {
		f.events = slices.Delete(f.events, 0, n)
	}
}

func identityKey(i *Identity) string { return string(i.appendTo(nil)) }

func byIdentity(records []Override) map[string]*Override {
	all := make(map[string]*Override, len(records))
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
	var changing fs.FileInfo // how the file was at the last look, if it is not what was read
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
		case <-f.written:
			changing = nil
		case <-tick.C:
			changing = f.look(changing)
		}
	}
}

// look reads the file if it has changed, but not since the last look. It returns how the file is if it may still be changing.
func (f *File) look(before fs.FileInfo) fs.FileInfo {
	f.mu.Lock()
	defer f.mu.Unlock()
	now, err := os.Stat(f.o.Path)
	switch {
	case err != nil:
		f.report(fmt.Errorf("read overrides: %w", err))
		return nil
	case same(now, f.info) && !f.missing():
		return nil
	case before == nil || !same(now, before):
		return now
	}
	had := f.set.Version
	err = f.reload()
	f.report(err)
	if err == nil && f.set.Version != had {
		f.o.Log.Info("overrides in force", "file", f.o.Path, "overrides", f.set.Len(), "version", f.set.Version)
	}
	return nil
}

// missing reports whether the file could not be read at the last look, for a reason that may be over.
func (f *File) missing() bool { return strings.HasPrefix(f.failing, "read overrides: ") }

func same(a, b fs.FileInfo) bool {
	return os.SameFile(a, b) && a.ModTime().Equal(b.ModTime()) && a.Size() == b.Size()
}

// report logs why the file cannot be used, once, and when it can be used again.
func (f *File) report(err error) {
	f.metrics.SetUp(err == nil)
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
	f.o.Log.Error("the file of overrides cannot be used: the last ones stay in force", "file", f.o.Path, "overrides", f.set.Len(), "error", err)
}

var (
	errBadFile  = errors.New("the file of overrides has errors: correct them first")
	errChanging = errors.New("the file of overrides is being changed: try again")
)

// Write implements Source. It replaces the file, whose comments stay.
func (f *File) Write(ctx context.Context, author string, edits []Edit) ([]Override, error) {
	if len(edits) == 0 {
		return nil, nil
	}
	if err := CheckEdits(author, edits); err != nil {
		return nil, err
	}
	unlock, err := f.lockFolder(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	f.mu.Lock()
	defer f.mu.Unlock()
	if info, err := os.Lstat(f.o.Path); err != nil || info.Mode()&fs.ModeSymlink != 0 {
		return nil, ErrReadOnly // a ConfigMap is a link; a rename over it would end it
	}
	if now, err := os.Stat(f.o.Path); err != nil || !same(now, f.info) {
		if err := f.reload(); err != nil {
			f.report(err)
			return nil, fmt.Errorf("%w: %w", errBadFile, err)
		}
	} else if f.failing != "" {
		return nil, errBadFile
	}

	now := time.Now().UTC().Truncate(time.Millisecond)
	next := slices.Clone(f.records)
	places := make(map[string]int, len(next))
	for i := range next {
		places[identityKey(&next[i].Identity)] = i
	}
	written := make([]Override, len(edits))
	edited := make(map[int]bool) // places
	gone := make(map[int]bool)
	var events []Event
	for i := range edits {
		e := &edits[i]
		place, found := places[identityKey(&e.Identity)]
		event := Event{Author: author, Reason: e.Reason}
		if found {
			was := f.records[place]
			event.Before = &was
		}
		if err := e.Check(event.Before); err != nil {
			return nil, err
		}
		o := e.Override
		o.Author, o.Changed, o.Version = author, now, 0
		switch {
		case e.Remove && found:
			gone[place] = true
			o.Version = event.Before.Version
		case e.Remove:
			written[i] = o
			continue
		default:
			o.Version = contentVersion(o.appendYAML(nil))
			after := o
			event.After = &after
			if found {
				next[place], edited[place] = o, true
			} else {
				next = append(next, o)
			}
		}
		written[i] = o
		events = append(events, event)
	}
	if len(events) == 0 {
		return written, nil
	}
	kept := make([]Override, 0, len(next))
	items := make([]yamlform.Item, 0, len(next))
	for i := range next {
		if gone[i] {
			continue
		}
		o := next[i]
		o.Version = 0 // it is computed
		kept = append(kept, o)
		item := yamlform.Item{From: i}
		if i >= len(f.records) {
			item.From = -1
		}
		if item.From < 0 || edited[i] {
			item.Text = o.appendYAML(nil)
		}
		items = append(items, item)
	}
	if err := f.replace(kept, items); err != nil {
		return nil, err
	}
	f.remember(events, now)
	f.report(nil)
	select {
	case f.written <- struct{}{}:
	default:
	}
	return written, nil
}

// lockFolder keeps other processes of this service, and other goroutines, from writing the file until unlock is called. Where the file system
// has no locks, it does nothing.
func (f *File) lockFolder(ctx context.Context) (unlock func(), err error) {
	folder, err := os.Open(filepath.Dir(f.o.Path))
	if err != nil {
		return func() {}, nil // the write will fail, and say why
	}
	ctx, cancel := context.WithTimeout(ctx, lockWithin)
	defer cancel()
	for {
		err := syscall.Flock(int(folder.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) //nolint:gosec // a file descriptor is small
		if !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) {
			return func() { _ = folder.Close() }, nil
		}
		select {
		case <-ctx.Done():
			_ = folder.Close()
			return nil, errChanging
		case <-time.After(lockEvery):
		}
	}
}

// replace writes a new file in place of the one that is there, and reads it. items are the same records as changes of that file.
func (f *File) replace(records []Override, items []yamlform.Item) error {
	was, err := os.ReadFile(f.o.Path)
	if err != nil {
		return fmt.Errorf("write overrides: %w", err)
	}
	if contentVersion(was) != f.set.Version {
		return errChanging
	}
	data, err := yamlform.EditList(was, "overrides", items)
	full := err == nil && len(data) > MaxFileSize
	if !full && (err != nil || !saysSame(f.o.Path, data, records)) { // aliases lead from one override to another: then the file loses its comments
		data = AppendYAML(nil, records)
		full = len(data) > MaxFileSize
	}
	if full {
		return fmt.Errorf("%w: the file would be larger than %d MiB: keep so many in Redis", ErrFull, MaxFileSize>>20)
	}
	if _, errs := ReadFile(f.o.Path, data); len(errs) > 0 {
		return fmt.Errorf("write overrides: %w", &FileError{f.o.Path, errs})
	}
	err = ReplaceFile(f.o.Path, f.info.Mode().Perm(), func(to *os.File) error {
		_, err := bytes.NewReader(data).WriteTo(to)
		return err //nolint:wrapcheck // ReplaceFile says what was done
	})
	switch {
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EROFS):
		return ErrReadOnly
	case err != nil:
		return err
	}
	_, err = f.load()
	return err
}

// saysSame reports whether a file has these overrides.
func saysSame(name string, data []byte, records []Override) bool {
	read, errs := ReadFile(name, data)
	if len(errs) > 0 || len(read) != len(records) {
		return false
	}
	var a, b []byte
	for i := range read {
		read[i].Version = 0
		a, b = read[i].appendYAML(a[:0]), records[i].appendYAML(b[:0])
		if !bytes.Equal(a, b) {
			return false
		}
	}
	return true
}

// ReplaceFile replaces a file at once: after a crash it is the one before, or the new one. It returns when the new one is on disk.
func ReplaceFile(path string, mode fs.FileMode, write func(*os.File) error) (err error) {
	to, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return fmt.Errorf("replace a file: %w", err)
	}
	defer func() {
		if err != nil {
			_ = to.Close()
			_ = os.Remove(to.Name())
			err = fmt.Errorf("replace a file: %w", err)
		}
	}()
	for _, step := range []func() error{
		func() error { return write(to) },
		func() error { return to.Chmod(mode) },
		to.Sync,
		to.Close,
		func() error { return os.Rename(to.Name(), path) },
	} {
		if err := step(); err != nil {
			return err
		}
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer dir.Close() //nolint:errcheck // it was only synced
	return dir.Sync()
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
			found := *o
			all[i] = &found
		}
	}
	return all, nil
}

// Turn implements Source. It is always the turn of this process: Write sees to it that processes with one file write one after the other.
func (f *File) Turn(context.Context, time.Duration) (bool, error) { return true, nil }

// List implements Source. The order is that of domains and, in each, of Identity.String.
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

// inOrder returns the records in the order of lists. It sorts them once for each content of the file, because a list has many pages.
func (f *File) inOrder() []listed {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.listed == nil {
		f.listed = make([]listed, len(f.records))
		for i := range f.records {
			f.listed[i] = listed{f.records[i].String(), &f.records[i]}
		}
		slices.SortFunc(f.listed, func(a, b listed) int {
			return cmp.Or(cmp.Compare(a.Domain, b.Domain), cmp.Compare(a.text, b.text))
		})
	}
	return f.listed
}

// History implements Source: the changes that this process has made or noticed. Those that others made have the author that the file says.
func (f *File) History(_ context.Context, q Query) ([]Event, error) {
	until := int64(math.MaxInt64)
	if q.After != "" {
		var err error
		if until, err = strconv.ParseInt(q.After, 10, 64); err != nil {
			return nil, ErrPage
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	var events []Event
	for _, e := range slices.Backward(f.events) {
		about := e.After
		if about == nil {
			about = e.Before
		}
		if e.Version < until && q.Selects(about) && len(events) < q.Length() {
			events = append(events, e)
		}
	}
	return events, nil
}
