package accesslog

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/ratelimitd/ratelimitd/internal/yamlform"
)

// maxRecord is the maximum length in bytes of a record of several lines, so that a quote that is never closed does not
// consume the whole log.
const maxRecord = 64 << 10

// csvLines reads CSV as defined by RFC 4180. It accepts what encoding/csv accepts; a fuzz test compares the two. encoding/csv
// would read a whole log into memory if a quote is never closed, allocates for every line, and takes 1.7 to 2.5 times as
// long (BenchmarkBesideCSV).
type csvLines struct {
	lines  *lines
	comma  byte
	wanted []int // by column: its index in Mapping.fields; -1: not needed

	whole  []byte // the record that is being split
	joined []byte // a record of several lines, as it was read
	again  []byte // lines of a record without an end, to be read again
	number int    // of the line last read
}

// begin reads the columns from the mapping, or from the first line.
func (c *csvLines) begin(m *Mapping) error {
	columns := m.columns
	if columns == nil {
		line, err := c.line()
		for err == nil && len(line) == 0 {
			line, err = c.line()
		}
		if errors.Is(err, io.EOF) {
			return nil // an empty log
		}
		if err != nil {
			return fmt.Errorf("read the header of CSV: %w", err)
		}
		line = bytes.TrimPrefix(line, []byte("\xef\xbb\xbf"))
		done, msg := c.record(line, func(i int, name []byte) {
			columns = append(columns, string(name))
		})
		if msg != "" || !done {
			return &LineError{1, "the header of CSV cannot be read: " + msg}
		}
	}
	c.wanted = make([]int, len(columns))
	for i := range c.wanted {
		c.wanted[i] = -1
	}
	for i, f := range m.fields {
		at := slices.Index(columns, f.name)
		if at < 0 {
			msg := fmt.Sprintf("the log has no column %s: its columns are %s", yamlform.Quote(f.name), yamlform.List(columns, "and"))
			if near := yamlform.Closest(f.name, columns); near != "" {
				msg = fmt.Sprintf("the log has no column %s: did you mean `%s`?", yamlform.Quote(f.name), near)
			}
			return &yamlform.Error{File: f.at.File, Line: f.at.Line, Col: f.at.Col, Msg: msg}
		}
		c.wanted[at] = i
	}
	return nil
}

// line returns the next line, or one that is read again.
func (c *csvLines) line() ([]byte, error) {
	if len(c.again) > 0 {
		line, rest, _ := bytes.Cut(c.again, []byte("\n"))
		c.again = rest
		c.number++
		return line, nil
	}
	line, err := c.lines.next()
	c.number = c.lines.number
	return line, err
}

func (c *csvLines) split(fields [][]byte) (int, error) {
	line, err := c.line()
	if err != nil {
		return 0, c.lines.failure(err)
	}
	if len(line) == 0 {
		return 0, errBlank
	}
	first := c.number
	columns := 0
	keep := func(i int, value []byte) {
		if columns = i + 1; i < len(c.wanted) && c.wanted[i] >= 0 {
			fields[c.wanted[i]] = value
		}
	}
	if bytes.IndexByte(line, '"') < 0 {
		columns = c.unquoted(line, fields)
	} else {
		c.whole = append(c.whole[:0], line...) // splitting writes to it
		done, msg := c.record(c.whole, keep)
		if !done {
			done, msg = c.several(line, keep)
		}
		if msg == "" && !done {
			msg = "a quote is never closed"
		}
		if msg != "" {
			return 0, &LineError{first, msg}
		}
	}
	if columns != len(c.wanted) {
		return 0, &LineError{first, fmt.Sprintf("%d columns, where there should be %d", columns, len(c.wanted))}
	}
	return first, nil
}

// unquoted splits a line without quotes and returns how many columns it has.
func (c *csvLines) unquoted(line []byte, fields [][]byte) int {
	for i := 0; ; i++ {
		end := bytes.IndexByte(line, c.comma)
		value := line
		if end >= 0 {
			value = line[:end:end]
		}
		if i < len(c.wanted) && c.wanted[i] >= 0 {
			fields[c.wanted[i]] = value
		}
		if end < 0 {
			return i + 1
		}
		line = line[end+1:]
	}
}

// several continues a record whose first line ends within quotes. If the quotes are never closed, the lines after the first
// are read again.
func (c *csvLines) several(line []byte, keep func(int, []byte)) (done bool, msg string) {
	first := c.number
	c.joined = append(c.joined[:0], line...)
	for len(c.joined) < maxRecord {
		next, err := c.line()
		if err != nil {
			break // the next call returns the error again
		}
		c.joined = append(append(c.joined, '\n'), next...)
		if bytes.Count(next, []byte{'"'})%2 == 1 { // an even number of quotes never ends the record
			break
		}
	}
	c.whole = append(c.whole[:0], c.joined...)
	if done, msg = c.record(c.whole, keep); done && msg == "" {
		return true, ""
	}
	_, rest, _ := bytes.Cut(c.joined, []byte("\n"))
	if len(c.again) > 0 {
		rest = append(append(bytes.Clone(rest), '\n'), c.again...)
	}
	c.again = bytes.Clone(rest)
	c.number = first
	return false, msg
}

// record splits a record with quotes. It replaces doubled quotes with single ones, in place. done is false if the record ends
// within quotes; msg is the error.
func (c *csvLines) record(b []byte, keep func(i int, value []byte)) (done bool, msg string) {
	for i := 0; ; i++ {
		if len(b) == 0 || b[0] != '"' {
			end := bytes.IndexByte(b, c.comma)
			value := b
			if end >= 0 {
				value = b[:end:end]
			}
			if bytes.IndexByte(value, '"') >= 0 {
				return true, fmt.Sprintf("a quote within column %d: such a value stands in quotes, and quotes in it are doubled", i+1)
			}
			keep(i, value)
			if end < 0 {
				return true, ""
			}
			b = b[end+1:]
			continue
		}
		b = b[1:]
		length, read := 0, 0 // of the value so far, and of b
		for {
			q := bytes.IndexByte(b[read:], '"')
			if q < 0 {
				return false, ""
			}
			length += copy(b[length:], b[read:read+q])
			read += q + 1
			if read < len(b) && b[read] == '"' {
				b[length] = '"'
				length++
				read++
				continue
			}
			break
		}
		keep(i, b[:length:length])
		switch {
		case read == len(b):
			return true, ""
		case b[read] != c.comma:
			return true, fmt.Sprintf("after the quotes of column %d stands %s", i+1, yamlform.Quote(string(b[read:])))
		}
		b = b[read+1:]
	}
}

// parseDelimiter reads the delimiter of columns.
func parseDelimiter(s string) (byte, bool) {
	switch strings.ToLower(s) {
	case "tab", `\t`, "\t":
		return '\t', true
	}
	if len(s) != 1 || s[0] == '"' || s[0] < 0x20 || s[0] > 0x7e {
		return 0, false
	}
	return s[0], true
}
