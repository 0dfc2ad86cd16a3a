package accesslog

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/ratelimitd/ratelimitd/internal/config/yamlform"
)

// jsonLines reads one object per line.
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

func (j *jsonLines) split(fields [][]byte) (int, error) {
	line, err := j.lines.next()
	if err != nil {
		return 0, j.lines.failure(err)
	}
	if len(bytes.TrimSpace(line)) == 0 {
		return 0, errBlank
	}
	if err := j.object(line, j.paths, fields); err != nil {
		return 0, &LineError{j.lines.number, err.Error()}
	}
	return j.lines.number, nil
}

// object keeps the values of an object that p needs.
func (j *jsonLines) object(text []byte, p *path, fields [][]byte) error {
	var values map[string]json.RawMessage
	if err := json.Unmarshal(text, &values); err != nil || values == nil {
		at := int64(1)
		if syntax, is := errors.AsType[*json.SyntaxError](err); is {
			at = syntax.Offset
		}
		return fmt.Errorf("not a JSON object: column %d is not as it must be", at)
	}
	for _, below := range p.below {
		value := values[below.name]
		if len(value) == 0 {
			continue
		}
		if below.field >= 0 {
			var err error
			if fields[below.field], err = j.value(value, below); err != nil {
				return err
			}
		}
		if len(below.below) > 0 && value[0] == '{' {
			if err := j.object(value, below, fields); err != nil {
				return err
			}
		}
	}
	return nil
}

// value is the text of a value, which must be a single one. A text that is not UTF-8 stays as it is: the reader rejects
// it.
func (j *jsonLines) value(value json.RawMessage, p *path) ([]byte, error) {
	kind := ""
	switch value[0] {
	case '{':
		kind = "an object"
	case '[':
		kind = "a list"
	case 'n':
		return nil, nil
	case '"':
		if !utf8.Valid(value) {
			return value[1 : len(value)-1], nil
		}
		var text string
		err := json.Unmarshal(value, &text)
		return []byte(text), err
	default:
		return value, nil
	}
	return nil, fmt.Errorf("%s is %s, which is not a single value", yamlform.Quote(j.fields[p.field].name), kind)
}
