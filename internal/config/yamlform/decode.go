package yamlform

import (
	"bytes"
	"errors"
	"fmt"
	"io"

	"gopkg.in/yaml.v3"
)

// Decode returns the documents of a text as plain values, maps as map[string]any where all keys are text: for files
// whose language another program defines. Dates are texts, as in JSON.
func Decode(data []byte) (values []any, err error) {
	defer recovered(&err)
	d := yaml.NewDecoder(bytes.NewReader(data))
	for {
		var n yaml.Node
		if err := d.Decode(&n); errors.Is(err, io.EOF) {
			return values, nil
		} else if err != nil {
			return nil, err
		}
		datesAsText(&n)
		var v any
		if err := n.Decode(&v); err != nil {
			return nil, err
		}
		values = append(values, v)
	}
}

func datesAsText(n *yaml.Node) {
	if n.Kind == yaml.ScalarNode && n.ShortTag() == "!!timestamp" {
		n.Tag = "!!str"
	}
	for _, child := range n.Content {
		datesAsText(child)
	}
}

// Encode writes plain values as documents.
func Encode(values ...any) ([]byte, error) { return encode(values) }

func encode[T any](documents []T) (text []byte, err error) {
	defer recovered(&err)
	var b bytes.Buffer
	e := yaml.NewEncoder(&b)
	for _, d := range documents {
		if err := e.Encode(d); err != nil {
			return nil, fmt.Errorf("write YAML: %w", err)
		}
	}
	if err := e.Close(); err != nil {
		return nil, fmt.Errorf("write YAML: %w", err)
	}
	return b.Bytes(), nil
}
