package yamlform

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"gopkg.in/yaml.v3"
)

// FromJSON writes a JSON value as a YAML document. Maps keep their order.
func FromJSON(data []byte) (text []byte, err error) {
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	n, err := nodeOf(d)
	if err != nil {
		return nil, fmt.Errorf("read JSON: %w", err)
	}
	return encode([]*yaml.Node{n})
}

// nodeOf reads the next value.
func nodeOf(d *json.Decoder) (*yaml.Node, error) {
	token, err := d.Token()
	if err != nil {
		return nil, noEOF(err)
	}
	delim, ok := token.(json.Delim)
	if !ok {
		return scalarOf(token), nil
	}
	n := &yaml.Node{Kind: yaml.SequenceNode}
	if delim == '{' {
		n.Kind = yaml.MappingNode
	}
	for d.More() { // the keys of a map are values too
		child, err := nodeOf(d)
		if err != nil {
			return nil, err
		}
		n.Content = append(n.Content, child)
	}
	if len(n.Content) == 0 {
		n.Style = yaml.FlowStyle // [] and {}
	}
	_, err = d.Token() // the closing bracket
	return n, noEOF(err)
}

func scalarOf(token json.Token) *yaml.Node {
	n := &yaml.Node{Kind: yaml.ScalarNode}
	switch v := token.(type) {
	case nil:
		n.Value = "null"
	case bool:
		n.Value = fmt.Sprint(v)
	case json.Number:
		n.Value = v.String()
	case string:
		n.SetString(v)
	}
	return n
}

func noEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
