package stdin

import (
	"fmt"
	"io"
	"os"
	"sync"
)

// Name is the name of the standard input on a command line.
const Name = "-"

// Shown is the name of the standard input in messages.
const Shown = "<stdin>"

// maxBytes is the most that is read from the standard input: the same as for a rule file.
const maxBytes = 64 << 20

var content = sync.OnceValues(func() ([]byte, error) { return read(os.Stdin, maxBytes) })

func read(from io.Reader, most int64) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(from, most+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("read the standard input: %w", err)
	case int64(len(data)) > most:
		return nil, fmt.Errorf("the standard input has more than %d bytes", most)
	}
	return data, nil
}

// ReadFile reads a file, or the standard input.
func ReadFile(name string) ([]byte, error) {
	if name == Name {
		return content()
	}
	return os.ReadFile(name)
}

// NameOf is the name of a file in messages.
func NameOf(name string) string {
	if name == Name {
		return Shown
	}
	return name
}
