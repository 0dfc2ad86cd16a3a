package override

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"iter"

	"github.com/ratelimitd/ratelimitd/internal/config/yamlform"
)

// maxLine bounds a line of a file, in bytes.
const maxLine = 1 << 20

// areLines reports whether a file has overrides in the form for programs, one on each line, instead of YAML. A YAML map
// in braces starts with the key overrides.
func areLines(data []byte) bool {
	for {
		data = bytes.TrimLeft(data, " \t\r\n")
		if !bytes.HasPrefix(data, []byte("#")) {
			break
		}
		_, data, _ = bytes.Cut(data, []byte("\n"))
	}
	inside, braces := bytes.CutPrefix(data, []byte("{"))
	return braces && !bytes.HasPrefix(bytes.TrimLeft(inside, " \t\r\n\"'"), []byte("overrides"))
}

// Lines reads overrides in the form for programs, one on each line. Empty lines and lines that start with # are
// skipped. It ends with the first error, which has a position; name is the name of the file. The file may be of any
// size.
func Lines(name string, from io.Reader) iter.Seq2[Placed, error] {
	return func(yield func(Placed, error) bool) {
		lines := bufio.NewScanner(from)
		lines.Buffer(make([]byte, 0, 64<<10), maxLine)
		at := yamlform.Position{File: name}
		for lines.Scan() {
			at.Line++
			text := lines.Bytes()
			begin := bytes.TrimSpace(text)
			if len(begin) == 0 || begin[0] == '#' {
				continue
			}
			if at.Col = 1; begin[0] != '{' {
				yield(Placed{}, at.Errorf(
					`no JSON object: a file of more than %d MiB has one override on each line, like {"domain": "api", ...}`,
					MaxFileSize>>20))
				return
			}
			o, col, err := readJSON(text)
			if at.Col = col; err != nil {
				yield(Placed{}, at.Errorf("%v", err))
				return
			}
			if !yield(Placed{*o, at}, nil) {
				return
			}
		}
		switch err := lines.Err(); {
		case errors.Is(err, bufio.ErrTooLong):
			at.Line, at.Col = at.Line+1, 1
			yield(Placed{}, at.Errorf("a line of more than %d KiB: write one override on each line", maxLine>>10))
		case err != nil:
			yield(Placed{}, fmt.Errorf("read overrides: %w", err))
		}
	}
}
