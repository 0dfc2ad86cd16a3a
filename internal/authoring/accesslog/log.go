package accesslog

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"strconv"
	"unicode/utf8"

	"github.com/ratelimitd/ratelimitd/internal/config/yamlform"
)

// Record is one line of a log.
type Record struct {
	Line   int      // its number, from 1
	At     int64    // the time of the request, in microseconds since 1970
	Fields [][]byte // the fields that the mapping needs, empty if absent. Valid until the next line is read
	Hits   []uint64 // hits per descriptor of the mapping; nil means one hit for each
}

// LineError is an error in one line. The next line can be read.
type LineError struct {
	Line int // line number, from 1
	Msg  string
}

func (e *LineError) Error() string { return "line " + strconv.Itoa(e.Line) + ": " + e.Msg }

// splitter splits the next line into fields. It returns a *LineError for a line that it cannot parse, and a different
// error if nothing more can be read.
type splitter interface {
	split(fields [][]byte) (line int, err error)
}

// Reader reads one log.
type Reader struct {
	m      *Mapping
	source splitter
	times  layout
	rec    Record
	seen   []bool
}

// NewReader returns a reader of a log, which may be compressed with gzip. The error is about the log as a whole: broken
// gzip.
func (m *Mapping) NewReader(r io.Reader) (*Reader, error) {
	buffered := bufio.NewReaderSize(r, maxLine)
	if magic, _ := buffered.Peek(2); bytes.Equal(magic, []byte{0x1f, 0x8b}) {
		unpacked, err := gzip.NewReader(buffered)
		if err != nil {
			return nil, fmt.Errorf("unpack: %w", err)
		}
		buffered = bufio.NewReaderSize(unpacked, maxLine)
	}
	l := &lines{r: buffered}
	n := len(m.fields)
	reader := &Reader{m: m, times: m.layout, rec: Record{Fields: make([][]byte, n)}, seen: make([]bool, n)}
	if m.counts() {
		reader.rec.Hits = make([]uint64, len(m.descriptors))
	}
	switch m.format {
	case formatJSON:
		reader.source = &jsonLines{lines: l, paths: m.paths, fields: m.fields}
	default:
		reader.source = &textLines{lines: l, pattern: m.pattern}
	}
	return reader, nil
}

// Next returns the next line, or io.EOF after the last. The record is valid until the next call. After a *LineError the
// next line can be read; after any other error nothing more can be read.
func (r *Reader) Next() (*Record, error) {
	fields := r.rec.Fields
	for {
		clear(fields)
		line, err := r.source.split(fields)
		if errors.Is(err, errBlank) {
			continue
		}
		if err != nil {
			return nil, err
		}
		r.rec.Line = line
		if err := r.check(fields); err != nil {
			return nil, err
		}
		return &r.rec, nil
	}
}

// errBlank is the error for an empty line.
var errBlank = errors.New("blank")

// maxText is the maximum length in bytes of a domain, key or value that the service accepts by default.
const maxText = 64 << 10

func (r *Reader) check(fields [][]byte) error {
	for i, f := range fields {
		if len(f) == 1 && f[0] == '-' {
			fields[i] = nil
			continue
		}
		if len(f) == 0 {
			continue
		}
		r.seen[i] = true
		if i == r.m.time {
			continue
		}
		if len(f) > maxText {
			return r.errorf("%s has %d bytes: the service takes no value of more than %d", yamlform.Quote(r.m.fields[i].name),
				len(f), maxText)
		}
		if !utf8.Valid(f) {
			return r.errorf("%s is not UTF-8, and the service takes nothing else: %s", yamlform.Quote(r.m.fields[i].name),
				yamlform.Quote(string(f)))
		}
	}
	when := fields[r.m.time]
	if len(when) == 0 {
		return r.errorf("there is no time: %s is absent", yamlform.Quote(r.m.fields[r.m.time].name))
	}
	var err error
	if r.rec.At, err = r.times.parse(when); err != nil {
		return r.errorf("%v", err)
	}
	for i := range r.rec.Hits {
		h := r.m.descriptors[i].hits
		var ok bool
		if r.rec.Hits[i], ok = h.parse(fields); !ok {
			return r.errorf("hits must be a whole number up to 4294967295, %s is %s", yamlform.Quote(r.m.fields[h.field].name),
				yamlform.Quote(string(fields[h.field])))
		}
	}
	return nil
}

func (r *Reader) errorf(format string, args ...any) error {
	return &LineError{r.rec.Line, fmt.Sprintf(format, args...)}
}

// Fields returns how many fields the mapping needs from a line.
func (m *Mapping) Fields() int { return len(m.fields) }

// Missed finds the fields that no line of any log has.
type Missed struct{ seen []bool }

// Add records which fields a log had.
func (s *Missed) Add(r *Reader) {
	if s.seen == nil {
		s.seen = make([]bool, len(r.seen))
	}
	for i, seen := range r.seen {
		s.seen[i] = s.seen[i] || seen
	}
}

// Errors returns an error for every field that no line had, at the position where the mapping names it.
func (s *Missed) Errors(m *Mapping) []*yamlform.Error {
	var errs []*yamlform.Error
	for i, seen := range s.seen {
		if !seen {
			f := &m.fields[i]
			errs = append(errs, &yamlform.Error{File: f.at.File, Line: f.at.Line, Col: f.at.Col,
				Msg: "no line of the log has a field " + yamlform.Quote(f.name)})
		}
	}
	return errs
}
