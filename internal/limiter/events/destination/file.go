package destination

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/ratelimitd/ratelimitd/internal/limiter/events"
	"github.com/ratelimitd/ratelimitd/internal/platform/files"
)

// Lines returns a destination that writes one event a line to an open stream.
func Lines(to io.Writer) events.Destination { return &writer{to: to} }

// writer writes one event a line to an open stream.
type writer struct {
	to   io.Writer
	torn bool // the last write ended within a line
}

// Name implements events.Destination.
func (w *writer) Name() string { return "stdout" }

// Send writes an event. If an earlier attempt failed in the middle of a line, Send starts a new line first, so that
// readers lose only that one.
func (w *writer) Send(_ context.Context, event []byte) error {
	var b []byte
	if w.torn {
		b = append(b, '\n')
	}
	b = append(append(b, event...), '\n')
	n, err := w.to.Write(b)
	if n > 0 {
		w.torn = b[n-1] != '\n'
	}
	return err
}

// file appends one event a line. It opens the file for each attempt, so that a tool may rename the file and the next
// event makes a new one.
type file struct {
	path  string
	lines writer
}

func newFile(path string) (*file, error) {
	info, err := files.Stat(path)
	if err == nil && !info.Mode().IsRegular() { // a pipe without a reader would hold up its writer
		return nil, fmt.Errorf("%s is not a regular file: name a file, a URL that starts with https://, or stdout", path)
	}
	if errors.Is(err, os.ErrNotExist) {
		_, err = files.Stat(filepath.Dir(path))
	}
	if err != nil {
		return nil, err
	}
	return &file{path: path}, nil
}

// Name implements events.Destination.
func (f *file) Name() string { return f.path }

// Send implements events.Destination.
func (f *file) Send(ctx context.Context, event []byte) (err error) {
	to, err := os.OpenFile(f.path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o640)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, to.Close()) }()
	f.lines.to = to
	return f.lines.Send(ctx, event)
}
