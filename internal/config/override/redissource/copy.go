package redissource

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/config/override"
	"github.com/ratelimitd/ratelimitd/internal/platform/files"
)

const (
	copyEvery = 5 * time.Second // the copy is written at most this often
	copyShare = 20              // writing it takes at most one part in this many of a CPU's time
	mostAside = 5               // files that are kept after Redis has lost changes
)

// copies writes the copy of the overrides, and reads it at the start. It is a file of overrides in the form for
// programs, one on each line, after a line with the position.
type copies struct {
	path string
	log  *slog.Logger

	mu      sync.Mutex
	next    *copied // newest set that is not written yet
	wake    chan struct{}
	aside   sync.WaitGroup
	failing string // used only by the writer
}

type copied struct {
	set *override.Set
	at  position
}

func newCopies(path string, log *slog.Logger) *copies {
	return &copies{path: path, log: log, wake: make(chan struct{}, 1)}
}

// keep has a set written to the copy soon.
func (c *copies) keep(set *override.Set, at position) {
	c.mu.Lock()
	c.next = &copied{set, at}
	c.mu.Unlock()
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// lastCopy is how long a stop waits for the last copy: a file system that does not answer must not hold it up.
const lastCopy = 5 * time.Second

// run writes sets until the function that it returns is called, which writes the last one.
func (c *copies) run() (stop func()) {
	ending, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-ending:
				c.writeNext()
				return
			case <-c.wake:
			}
			start := time.Now()
			c.writeNext()
			select {
			case <-ending:
			case <-time.After(max(copyEvery, copyShare*time.Since(start))):
			}
		}
	}()
	return func() {
		close(ending)
		all := make(chan struct{})
		go func() {
			<-ended
			c.aside.Wait()
			close(all)
		}()
		select {
		case <-all:
		case <-time.After(lastCopy):
			c.log.Error("the last copy of the overrides is not written: is its file system on a network, and does not answer?",
				"file", c.path)
		}
	}
}

func (c *copies) writeNext() {
	c.mu.Lock()
	next := c.next
	c.next = nil
	c.mu.Unlock()
	if next == nil {
		return
	}
	err := writeCopy(c.path, next.set, next.at)
	switch {
	case err == nil && c.failing != "":
		c.log.Info("the copy of the overrides can be written again", "file", c.path)
		c.failing = ""
	case err != nil && err.Error() != c.failing:
		c.log.Error("the copy of the overrides cannot be written: a start without Redis would have older ones, or none",
			"file", c.path, "error", err)
		c.failing = err.Error()
	}
}

// keepAside writes the overrides that Redis has lost to a file next to the copy.
func (c *copies) keepAside(set *override.Set, at position) {
	c.aside.Go(func() {
		path := fmt.Sprintf("%s.version-%d", c.path, at.version)
		if err := writeCopy(path, set, at); err != nil {
			c.log.Error("the overrides of before cannot be kept", "file", path, "error", err)
			return
		}
		c.log.Warn("the overrides of before are kept in a file: compare them, then write those that are missing", "file",
			path,
			"command", "ratelimitd override import "+path)
		if all, _ := filepath.Glob(c.path + ".version-*"); len(all) > mostAside {
			slices.SortFunc(all, func(a, b string) int { return written(b).Compare(written(a)) })
			for _, old := range all[mostAside:] {
				_ = os.Remove(old)
			}
		}
	})
}

func written(path string) time.Time {
	if info, err := os.Stat(path); err == nil {
		return info.ModTime()
	}
	return time.Time{}
}

// header is the first line of a copy, after a # that makes it a comment.
type header struct {
	Version   int64  `json:"version"`
	ID        string `json:"id"`
	Born      string `json:"born"`
	Overrides int    `json:"overrides"`
}

const headerMark = "# last good copy of the overrides in Redis "

func writeCopy(path string, set *override.Set, at position) error {
	return replaceFile(path, 0o600, func(f *os.File) error { return writeSet(f, set, at) })
}

// replaceFile replaces a file atomically: after a crash it has either the old or the new content. It returns when the
// new content is on disk.
func replaceFile(path string, mode fs.FileMode, write func(*os.File) error) (err error) {
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

func writeSet(to io.Writer, set *override.Set, at position) error {
	w := bufio.NewWriterSize(to, 1<<20)
	first, err := json.Marshal(header{at.version, at.id, at.born, set.Len()})
	if err != nil {
		return fmt.Errorf("encode a header: %w", err)
	}
	_, _ = fmt.Fprintf(w, "%s%s\n", headerMark, first) // Flush reports the first error of all
	var text []byte
	for identity, numbers := range set.Each() {
		text = override.AppendJSON(text[:0], &override.Override{Identity: identity, Numbers: numbers})
		_, _ = w.Write(append(text, '\n'))
	}
	return w.Flush() //nolint:wrapcheck // replaceFile wraps it
}

var (
	errNoCopy    = errors.New("there is no copy")
	errDifferent = errors.New("it is not a copy that was written by this service, or it was changed")
)

// read reads the copy.
func (c *copies) read() (*override.Set, position, error) {
	// a file system that does not answer does not hold up the opening; reading a large copy may take its time
	_, err := files.Stat(c.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, position{}, errNoCopy
	}
	if err != nil {
		return nil, position{}, fmt.Errorf("read a copy: %w", err)
	}
	f, err := os.Open(c.path)
	if err != nil {
		return nil, position{}, fmt.Errorf("read a copy: %w", err)
	}
	defer f.Close() //nolint:errcheck // it was only read
	first, err := bufio.NewReader(f).ReadSlice('\n')
	first, ours := bytes.CutPrefix(first, []byte(headerMark))
	var h header
	if err != nil || !ours || json.Unmarshal(first, &h) != nil || h.Overrides < 0 || h.Overrides > override.MaxOverrides {
		return nil, position{}, errDifferent
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return nil, position{}, fmt.Errorf("read a copy: %w", err)
	}
	bad := error(nil)
	n := 0
	set := override.NewSet(h.Version, func(yield func(*override.Identity, override.Numbers) bool) {
		for o, err := range override.Lines(c.path, f) {
			if n++; err != nil || n > h.Overrides {
				bad = cmp.Or(err, errDifferent)
				return
			}
			if !yield(&o.Identity, o.Numbers) {
				return
			}
		}
	})
	switch {
	case bad != nil:
		return nil, position{}, bad
	case set.Len() != h.Overrides:
		return nil, position{}, errDifferent
	}
	return set, position{h.Version, h.ID, h.Born}, nil
}
