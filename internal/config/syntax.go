package config

import (
	"bytes"
	"io"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"

	"gopkg.in/yaml.v3"
)

// syntaxError makes what the YAML library says of a text that is no YAML into an Error at the best line that can be
// found. The library names the line where the construct began that it could not finish, or none.
func syntaxError(name string, data []byte, err error) *Error {
	data = lineEnds.ReplaceAll(bytes.TrimPrefix(data, []byte("\ufeff")), []byte("\n"))
	text := strings.TrimPrefix(err.Error(), "yaml: ")
	line, col := 0, 1
	if rest, ok := strings.CutPrefix(text, "line "); ok {
		if number, msg, ok := strings.Cut(rest, ": "); ok {
			if n, err := strconv.Atoi(number); err == nil {
				line, text = n, msg
			}
		}
	}
	text, hint := explain(text)

	lines := bytes.Count(data, []byte("\n"))
	if !bytes.HasSuffix(data, []byte("\n")) {
		lines++
	}
	lines = max(lines, 1)
	switch {
	case strings.Contains(text, "UTF-8") || strings.Contains(text, "control characters"):
		if l, c, ok := oddCharacter(data); ok {
			line, col = l, c
		}
	case strings.HasPrefix(text, "unknown anchor"), strings.HasPrefix(text, "did not find expected"),
		strings.HasPrefix(text, "could not find expected ':'"), strings.HasPrefix(text, "found a tab character"):
		// For these the line above is where the surrounding block begins, or there is none.
		line = lastLineRead(data)
	case line > lines:
		line = 1 // an unfinished construct that begins on the first line: the library then names the end of the file
	}
	line = min(max(line, 1), lines)

	at := lineAt(data, line)
	if anchor, ok := strings.CutPrefix(text, "unknown anchor '"); ok {
		star := "*" + strings.TrimSuffix(anchor, "' referenced")
		upTo := data[:offsetOf(data, line+1)]
		if i := bytes.LastIndex(upTo, []byte(star)); i >= 0 {
			line = bytes.Count(upTo[:i], []byte("\n")) + 1
			col = utf8.RuneCount(upTo[bytes.LastIndexByte(upTo[:i], '\n')+1:i]) + 1
		}
	} else if indent := at[:len(at)-len(strings.TrimLeft(at, " \t"))]; strings.Contains(indent, "\t") {
		col = strings.IndexByte(indent, '\t') + 1
		hint = "a tab cannot indent: use spaces"
	}
	if hint != "" {
		text += ": " + hint
	}
	return &Error{name, line, col, "not YAML: " + text}
}

// lineEnds is where YAML counts a new line.
var lineEnds = regexp.MustCompile("\r\n|\r|\u0085|\u2028|\u2029")

// explain gives a hint at what is usually the matter.
func explain(text string) (plain, hint string) {
	switch {
	case strings.HasPrefix(text, "unknown anchor"):
		return text, "if the * is part of a value, put the value in quotes"
	case strings.HasPrefix(text, "did not find expected alphabetic or numeric"):
		return text, "a value that begins with * or & must stand in quotes"
	case strings.HasPrefix(text, "did not find expected '-'"), strings.HasPrefix(text, "did not find expected key"):
		return text, "keys of one map, and dashes of one list, must begin in the same column"
	case strings.HasPrefix(text, "could not find expected ':'"):
		return text, "write `key: value`, with a space after the colon"
	case strings.HasPrefix(text, "mapping values are not allowed"):
		return text, "check the indentation of this line and of the one above, or put a value that contains a colon in quotes"
	case strings.HasPrefix(text, "found character that cannot start any token"):
		return text, "put a value that begins with @, ` or % in quotes"
	case strings.HasPrefix(text, "found unexpected end of stream"):
		return text, "a quote is opened here and not closed"
	case strings.HasPrefix(text, "found unknown escape character"):
		return text, "in double quotes write \\\\ for a backslash, or use single quotes"
	case strings.HasPrefix(text, "did not find expected ',' or"):
		return text, "close the bracket, and put commas between entries"
	}
	return text, ""
}

// lastLineRead is the line that the library was reading when it gave up: it is fed line by line, and reads no further
// than it must.
func lastLineRead(data []byte) int {
	defer func() { _ = recover() }() // as in documents
	feed := &lineFeed{data: data}
	d := yaml.NewDecoder(feed)
	for {
		var n yaml.Node
		if err := d.Decode(&n); err != nil {
			return feed.lines
		}
	}
}

type lineFeed struct {
	data  []byte
	lines int  // begun
	mid   bool // within a line longer than a read
}

func (f *lineFeed) Read(p []byte) (int, error) {
	if len(f.data) == 0 {
		return 0, io.EOF
	}
	n := len(f.data)
	if i := bytes.IndexByte(f.data, '\n'); i >= 0 {
		n = i + 1
	}
	n = min(n, len(p))
	if !f.mid {
		f.lines++
	}
	f.mid = f.data[n-1] != '\n'
	copy(p, f.data[:n])
	f.data = f.data[n:]
	return n, nil
}

// oddCharacter finds the first byte that is no UTF-8, or the first character that YAML does not allow.
func oddCharacter(data []byte) (line, col int, found bool) {
	line, col = 1, 1
	for i := 0; i < len(data); {
		c, n := utf8.DecodeRune(data[i:])
		switch {
		case c == utf8.RuneError && n <= 1:
			return line, col, true
		case c < ' ' && c != '\n' && c != '\t', c >= 0x7f && c < 0xa0, c == 0xfffe, c == 0xffff:
			return line, col, true
		case c == '\n':
			line, col = line+1, 0
		}
		i += n
		col++
	}
	return 0, 0, false
}

// lineAt is a line of the file, counted from 1, without its end.
func lineAt(data []byte, line int) string {
	data = data[offsetOf(data, line):]
	if i := bytes.IndexByte(data, '\n'); i >= 0 {
		data = data[:i]
	}
	return string(data)
}

// offsetOf is where a line begins, the end of data if there is no such line.
func offsetOf(data []byte, line int) int {
	at := 0
	for ; line > 1; line-- {
		i := bytes.IndexByte(data[at:], '\n')
		if i < 0 {
			return len(data)
		}
		at += i + 1
	}
	return at
}
