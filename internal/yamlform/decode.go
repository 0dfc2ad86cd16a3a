package yamlform

import (
	"bytes"
	"errors"
	"io"

	"gopkg.in/yaml.v3"
)

// Decode returns the documents of a text as plain values, maps as map[string]any where all keys are text: for files whose
// language another program defines.
func Decode(data []byte) (values []any, err error) {
	defer recovered(&err)
	d := yaml.NewDecoder(bytes.NewReader(data))
	for {
		var v any
		if err := d.Decode(&v); errors.Is(err, io.EOF) {
			return values, nil
		} else if err != nil {
			return nil, err
		}
		values = append(values, v)
	}
}

// Encode writes plain values as documents.
func Encode(values ...any) ([]byte, error) { return encode(values) }
