package stdin

import (
	"fmt"
	"io"
	"os"
	"sync"

	"github.com/ratelimitd/ratelimitd/internal/platform/files"
)

// Name is the name of the standard input on a command line.
const Name = "-"

// Shown is the name of the standard input in messages.
const Shown = "<stdin>"

// maxBytes is the largest file or standard input: the same as for a rule file.
const maxBytes = 64 << 20

var content = sync.OnceValues(func() ([]byte, error) { return read(os.Stdin, "the standard input", maxBytes) })

func read(from io.Reader, name string, most int64) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(from, most+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("read %s: %w", name, err)
	case int64(len(data)) > most:
		return nil, fmt.Errorf("%s has more than %d bytes", name, most)
	}
	return data, nil
}

// ReadFile reads a file, or the standard input.
func ReadFile(name string) ([]byte, error) { return ReadFileOf(name, maxBytes) }

// ReadFileOf reads a file, or the standard input. If it has more than most bytes, that is an error.
func ReadFileOf(name string, most int64) ([]byte, error) {
	if name == Name {
		data, err := content()
		if err == nil && int64(len(data)) > most {
			return nil, fmt.Errorf("the standard input has more than %d bytes", most)
		}
		return data, err
	}
	if info, err := os.Stat(name); err == nil && !info.Mode().IsRegular() && !info.IsDir() {
		f, err := os.Open(name) // a pipe, such as <(command), whose writer may need long
		if err != nil {
			return nil, err //nolint:wrapcheck // it names the file
		}
		defer func() { _ = f.Close() }() // it was only read
		return read(f, name, most)
	}
	return files.Read(name, most)
}

// NameOf returns the name of a file in messages.
func NameOf(name string) string {
	if name == Name {
		return Shown
	}
	return name
}
