package accesslog

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/ratelimitd/ratelimitd/internal/config/yamlform"
)

// nginxCombined is nginx's default log format. apacheCombined is Apache's combined format, written in nginx's syntax;
// its common format ends after the bytes.
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

// parseLogFormat reads the text of a log_format of nginx, without the quotes around it in nginx.conf.
func parseLogFormat(s string) (*pattern, error) {
	s = strings.TrimRight(s, "\r\n")
	switch trimmed := strings.TrimSpace(s); {
	case strings.HasPrefix(trimmed, "{"):
		return nil, errors.New("this log_format writes JSON: use `format: json`, and as fields the names in it")
	case strings.HasPrefix(trimmed, "log_format"), strings.HasPrefix(trimmed, "'"):
		return nil, errors.New("write only the text of the log_format: what stands between the quotes, joined to one line")
	}
	p := &pattern{what: "log_format", optional: -1, request: -1, escape: escapeNginx}
	wrong := func(at int, format string, args ...any) error {
		return fmt.Errorf("column %d: %w", utf8.RuneCountInString(s[:at])+1, fmt.Errorf(format, args...))
	}
	var text []byte
	for i := 0; i < len(s); i++ {
		if s[i] != '$' {
			text = append(text, s[i])
			continue
		}
		rest, open := strings.CutPrefix(s[i+1:], "{")
		length := 0
		for length < len(rest) && isVariable(rest[length]) {
			length++
		}
		if length == 0 {
			return nil, wrong(i, "no name of a variable stands after $: write one such as $remote_addr")
		}
		name, used := rest[:length], length
		if open {
			if !strings.HasPrefix(rest[length:], "}") {
				return nil, wrong(i, "the variable ${%s has no end: write ${%s}", yamlform.Clip(name), yamlform.Clip(name))
			}
			used += 2
		}
		if len(p.ops) > 0 && len(text) == 0 {
			return nil, wrong(i,
				"nothing stands between $%s and $%s, so nothing separates their values: put a blank between them, here and "+
					"in nginx.conf",
				yamlform.Clip(p.ops[len(p.ops)-1].name), yamlform.Clip(name))
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

// requestLine splits a request line into method, path and protocol. Missing parts are empty: clients send anything.
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

// restore decodes escape sequences in place.
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
