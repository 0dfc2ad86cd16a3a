package accesslog

import (
	"bufio"
	"errors"
	"io"
)

// maxLine is the longest line, in bytes.
const maxLine = 1 << 20

var errTooLong = errors.New("longer than 1 MiB")

// lines reads a stream line by line, without copying the lines.
type lines struct {
	r      *bufio.Reader
	number int // number of the last line, from 1
}

// next returns a line without its line ending. The line is valid until the next call, and the customer may write to it.
// A line that is too long is skipped.
func (l *lines) next() ([]byte, error) {
	line, err := l.r.ReadSlice('\n')
	if errors.Is(err, bufio.ErrBufferFull) {
		for errors.Is(err, bufio.ErrBufferFull) {
			_, err = l.r.ReadSlice('\n')
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, err
		}
		l.number++
		return nil, errTooLong
	}
	if err != nil && (!errors.Is(err, io.EOF) || len(line) == 0) {
		return nil, err
	}
	l.number++
	if n := len(line); n > 0 && line[n-1] == '\n' {
		line = line[:n-1]
	}
	if n := len(line); n > 0 && line[n-1] == '\r' {
		line = line[:n-1]
	}
	return line, nil
}

// failure returns the error of a line that could not be read. It is a *LineError if the next line can be read.
func (l *lines) failure(err error) error {
	if errors.Is(err, errTooLong) {
		return &LineError{l.number, err.Error()}
	}
	return err
}
