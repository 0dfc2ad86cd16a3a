package files

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	// patience is the longest time to read a file. It is shorter while others do not answer, so that the waits do not add
	// up.
	patience      = 5 * time.Second
	leastPatience = 100 * time.Millisecond
)

// ErrNoAnswer is the error of a file that does not answer: on a network file system that hangs, or a device.
var ErrNoAnswer = errors.New("reading it takes too long: is it a device, or on a network file system that does " +
	"not answer?")

// stuck holds the files that did not answer in time, and have not answered since.
var stuck = struct {
	sync.Mutex
	names map[string]bool
}{names: make(map[string]bool)}

// Same reports whether two results of Stat show the same file, unchanged.
func Same(a, b fs.FileInfo) bool {
	return os.SameFile(a, b) && a.Size() == b.Size() && a.ModTime().Equal(b.ModTime())
}

// Use opens a file, calls do, and closes the file, as Within does.
func Use[T any](name string, do func(*os.File) (T, error)) (T, error) {
	return Within(name, func() (T, error) {
		var none T
		f, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0) // opening a pipe without a writer does not block
		if err != nil {
			return none, err //nolint:wrapcheck // it names the file
		}
		defer func() { _ = f.Close() }() // it was only read
		return do(f)
	})
}

// Stat is os.Stat with a deadline.
func Stat(name string) (fs.FileInfo, error) {
	return Within(name, func() (fs.FileInfo, error) { return os.Stat(name) })
}

// Lstat is os.Lstat with a deadline.
func Lstat(name string) (fs.FileInfo, error) {
	return Within(name, func() (fs.FileInfo, error) { return os.Lstat(name) })
}

// ReadDir is os.ReadDir with a deadline.
func ReadDir(name string) ([]fs.DirEntry, error) {
	return Within(name, func() ([]fs.DirEntry, error) { return os.ReadDir(name) })
}

// Watch adds a directory to a watcher, unless it does not answer: then it would block the watcher.
func Watch(w interface{ Add(dir string) error }, dir string) error {
	if _, err := Stat(dir); err != nil {
		return err
	}
	return w.Add(dir) //nolint:wrapcheck // it is the watcher's
}

// Within calls do, which accesses the file or directory of that name. It returns ErrNoAnswer if that takes too long, or
// if an earlier call for the name is still without an answer. Then do continues on a separate goroutine, so it must not
// change anything that the caller uses.
func Within[T any](name string, do func() (T, error)) (T, error) {
	var none T
	stuck.Lock()
	wait, again := max(patience>>min(len(stuck.names), 10), leastPatience), stuck.names[name]
	stuck.Unlock()
	if again {
		return none, &os.PathError{Op: "read", Path: name, Err: ErrNoAnswer}
	}
	type result struct {
		value T
		err   error
	}
	done := make(chan result, 1)
	go func() {
		value, err := do()
		done <- result{value, err}
	}()
	late := time.NewTimer(wait)
	defer late.Stop()
	select {
	case r := <-done:
		return r.value, r.err
	case <-late.C:
	}
	stuck.Lock()
	stuck.names[name] = true
	stuck.Unlock()
	go func() {
		<-done
		stuck.Lock()
		delete(stuck.names, name)
		stuck.Unlock()
	}()
	return none, &os.PathError{Op: "read", Path: name, Err: ErrNoAnswer}
}

// Read reads a file of at most this many bytes.
func Read(name string, most int64) ([]byte, error) {
	return Use(name, func(f *os.File) ([]byte, error) {
		data, err := io.ReadAll(io.LimitReader(f, most+1))
		if err == nil && int64(len(data)) > most {
			return nil, fmt.Errorf("%s has more than %d bytes", name, most)
		}
		return data, err //nolint:wrapcheck // it names the file
	})
}

// Leaves reports whether a name in a directory leads out of that directory, by symbolic links.
func Leaves(dir, name string) bool {
	root, err := follow(dir)
	if err != nil {
		return false
	}
	target, err := follow(name)
	if err != nil {
		return false
	}
	root, err = filepath.Abs(root)
	if err != nil {
		return false
	}
	if target, err = filepath.Abs(target); err != nil {
		return false
	}
	return target != root && !strings.HasPrefix(target,
		strings.TrimSuffix(root, string(filepath.Separator))+string(filepath.Separator))
}

// follow is filepath.EvalSymlinks with a deadline.
func follow(name string) (string, error) {
	return Within(name, func() (string, error) { return filepath.EvalSymlinks(name) })
}
