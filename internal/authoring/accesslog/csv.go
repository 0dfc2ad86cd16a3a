package accesslog

import (
	"bytes"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/ratelimitd/ratelimitd/internal/config/yamlform"
)

// csvLines reads CSV. A line is a record: so a quote that is never closed makes one bad line, and does not take in the rest of
// the log.
type csvLines struct {
	lines  *lines
	wanted []int // by column: its index in Mapping.fields; -1: not needed

	line    bytes.Reader // what records reads
	records *csv.Reader
	texts   []byte // of the fields of a record
}

func newCSVLines(l *lines, comma byte) *csvLines {
	c := &csvLines{lines: l}
	c.records = csv.NewReader(&c.line)
	c.records.Comma, c.records.FieldsPerRecord, c.records.ReuseRecord = rune(comma), -1, true
	return c
}

// begin reads the columns from the mapping, or from the first line.
func (c *csvLines) begin(m *Mapping) error {
	columns := m.columns
	if columns == nil {
		line, err := c.lines.next()
		for err == nil && len(line) == 0 {
			line, err = c.lines.next()
		}
		if errors.Is(err, io.EOF) {
			return nil // an empty log
		}
		if err != nil {
			return fmt.Errorf("read the header of CSV: %w", err)
		}
		record, err := c.record(bytes.TrimPrefix(line, []byte("\xef\xbb\xbf")))
		if err != nil {
			return &LineError{1, "the header of CSV cannot be read: " + err.Error()}
		}
		columns = slices.Clone(record)
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

func (c *csvLines) split(fields [][]byte) (int, error) {
	line, err := c.lines.next()
	if err != nil {
		return 0, c.lines.failure(err)
	}
	if len(line) == 0 {
		return 0, errBlank
	}
	record, err := c.record(line)
	if err != nil {
		return 0, &LineError{c.lines.number, err.Error()}
	}
	if len(record) != len(c.wanted) {
		return 0, &LineError{c.lines.number, fmt.Sprintf("%d columns, where there should be %d", len(record), len(c.wanted))}
	}
	c.texts = c.texts[:0]
	for i, text := range record {
		if at := c.wanted[i]; at >= 0 {
			start := len(c.texts)
			c.texts = append(c.texts, text...)
			fields[at] = c.texts[start:len(c.texts):len(c.texts)]
		}
	}
	return c.lines.number, nil
}

// record splits a line. The record is valid until the next call.
func (c *csvLines) record(line []byte) ([]string, error) {
	c.line.Reset(line)
	record, err := c.records.Read()
	if wrong, is := errors.AsType[*csv.ParseError](err); is {
		return nil, fmt.Errorf("column %d: a value with a quote stands in quotes on one line, and quotes in it are doubled", wrong.Column)
	}
	return record, nil // a line of a carriage return is none
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
