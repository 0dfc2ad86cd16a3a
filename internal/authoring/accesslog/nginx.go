package accesslog

import (
	"bytes"
	"errors"
	"fmt"
	"strings"

	"github.com/ratelimitd/ratelimitd/internal/config/yamlform"
)

// nginxCombined is what nginx logs unless its configuration says something else. apacheCombined is Apache's combined format in
// nginx's words; its common format ends after the bytes.
const (
	nginxCombined  = `$remote_addr - $remote_user [$time_local] "$request" $status $body_bytes_sent "$http_referer" "$http_user_agent"`
	apacheCombined = `$remote_addr $remote_ident $remote_user [$time_local] "$request" $status $body_bytes_sent "$http_referer" "$http_user_agent"`
)

// escaping is how a program writes the characters of a value that could be mistaken for the end of it.
type escaping uint8

const (
	escapeNone   escaping = iota
	escapeNginx           // \x22
	escapeApache          // \x22, \", \\, \n, \t and so on
)

// times are nginx's variables with the time of a request, the best first.
var times = []struct {
	name string
	kind layoutKind
}{{"msec", layoutUnix}, {"time_iso8601", layoutRFC3339}, {"time_local", layoutCLF}}

// requestParts are the parts of a request line ("GET /path HTTP/1.1") under the names of the variables that have them.
var requestParts = []string{"request_method", "request_uri", "server_protocol"}

// parseLogFormat reads a log_format of nginx: its text, or the whole directive as it stands in nginx.conf.
func parseLogFormat(s string) (*pattern, error) {
	text := &logFormat{of: s}
	escape := escapeNginx
	trimmed := strings.TrimSpace(s)
	if rest, is := strings.CutPrefix(trimmed, "log_format"); is && strings.TrimLeft(rest, " \t\r\n") != rest || strings.HasPrefix(trimmed, "'") {
		mode, err := text.directive()
		if err != nil {
			return nil, err
		}
		switch mode {
		case "json":
			return nil, errors.New("this log_format writes JSON: use `format: json`, and as fields the names in it")
		case "none":
			escape = escapeNone
		}
	} else {
		for i := range len(strings.TrimRight(s, "\r\n")) {
			text.add(s[i], i)
		}
	}
	if bytes.HasPrefix(bytes.TrimSpace(text.bytes), []byte("{")) {
		return nil, errors.New("this log_format writes JSON: use `format: json`, and as fields the names in it")
	}
	p, err := text.pattern()
	if err != nil {
		return nil, err
	}
	p.escape = escape
	return p, nil
}

// logFormat is the text of a log_format, and where each byte of it was written.
type logFormat struct {
	of    string
	bytes []byte
	from  []int
}

func (t *logFormat) add(b byte, from int) { t.bytes, t.from = append(t.bytes, b), append(t.from, from) }

// errorAt is an error with its place: the column, and the line if there are several.
func (t *logFormat) errorAt(offset int, format string, args ...any) error {
	before := t.of[:min(offset, len(t.of))]
	line := strings.Count(before, "\n") + 1
	column := len([]rune(before[strings.LastIndexByte(before, '\n')+1:])) + 1
	where := fmt.Sprintf("column %d: ", column)
	if strings.Contains(strings.TrimSpace(t.of), "\n") {
		where = fmt.Sprintf("line %d, column %d: ", line, column)
	}
	return errors.New(where + fmt.Sprintf(format, args...))
}

// directive reads a log_format directive, or the quoted texts of one, which nginx joins. It returns the directive's escape.
func (t *logFormat) directive() (escape string, err error) {
	const blanks = " \t\r\n"
	s, words := t.of, 0
	named := strings.HasPrefix(strings.TrimLeft(s, blanks), "log_format")
	for i := 0; ; {
		for i < len(s) && strings.IndexByte(blanks, s[i]) >= 0 {
			i++
		}
		if i >= len(s) || s[i] == ';' {
			if rest := strings.Trim(s[min(i+1, len(s)):], blanks); rest != "" {
				return "", t.errorAt(i+1, "%s stands after the end of the log_format: write one directive", yamlform.Quote(rest))
			}
			return escape, nil
		}
		quote, start := s[i], i
		if quote == '\'' || quote == '"' {
			for i++; ; i++ {
				if i >= len(s) {
					return "", t.errorAt(start, "this quote is never closed: write %c at the end of the text", quote)
				}
				if s[i] == quote {
					i++
					break
				}
				from, b := i, s[i]
				if b == '\\' && i+1 < len(s) {
					if at := strings.IndexByte(`"'\tnr`, s[i+1]); at >= 0 {
						i++
						b = "\"'\\\t\n\r"[at]
					}
				}
				t.add(b, from)
			}
			words++
			continue
		}
		for i < len(s) && strings.IndexByte(blanks+";", s[i]) < 0 {
			i++
		}
		word := s[start:i]
		mode, isEscape := strings.CutPrefix(word, "escape=")
		switch {
		case named && words < 2: // log_format, and its name
		case isEscape && len(t.bytes) == 0:
			if mode != "default" && mode != "json" && mode != "none" {
				return "", t.errorAt(start, "unknown escape %s: nginx has default, json and none", yamlform.Quote(mode))
			}
			escape = mode
		default:
			for j := range len(word) {
				t.add(word[j], start+j)
			}
		}
		words++
	}
}

// pattern finds the variables in the text.
func (t *logFormat) pattern() (*pattern, error) {
	p := &pattern{what: "log_format", optional: -1, request: -1}
	var text []byte
	for i := 0; i < len(t.bytes); i++ {
		if t.bytes[i] != '$' {
			text = append(text, t.bytes[i])
			continue
		}
		rest, open := bytes.CutPrefix(t.bytes[i+1:], []byte("{"))
		length := 0
		for length < len(rest) && isVariable(rest[length]) {
			length++
		}
		if length == 0 {
			return nil, t.errorAt(t.from[i], "no name of a variable stands after $: write one such as $remote_addr")
		}
		name, used := string(rest[:length]), length
		if open {
			if !bytes.HasPrefix(rest[length:], []byte("}")) {
				return nil, t.errorAt(t.from[i], "the variable ${%s has no end: write ${%s}", yamlform.Clip(name), yamlform.Clip(name))
			}
			used += 2
		}
		if len(p.ops) > 0 && len(text) == 0 {
			return nil, t.errorAt(t.from[i], "nothing stands between $%s and $%s, so nothing separates their values: put a blank between them, here and in nginx.conf", yamlform.Clip(p.ops[len(p.ops)-1].name), yamlform.Clip(name))
		}
		p.endText(&text)
		p.add(operator{name: name, field: -1})
		i += used
	}
	p.endText(&text)
	if len(p.ops) == 0 {
		return nil, errors.New("there is no variable such as $remote_addr in it")
	}
	p.settle()
	p.request = p.operator("request")
	if p.request >= 0 {
		for i, part := range requestParts {
			if p.operator(part) < 0 {
				p.add(operator{name: part, field: -1, part: i + 1})
			}
		}
	}
	return p, nil
}

func isVariable(b byte) bool {
	return b == '_' || 'a' <= b && b <= 'z' || 'A' <= b && b <= 'Z' || '0' <= b && b <= '9'
}

// variables returns the names of the variables that have a header of the request.
func variables(header string) []string {
	switch strings.ToLower(header) {
	case ":method":
		return []string{"request_method"}
	case ":path":
		return []string{"request_uri", "uri"}
	case ":authority", "host":
		return []string{"http_host", "host", "server_name"}
	case ":scheme":
		return []string{"scheme"}
	}
	return []string{"http_" + strings.ReplaceAll(strings.ToLower(header), "-", "_")}
}

// requestLine splits a request line into method, path and protocol. Parts that it does not have are empty: clients send anything.
func requestLine(line []byte) (parts [3][]byte) {
	method, rest, ok := bytes.Cut(line, []byte(" "))
	if !ok || len(method) == 0 {
		return parts
	}
	path := rest
	if at := bytes.LastIndexByte(rest, ' '); at >= 0 && bytes.HasPrefix(rest[at+1:], []byte("HTTP/")) {
		path, parts[2] = rest[:at], rest[at+1:]
	}
	parts[0], parts[1] = method, path
	return parts
}

// closingQuote returns the index of the quote that ends a value, or -1.
func (e escaping) closingQuote(s []byte) int {
	for from := 0; ; {
		at := bytes.IndexByte(s[from:], '"')
		if at < 0 {
			return -1
		}
		at += from
		backslashes := 0
		for e == escapeApache && backslashes < at && s[at-1-backslashes] == '\\' {
			backslashes++
		}
		if backslashes%2 == 0 {
			return at
		}
		from = at + 1
	}
}

// restore replaces what a program escaped by what it stands for. It writes into the value.
func (e escaping) restore(value []byte) []byte {
	at := -1
	if e != escapeNone {
		at = bytes.IndexByte(value, '\\')
	}
	if at < 0 {
		return value
	}
	out := value[:at]
	for i := at; i < len(value); i++ {
		b := value[i]
		if b != '\\' || i+1 == len(value) {
			out = append(out, b)
			continue
		}
		next := value[i+1]
		if next == 'x' && i+3 < len(value) {
			high, low := hexDigit(value[i+2]), hexDigit(value[i+3])
			if high >= 0 && low >= 0 {
				out = append(out, byte(high<<4|low))
				i += 3
				continue
			}
		}
		if known := bytes.IndexByte([]byte(`"\bnrtv`), next); known >= 0 && e == escapeApache {
			out = append(out, "\"\\\b\n\r\t\v"[known])
			i++
			continue
		}
		out = append(out, b)
	}
	return out
}

func hexDigit(b byte) int {
	switch {
	case '0' <= b && b <= '9':
		return int(b - '0')
	case 'a' <= b && b <= 'f':
		return int(b-'a') + 10
	case 'A' <= b && b <= 'F':
		return int(b-'A') + 10
	}
	return -1
}
