package yamlform

import (
	"bytes"
	"io"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"

	"gopkg.in/yaml.v3"
)

// The library returns errors as text. Each text that people meet has a row here: its prefix, the usual cause, and the
// place of the mistake.
var syntaxMessages = []syntaxMessage{
	{text: "unknown anchor", hint: "if the * is part of a value, put the value in quotes", where: lastLine},
	{text: "did not find expected alphabetic or numeric", hint: "a value that starts with * or & must stand in quotes",
		where: lastLine},
	{text: "did not find expected '-'", hint: "keys of one map, and dashes of one list, must start in the same column",
		where: lastLine},
	{text: "did not find expected key", hint: "keys of one map, and dashes of one list, must start in the same column",
		where: lastLine},
	{text: "did not find expected ',' or", hint: "close the bracket, and put commas between entries", where: lastLine},
	{text: "did not find expected", where: lastLine},
	{text: "could not find expected ':'", hint: "write `key: value`, with a space after the colon", where: lastLine},
	{text: "found a tab character", where: lastLine},
	{text: "mapping values are not allowed",
		hint: "check the indentation of this line and of the one above, or put a value that contains a colon in quotes"},
	{text: "found character that cannot start any token", hint: "put a value that starts with @, ` or % in quotes"},
	{text: "found unexpected end of stream", hint: "a quote is opened here and not closed"},
	{text: "found unknown escape character", hint: "in double quotes write \\\\ for a backslash, or use single quotes"},
	{text: "control characters are not allowed", where: oddCharacter},
	{text: "invalid leading UTF-8 octet", where: oddCharacter},
	{text: "invalid trailing UTF-8 octet", where: oddCharacter},
	{text: "incomplete UTF-8 octet sequence", where: oddCharacter},
	{text: "invalid length of a UTF-8 sequence", where: oddCharacter},
	{text: "invalid Unicode character", where: oddCharacter},
}

type syntaxMessage struct {
	text string // prefix of the library's text
	hint string
	// where finds the mistake. If it is nil, the library names the line: the start of the construct that it could not
	// finish.
	where func(data []byte) (line, col int)
}

// syntaxMessageOf returns the row of an error text of the library, or the zero value.
func syntaxMessageOf(text string) syntaxMessage {
	for _, m := range syntaxMessages {
		if strings.HasPrefix(text, m.text) {
			return m
		}
	}
	return syntaxMessage{}
}

// syntaxError makes the library's error about a text that is not YAML an Error at the best position that can be found.
func syntaxError(name string, data []byte, err error) *Error {
	data = lineEnds.ReplaceAll(bytes.TrimPrefix(data, []byte("\ufeff")), []byte("\n"))
	line, text := splitMessage(err.Error())
	known := syntaxMessageOf(text)
	lines := bytes.Count(data, []byte("\n"))
	if !bytes.HasSuffix(data, []byte("\n")) {
		lines++
	}
	lines = max(lines, 1)
	col := 1
	switch {
	case known.where != nil:
		line, col = known.where(data)
	case line > lines:
		line = 1 // an unfinished construct that starts on the first line: the library then names the end of the file
	}
	line = min(max(line, 1), lines)

	hint := known.hint
	if strings.HasPrefix(text, "did not find expected ',' or") {
		if l, c, open := unclosed(data); open {
			line, col, hint = l, c, "the bracket that opens here is not closed"
		}
	}
	at := lineAt(data, line)
	if anchor, ok := strings.CutPrefix(text, "unknown anchor '"); ok {
		line, col = lastAlias(data, line, strings.TrimSuffix(anchor, "' referenced"))
	} else if indent := at[:len(at)-len(strings.TrimLeft(at, " \t"))]; strings.Contains(indent, "\t") {
		col = strings.IndexByte(indent, '\t') + 1
		hint = "a tab cannot indent: use spaces"
	}
	if hint != "" {
		text += ": " + hint
	}
	return &Error{File: name, Line: line, Col: col, Msg: "not YAML: " + text}
}

// splitMessage splits a text of the library, "yaml: line 3: mapping values", into the line and the rest. The line is 0
// if the text has none.
func splitMessage(text string) (line int, what string) {
	text = strings.TrimPrefix(text, "yaml: ")
	if rest, ok := strings.CutPrefix(text, "line "); ok {
		if number, msg, ok := strings.Cut(rest, ": "); ok {
			if n, err := strconv.Atoi(number); err == nil {
				return n, msg
			}
		}
	}
	return 0, text
}

// lastAlias finds the last use of an alias up to the end of a line. It returns the start of the line if the alias is
// not used.
func lastAlias(data []byte, line int, anchor string) (aliasLine, col int) {
	upTo := data[:offsetOf(data, line+1)]
	i := bytes.LastIndex(upTo, []byte("*"+anchor))
	if i < 0 {
		return line, 1
	}
	return bytes.Count(upTo[:i], []byte("\n")) + 1, utf8.RuneCount(upTo[bytes.LastIndexByte(upTo[:i], '\n')+1:i]) + 1
}

// unclosed is where the last bracket opens that is not closed before the end, or before a bracket of the other kind
// closes. Brackets in quotes and comments do not count.
func unclosed(data []byte) (line, col int, open bool) {
	type place struct {
		line, col int
		closing   rune
	}
	var within []place
	quote, before := rune(0), ' '
	line, col = 1, 0
	comment := false
	for _, r := range string(data) {
		col++
		switch {
		case r == '\n':
			line, col, comment = line+1, 0, false
		case comment:
		case quote != 0:
			if r == quote && before != '\\' {
				quote = 0
			}
		case (r == '"' || r == '\'') && strings.ContainsRune(" \n[{,:", before):
			quote = r
		case r == '#' && (before == ' ' || before == '\n'):
			comment = true
		case r == '[' && strings.ContainsRune(" \n[{,", before):
			within = append(within, place{line, col, ']'})
		case r == '{' && strings.ContainsRune(" \n[{,", before):
			within = append(within, place{line, col, '}'})
		case (r == ']' || r == '}') && len(within) > 0:
			if within[len(within)-1].closing != r {
				return within[len(within)-1].line, within[len(within)-1].col, true
			}
			within = within[:len(within)-1]
		}
		before = r
	}
	if len(within) == 0 {
		return 0, 0, false
	}
	last := within[len(within)-1]
	return last.line, last.col, true
}

// lineEnds is where YAML counts a new line.
var lineEnds = regexp.MustCompile("\r\n|\r|\u0085|\u2028|\u2029")

// lastLine is the line that the library was reading when it gave up: it is fed line by line, and reads no further than
// it must. For some mistakes it names the start of the surrounding block instead, or no line.
func lastLine(data []byte) (line, col int) {
	line, col = 1, 1
	defer func() { _ = recover() }() // the library may panic here too: see documents
	feed := &lineFeed{data: data}
	d := yaml.NewDecoder(feed)
	for {
		var n yaml.Node
		if err := d.Decode(&n); err != nil {
			return feed.lines, 1
		}
	}
}

type lineFeed struct {
	data  []byte
	lines int  // number of lines started
	mid   bool // whether a line longer than a read is being read
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

// oddCharacter finds the first byte that is not UTF-8, or the first character that YAML does not allow.
func oddCharacter(data []byte) (line, col int) {
	line, col = 1, 1
	for i := 0; i < len(data); {
		c, n := utf8.DecodeRune(data[i:])
		switch {
		case c == utf8.RuneError && n <= 1:
			return line, col
		case c < ' ' && c != '\n' && c != '\t', c >= 0x7f && c < 0xa0, c == 0xfffe, c == 0xffff:
			return line, col
		case c == '\n':
			line, col = line+1, 0
		}
		i += n
		col++
	}
	return 1, 1
}

// lineAt is a line of the file, counted from 1, without its end.
func lineAt(data []byte, line int) string {
	data = data[offsetOf(data, line):]
	if i := bytes.IndexByte(data, '\n'); i >= 0 {
		data = data[:i]
	}
	return string(data)
}

// offsetOf returns the offset of the start of a line, or the end of data if there is no such line.
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
