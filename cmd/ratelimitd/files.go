package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
)

// newFile is a file that a command writes. It is written under a temporary name. When it is complete, it takes its own
// name and replaces an earlier file. So neither an error nor an interruption leaves half a file.
type newFile struct {
	*os.File
	target string // path of the finished file; empty for a pipe or a terminal, which is written in place
}

// createFile creates a file that takes its name only on commit. It fails immediately if the file cannot be written, not
// after the work of a long command.
func createFile(name string) (*newFile, error) {
	if name == "-" {
		return nil, errors.New("- is no file: name one, or use -o")
	}
	target, err := filepath.EvalSymlinks(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		target = name
	case err != nil:
		return nil, err
	}
	if info, err := os.Stat(target); err == nil && !info.Mode().IsRegular() {
		f, err := os.OpenFile(name, os.O_WRONLY, 0) // a directory fails here
		return &newFile{File: f}, err
	}
	f, err := os.OpenFile(fmt.Sprintf("%s.%d.tmp", target, os.Getpid()), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o666)
	if at := new(fs.PathError); errors.As(err, &at) {
		return nil, &fs.PathError{Op: at.Op, Path: name, Err: at.Err}
	}
	if err != nil {
		return nil, err
	}
	if info, err := os.Stat(target); err == nil { // keep the permissions of the earlier file
		if err := f.Chmod(info.Mode().Perm()); err != nil {
			_, _ = f.Close(), os.Remove(f.Name())
			return nil, err
		}
	}
	unfinished.add(f.Name())
	return &newFile{f, target}, nil
}

// commit completes the file.
func (f *newFile) commit() error {
	err := f.Close()
	if f.target == "" {
		return err
	}
	if err == nil {
		err = os.Rename(f.Name(), f.target)
	}
	if err != nil {
		_ = os.Remove(f.Name())
	}
	unfinished.drop(f.Name())
	return err
}

// discard removes the unfinished file. After commit it does nothing.
func (f *newFile) discard() {
	if f == nil || f.File == nil || f.Close() != nil || f.target == "" {
		return
	}
	_ = os.Remove(f.Name())
	unfinished.drop(f.Name())
}

// unfinished holds the files that are still being written. They are removed if the process ends before their command
// does.
var unfinished fileNames

type fileNames struct {
	mu  sync.Mutex
	all map[string]bool
}

func (n *fileNames) add(name string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.all == nil {
		n.all = make(map[string]bool)
	}
	n.all[name] = true
}

func (n *fileNames) drop(name string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.all, name)
}

func (n *fileNames) remove() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for name := range n.all {
		_ = os.Remove(name)
	}
}
