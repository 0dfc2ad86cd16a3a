//go:build goexperiment.jsonv2

package accesslog

import (
	"bytes"
	"encoding/json/jsontext"
	"testing"
)

// besideJSON reads the log with encoding/json/jsontext: GOEXPERIMENT=jsonv2 go test -bench BesideJSON.
func besideJSON(b *testing.B, log []byte) {
	b.Run("jsontext", func(b *testing.B) {
		splitAll(b, &jsonTextLines{lines: endlessLines(log), paths: newPaths(jsonNames), decoder: new(jsontext.Decoder)}, make([][]byte, len(jsonNames)), len(log))
	})
}

// jsonTextLines is jsonLines with the library.
type jsonTextLines struct {
	lines   *lines
	paths   *path
	decoder *jsontext.Decoder
	buffer  bytes.Buffer
	texts   []byte
}

func (j *jsonTextLines) split(fields [][]byte) (int, error) {
	line, err := j.lines.next()
	if err != nil {
		return 0, err
	}
	j.buffer = *bytes.NewBuffer(line)
	j.texts = j.texts[:0]
	j.decoder.Reset(&j.buffer, jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	return j.lines.number, j.object(j.paths, fields)
}

func (j *jsonTextLines) object(p *path, fields [][]byte) error {
	if _, err := j.decoder.ReadToken(); err != nil {
		return err
	}
	for j.decoder.PeekKind() != '}' {
		name, err := j.decoder.ReadValue()
		if err != nil {
			return err
		}
		below := p.find(name[1 : len(name)-1])
		switch {
		case below == nil:
			err = j.decoder.SkipValue()
		case below.field < 0:
			err = j.object(below, fields)
		default:
			var value jsontext.Value
			value, err = j.decoder.ReadValue()
			if err == nil && value.Kind() == '"' {
				start := len(j.texts)
				j.texts, err = jsontext.AppendUnquote(j.texts, value)
				value = j.texts[start:]
			}
			fields[below.field] = value
		}
		if err != nil {
			return err
		}
	}
	_, err := j.decoder.ReadToken()
	return err
}
