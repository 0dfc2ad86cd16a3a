package accesslog

import (
	"bytes"
	"fmt"
	"strings"

	"github.com/ratelimitd/ratelimitd/internal/yamlform"
)

// envoyDefault is the format of Envoy's access log if its configuration does not set one.
const envoyDefault = `[%START_TIME%] "%REQ(:METHOD)% %REQ(X-ENVOY-ORIGINAL-PATH?:PATH)% %PROTOCOL%" %RESPONSE_CODE% ` +
	`%RESPONSE_FLAGS% %BYTES_RECEIVED% %BYTES_SENT% %DURATION% %RESP(X-ENVOY-UPSTREAM-SERVICE-TIME)% ` +
	`"%REQ(X-FORWARDED-FOR)%" "%REQ(USER-AGENT)%" "%REQ(X-REQUEST-ID)%" "%REQ(:AUTHORITY)%" "%UPSTREAM_HOST%"`

// pattern is a format string of Envoy, text with %OPERATORS% in it, or one of nginx, with $variables.
type pattern struct {
	what    string // what messages call it
	lead    []byte // before the first operator
	ops     []operator
	written int // how many of ops the format has; the others are parts of the request line

	escape   escaping
	optional int // a line may end where this operator ends; -1: no such operator
	request  int // the operator of the request line; -1: no parts of it are operators
}

type operator struct {
	name   string // as written, without percent signs and length
	field  int    // in Mapping.fields; -1: not needed
	after  []byte // the text up to the next operator; empty only for the last one
	quoted bool   // it is between quotes
	part   int    // of the request line: 1 is the method; 0: no part of it
}

// parsePattern reads a format string.
func parsePattern(s string) (*pattern, error) {
	p := &pattern{what: "pattern", optional: -1, request: -1}
	var text []byte
	end := func() {
		if len(p.ops) == 0 {
			p.lead = text
		} else {
			p.ops[len(p.ops)-1].after = text
		}
		text = nil
	}
	s = strings.TrimRight(s, "\r\n")
	for i := 0; i < len(s); i++ {
		if s[i] != '%' {
			text = append(text, s[i])
			continue
		}
		if strings.HasPrefix(s[i:], "%%") {
			text = append(text, '%')
			i++
			continue
		}
		name, length := operatorAt(s[i:])
		if length == 0 {
			return nil, fmt.Errorf("the operator that begins with %s has no end: a percent sign itself is written %%%%", yamlform.Quote(s[i:]))
		}
		if len(p.ops) > 0 && len(text) == 0 {
			return nil, fmt.Errorf("nothing stands between %%%s%% and %%%s%%: nothing would separate their values", p.ops[len(p.ops)-1].name, name)
		}
		end()
		p.ops = append(p.ops, operator{name: name, field: -1})
		i += length - 1
	}
	end()
	if len(p.ops) == 0 {
		return nil, fmt.Errorf("there is no %%OPERATOR%% in it")
	}
	p.settle()
	return p, nil
}

// settle computes what does not depend on a line.
func (p *pattern) settle() {
	p.written = len(p.ops)
	before := p.lead
	for i := range p.ops {
		op := &p.ops[i]
		op.quoted = bytes.HasSuffix(before, []byte(`"`)) && bytes.HasPrefix(op.after, []byte(`"`))
		before = op.after
	}
}

// nginx reports whether it is a format of nginx.
func (p *pattern) nginx() bool { return p.what != "pattern" }

// operatorAt reads %NAME%, %NAME(arguments)% or either with :length before the last sign. Arguments may hold percent
// signs. length is 0 if it has no end.
func operatorAt(s string) (name string, length int) {
	end := strings.IndexByte(s[1:], '%') + 1
	if open := strings.IndexByte(s, '('); open > 0 && open < end {
		for from := open; ; {
			closing := strings.IndexByte(s[from:], ')')
			if closing < 0 {
				return "", 0
			}
			from += closing + 1
			rest := strings.TrimLeft(strings.TrimPrefix(s[from:], ":"), "0123456789")
			if strings.HasPrefix(rest, "%") {
				return s[1:from], len(s) - len(rest) + 1
			}
		}
	}
	if end <= 1 {
		return "", 0
	}
	name = s[1:end]
	if colon := strings.LastIndexByte(name, ':'); colon > 0 && strings.Trim(name[colon+1:], "0123456789") == "" {
		name = name[:colon]
	}
	return name, end + 1
}

// operator returns the index of the operator that a mapping names: as written, or without arguments if that is unique. It
// returns -1 if there is none, -2 if there are several.
func (p *pattern) operator(name string) int {
	found := -1
	if p.nginx() {
		name = strings.TrimPrefix(name, "$")
	}
	for i := range p.ops {
		if strings.EqualFold(p.ops[i].name, name) {
			return i
		}
		if bare, _, has := strings.Cut(p.ops[i].name, "("); has && strings.EqualFold(bare, name) {
			if found >= 0 {
				found = -2
			} else if found == -1 {
				found = i
			}
		}
	}
	return found
}

// header returns the index of the operator that writes a header of the request, or -1 if there is none.
func (p *pattern) header(name string) int {
	if p.nginx() {
		for _, variable := range variables(name) {
			if i := p.operator(variable); i >= 0 {
				return i
			}
		}
		return -1
	}
	for i := range p.ops {
		bare, args, has := strings.Cut(strings.TrimSuffix(p.ops[i].name, ")"), "(")
		if !has || bare != "REQ" && bare != "REQUEST_HEADER" {
			continue
		}
		for _, h := range strings.Split(args, "?") {
			if strings.EqualFold(h, name) {
				return i
			}
		}
	}
	return -1
}

func (p *pattern) names() []string {
	names := make([]string, len(p.ops))
	for i := range p.ops {
		names[i] = p.ops[i].name
	}
	return names
}

// textLines reads lines that have the form of a pattern.
type textLines struct {
	lines   *lines
	pattern *pattern
}

func (t *textLines) split(fields [][]byte) (int, error) {
	line, err := t.lines.next()
	if err != nil {
		return 0, t.lines.failure(err)
	}
	if len(line) == 0 {
		return 0, errBlank
	}
	if msg := t.pattern.split(line, fields); msg != "" {
		return 0, &LineError{t.lines.number, msg}
	}
	return t.lines.number, nil
}

// split splits a line into fields. It returns an error message, or "".
//
// Envoy does not escape what clients send. A quote within quotes may be an attempt to forge the fields that follow, so such
// a line is an error.
func (p *pattern) split(line []byte, fields [][]byte) string {
	if !bytes.HasPrefix(line, p.lead) {
		return fmt.Sprintf("it does not begin with %q, as the %s says", p.lead, p.what)
	}
	rest := line[len(p.lead):]
	last := p.written - 1
	var request []byte
	for i := range p.ops[:p.written] {
		op := &p.ops[i]
		end, after := -1, op.after
		switch {
		case len(op.after) == 0:
			end = len(rest)
		case op.quoted:
			if q := p.escape.closingQuote(rest); q >= 0 {
				if !bytes.HasPrefix(rest[q:], op.after) {
					return p.at(line, rest[q:]) + fmt.Sprintf("after %s stands %s, not %q: a quote within a value makes a line of text ambiguous", op.name, yamlform.Quote(string(rest[q:])), op.after)
				}
				end = q
			}
		case i == last:
			if bytes.HasSuffix(rest, op.after) {
				end = len(rest) - len(op.after)
			}
		default:
			end = index(rest, op.after)
		}
		if end < 0 && i == p.optional {
			end, after = len(rest), nil
		}
		if end < 0 {
			return p.at(line, rest) + fmt.Sprintf("there is no %q after %s, as the %s says", op.after, op.name, p.what)
		}
		if op.field >= 0 || i == p.request {
			value := p.escape.restore(rest[:end:end])
			if i == p.request {
				request = value
			}
			if op.field >= 0 {
				fields[op.field] = value
			}
		}
		rest = rest[end+len(after):]
		if after == nil {
			break
		}
	}
	if len(rest) > 0 {
		return p.at(line, rest) + fmt.Sprintf("it goes on after the end of the %s: %s", p.what, yamlform.Quote(string(rest)))
	}
	if p.request >= 0 {
		parts := requestLine(request)
		for i := p.written; i < len(p.ops); i++ {
			if op := &p.ops[i]; op.field >= 0 {
				fields[op.field] = parts[op.part-1]
			}
		}
	}
	return ""
}

// at writes the column of a line where its rest begins, for formats of nginx.
func (p *pattern) at(line, rest []byte) string {
	if !p.nginx() {
		return ""
	}
	return fmt.Sprintf("column %d: ", len(line)-len(rest)+1)
}

// index is like bytes.Index, but faster for short texts that begin with a rare byte.
func index(s, text []byte) int {
	for at := 0; ; at++ {
		i := bytes.IndexByte(s[at:], text[0])
		if i < 0 {
			return -1
		}
		at += i
		if bytes.HasPrefix(s[at:], text) {
			return at
		}
	}
}
