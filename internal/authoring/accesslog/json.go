package accesslog

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math/bits"
	"strings"
	"unicode/utf8"

	"github.com/ratelimitd/ratelimitd/internal/config/yamlform"
)

// jsonLines reads one object per line.
//
// The parser is written by hand, because a simulation reads hundreds of millions of objects, and reading a line is most of
// the work. jsontext, the tokenizer of the future encoding/json/v2, takes almost four times as long for a line of Envoy's log
// (BenchmarkBesideJSON). The parser accepts exactly what encoding/json accepts; a fuzz test compares the two.
type jsonLines struct {
	lines  *lines
	paths  *path
	fields []field
}

// path is a name in an object, with the names that are needed below it.
type path struct {
	name  string
	field int // index in Mapping.fields; -1: only names below it are needed
	below []*path
}

// newPaths returns the tree of names like request.headers.x-user. In a name, \. is a dot.
func newPaths(names []string) *path {
	top := &path{field: -1}
	for i, name := range names {
		p := top
		for _, n := range splitPath(name) {
			p = p.child(n)
		}
		p.field = i
	}
	return top
}

func splitPath(s string) []string {
	var names []string
	var name strings.Builder
	for i := 0; i < len(s); i++ {
		switch {
		case s[i] == '\\' && i+1 < len(s) && (s[i+1] == '.' || s[i+1] == '\\'):
			i++
			name.WriteByte(s[i])
		case s[i] == '.':
			names = append(names, name.String())
			name.Reset()
		default:
			name.WriteByte(s[i])
		}
	}
	return append(names, name.String())
}

func (p *path) child(name string) *path {
	for _, c := range p.below {
		if c.name == name {
			return c
		}
	}
	c := &path{name: name, field: -1}
	p.below = append(p.below, c)
	return c
}

func (p *path) find(name []byte) *path {
	for _, c := range p.below {
		if c.name == string(name) {
			return c
		}
	}
	return nil
}

func (j *jsonLines) split(fields [][]byte) (int, error) {
	line, err := j.lines.next()
	if err != nil {
		return 0, j.lines.failure(err)
	}
	if blanks(line, 0) == len(line) {
		return 0, errBlank
	}
	s := scanner{b: line, fields: fields}
	switch {
	case s.line(j.paths):
		return j.lines.number, nil
	case s.wrong != nil:
		return 0, &LineError{j.lines.number, fmt.Sprintf("%s is %s, which is no single value", yamlform.Quote(j.fields[s.wrong.field].name), s.kind)}
	case s.deep:
		return 0, &LineError{j.lines.number, fmt.Sprintf("objects and lists stand more than %d deep in each other", maxDepth)}
	default:
		return 0, &LineError{j.lines.number, fmt.Sprintf("not a JSON object: column %d is not as it must be", min(s.at, len(line))+1)}
	}
}

const maxDepth = 100

// scanner parses one line. Its methods parse the text at index i and return the index after it, or -1 if it is not JSON.
type scanner struct {
	b      []byte
	fields [][]byte
	depth  int

	at    int // approximate index of the error
	deep  bool
	wrong *path // a field that is an object or a list
	kind  string
}

func (s *scanner) fail(at int) int {
	s.at = at
	return -1
}

// line parses an object with nothing after it.
func (s *scanner) line(top *path) bool {
	i := blanks(s.b, 0)
	if s.b[i] != '{' {
		s.fail(i)
		return false
	}
	if i = s.object(i, top); i < 0 {
		return false
	}
	if i = blanks(s.b, i); i < len(s.b) {
		s.fail(i)
		return false
	}
	return true
}

// blanks skips white space.
func blanks(b []byte, i int) int {
	for i < len(b) && (b[i] == ' ' || b[i] == '\t' || b[i] == '\n' || b[i] == '\r') {
		i++
	}
	return i
}

// next skips white space. At least one more byte must follow.
func (s *scanner) next(i int) int {
	if i < len(s.b) && s.b[i] > ' ' { // the usual case
		return i
	}
	if i = blanks(s.b, i); i < len(s.b) {
		return i
	}
	return s.fail(i)
}

// object parses an object. p contains the names that are needed; nil: none.
func (s *scanner) object(i int, p *path) int {
	b := s.b
	if s.depth++; s.depth > maxDepth {
		s.deep = true
		return -1
	}
	if i = s.next(i + 1); i < 0 {
		return -1
	}
	if b[i] == '}' {
		s.depth--
		return i + 1
	}
	for {
		end, escaped := s.text(i)
		if end < 0 {
			return -1
		}
		var below *path
		if p != nil {
			below = p.find(unescape(b[i:end], escaped))
		}
		if i = s.next(end); i < 0 {
			return -1
		}
		if b[i] != ':' {
			return s.fail(i)
		}
		if i = s.next(i + 1); i < 0 {
			return -1
		}
		if i = s.value(i, below); i < 0 {
			return -1
		}
		if i = s.next(i); i < 0 {
			return -1
		}
		switch b[i] {
		case ',':
			if i = s.next(i + 1); i < 0 {
				return -1
			}
		case '}':
			s.depth--
			return i + 1
		default:
			return s.fail(i)
		}
	}
}

func (s *scanner) array(i int) int {
	if s.depth++; s.depth > maxDepth {
		s.deep = true
		return -1
	}
	if i = s.next(i + 1); i < 0 {
		return -1
	}
	if s.b[i] == ']' {
		s.depth--
		return i + 1
	}
	for {
		if i = s.value(i, nil); i < 0 {
			return -1
		}
		if i = s.next(i); i < 0 {
			return -1
		}
		switch s.b[i] {
		case ',':
			if i = s.next(i + 1); i < 0 {
				return -1
			}
		case ']':
			s.depth--
			return i + 1
		default:
			return s.fail(i)
		}
	}
}

// value parses any value, and keeps it if p needs it.
func (s *scanner) value(i int, p *path) int {
	wanted := p != nil && p.field >= 0
	var end int
	switch c := s.b[i]; c {
	case '"':
		end, escaped := s.text(i)
		if wanted && end > 0 {
			s.fields[p.field] = unescape(s.b[i:end], escaped)
		}
		return end
	case '{', '[':
		switch {
		case wanted && c == '{':
			s.wrong, s.kind = p, "an object"
			return -1
		case wanted:
			s.wrong, s.kind = p, "a list"
			return -1
		case c == '{':
			return s.object(i, p)
		default:
			return s.array(i)
		}
	case 't':
		end = s.word(i, "true")
	case 'f':
		end = s.word(i, "false")
	case 'n':
		end = s.word(i, "null")
		if wanted && end > 0 {
			s.fields[p.field] = nil
		}
		return end
	default:
		end = s.number(i)
	}
	if wanted && end > 0 {
		s.fields[p.field] = s.b[i:end:end]
	}
	return end
}

func (s *scanner) word(i int, w string) int {
	if len(s.b)-i < len(w) || string(s.b[i:i+len(w)]) != w {
		return s.fail(i)
	}
	return i + len(w)
}

// digits skips digits.
func digits(b []byte, i int) int {
	for i < len(b) && b[i]-'0' <= 9 {
		i++
	}
	return i
}

func (s *scanner) number(i int) int {
	b := s.b
	if b[i] == '-' {
		i++
	}
	end := digits(b, i)
	if end == i {
		return s.fail(i)
	}
	if b[i] == '0' {
		end = i + 1
	}
	i = end
	if i < len(b) && b[i] == '.' {
		if end = digits(b, i+1); end == i+1 {
			return s.fail(i)
		}
		i = end
	}
	if i < len(b) && b[i]|0x20 == 'e' {
		i++
		if i < len(b) && (b[i] == '+' || b[i] == '-') {
			i++
		}
		if end = digits(b, i); end == i {
			return s.fail(i)
		}
	}
	return end
}

// text parses a string and reports whether it has escapes.
//
// It searches eight bytes at a time for a quote, a backslash or a control character. In a word, (x - 0x01..) &^ x sets the
// top bit of every zero byte. It may also set top bits above a zero byte, so only the lowest one is reliable.
func (s *scanner) text(i int) (end int, escaped bool) {
	const ones, tops = 0x0101010101010101, 0x8080808080808080
	b := s.b
	if b[i] != '"' {
		return s.fail(i), false
	}
	for i++; i < len(b); {
		if i+8 <= len(b) {
			w := binary.LittleEndian.Uint64(b[i:])
			quotes, slashes := w^ones*'"', w^ones*'\\'
			found := ((quotes-ones)&^quotes | (slashes-ones)&^slashes | (w-ones*0x20)&^w) & tops
			if found == 0 {
				i += 8
				continue
			}
			i += bits.TrailingZeros64(found) / 8
		}
		switch c := b[i]; {
		case c == '"':
			return i + 1, escaped
		case c == '\\':
			escaped = true
			length := escape(b[i:])
			if length == 0 {
				return s.fail(i), false
			}
			i += length
		case c < 0x20:
			return s.fail(i), false
		default: // fewer than eight bytes are left
			i++
		}
	}
	return s.fail(i), false
}

// escape returns the length of the escape at the start of b, or 0 if there is none.
func escape(b []byte) int {
	if len(b) < 2 {
		return 0
	}
	switch b[1] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return 2
	case 'u':
		if len(b) < 6 {
			return 0
		}
		for _, c := range b[2:6] {
			if c-'0' > 9 && (c|0x20)-'a' > 5 {
				return 0
			}
		}
		return 6
	}
	return 0
}

// unescape resolves the escapes of a string. It leaves a string that has escapes and is not UTF-8 unchanged: the reader
// refuses it.
func unescape(quoted []byte, escaped bool) []byte {
	inner := quoted[1 : len(quoted)-1 : len(quoted)-1]
	if !escaped || !utf8.Valid(inner) {
		return inner
	}
	var text string
	if err := json.Unmarshal(quoted, &text); err != nil {
		return inner // impossible: it has been parsed
	}
	return []byte(text)
}
