package accesslog

import (
	"bytes"
	"fmt"
	"strings"

	"github.com/ratelimitd/ratelimitd/internal/config/yamlform"
)

// envoyDefault is the format of Envoy's access log if its configuration does not set one.
const envoyDefault = `[%START_TIME%] "%REQ(:METHOD)% %REQ(X-ENVOY-ORIGINAL-PATH?:PATH)% %PROTOCOL%" %RESPONSE_CODE% ` +
	`%RESPONSE_FLAGS% %BYTES_RECEIVED% %BYTES_SENT% %DURATION% %RESP(X-ENVOY-UPSTREAM-SERVICE-TIME)% ` +
	`"%REQ(X-FORWARDED-FOR)%" "%REQ(USER-AGENT)%" "%REQ(X-REQUEST-ID)%" "%REQ(:AUTHORITY)%" "%UPSTREAM_HOST%"`

// pattern is a format string of Envoy, text with %OPERATORS% in it, or one of nginx, with $variables.
type pattern struct {
	what    string // name in messages
	lead    []byte // before the first operator
	ops     []operator
	written int // how many of ops the format has; the others are parts of the request line

	// The index in ops by lower-case name: as written, without arguments, and by the header of the request.
	named, bare, headers map[string]int

	escape   escaping
	optional int // a line may end where this operator ends; -1: no such operator
	request  int // the operator of the request line; -1: no parts of it are operators
}

type operator struct {
	name   string // name as written, without percent signs and length
	field  int    // index in Mapping.fields; -1 if not needed
	after  []byte // the text up to the next operator; empty only for the last one
	quoted bool   // whether the operator is between quotes
	part   int    // part of the request line, 1 being the method; 0 for other operators
}

// parsePattern reads a format string.
func parsePattern(s string) (*pattern, error) {
	p := &pattern{what: "pattern", optional: -1, request: -1}
	var text []byte
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
			return nil, fmt.Errorf("the operator that starts with %s has no end: a percent sign itself is written %%%%",
				yamlform.Quote(s[i:]))
		}
		if len(p.ops) > 0 && len(text) == 0 {
			return nil, fmt.Errorf("nothing stands between %%%s%% and %%%s%%: nothing would separate their values",
				yamlform.Clip(p.ops[len(p.ops)-1].name), yamlform.Clip(name))
		}
		p.endText(&text)
		p.add(operator{name: name, field: -1})
		i += length - 1
	}
	p.endText(&text)
	if len(p.ops) == 0 {
		return nil, fmt.Errorf("there is no %%OPERATOR%% in it")
	}
	p.settle()
	return p, nil
}

// endText keeps the text before the next operator, or at the end.
func (p *pattern) endText(text *[]byte) {
	if len(p.ops) == 0 {
		p.lead = *text
	} else {
		p.ops[len(p.ops)-1].after = *text
	}
	*text = nil
}

// settle precomputes everything that does not depend on a line.
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
	if open := strings.IndexByte(s[:end], '('); open > 0 {
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

// add adds an operator, under the names that a mapping may give it. Where several have one name, the first has it.
func (p *pattern) add(op operator) {
	i := len(p.ops)
	p.ops = append(p.ops, op)
	if p.named == nil {
		p.named, p.bare, p.headers = make(map[string]int), make(map[string]int), make(map[string]int)
	}
	first := func(of map[string]int, name string) {
		if _, known := of[name]; !known {
			of[name] = i
		}
	}
	name := strings.ToLower(op.name)
	first(p.named, name)
	bare, args, has := strings.Cut(name, "(")
	if !has {
		return
	}
	if _, known := p.bare[bare]; known {
		p.bare[bare] = severalOperators
	} else {
		p.bare[bare] = i
	}
	if strings.HasPrefix(op.name, "REQ(") || strings.HasPrefix(op.name, "REQUEST_HEADER(") {
		for h := range strings.SplitSeq(strings.TrimSuffix(args, ")"), "?") {
			first(p.headers, h)
		}
	}
}

const (
	noOperator       = -1
	severalOperators = -2
)

// operator returns the index of the operator that a mapping names: as written, or without arguments if that is unique.
// Else it returns noOperator or severalOperators.
func (p *pattern) operator(name string) int {
	name = strings.ToLower(name)
	if p.nginx() {
		name = strings.TrimPrefix(name, "$")
	}
	if i, is := p.named[name]; is {
		return i
	}
	if i, is := p.bare[name]; is {
		return i
	}
	return noOperator
}

// header returns the index of the operator that writes a header of the request, or noOperator.
func (p *pattern) header(name string) int {
	if p.nginx() {
		for _, variable := range variables(name) {
			if i := p.operator(variable); i >= 0 {
				return i
			}
		}
		return noOperator
	}
	if i, is := p.headers[strings.ToLower(name)]; is {
		return i
	}
	return noOperator
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
// Envoy does not escape text from clients. A quote within quotes may be an attempt to forge the fields that follow, so
// such a line is an error.
func (p *pattern) split(line []byte, fields [][]byte) string {
	if !bytes.HasPrefix(line, p.lead) {
		return fmt.Sprintf("it does not start with %s, as the %s says", quote(p.lead), p.what)
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
					return p.at(line,
						rest[q:]) + fmt.Sprintf("after %s stands %s, not %s: a quote within a value makes a line of text ambiguous",
						yamlform.Clip(op.name), quote(rest[q:]), quote(op.after))
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
			return p.at(line, rest) + fmt.Sprintf("there is no %s after %s, as the %s says", quote(op.after),
				yamlform.Clip(op.name), p.what)
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
		return p.at(line, rest) + fmt.Sprintf("unexpected text after the end of the %s: %s", p.what, quote(rest))
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

// at returns the column at which the rest of a line starts, as text, for formats of nginx.
func (p *pattern) at(line, rest []byte) string {
	if !p.nginx() {
		return ""
	}
	return fmt.Sprintf("column %d: ", len(line)-len(rest)+1)
}

// maxShortText is the longest text for which index compares at every occurrence of the first byte.
const maxShortText = 16

// quote writes a part of a line or of a pattern for a message.
func quote(s []byte) string { return yamlform.Quote(string(s[:min(len(s), 1000)])) }

// index is like bytes.Index, but faster for short texts that start with a rare byte.
func index(s, text []byte) int {
	if len(text) > maxShortText {
		return bytes.Index(s, text) // it takes linear time even where the text nearly repeats
	}
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
