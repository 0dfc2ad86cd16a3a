package yamlform

import (
	"bytes"
	"fmt"
	"slices"

	"gopkg.in/yaml.v3"
)

// Editor holds the documents of a file and writes the file with one value changed. It is for one goroutine.
//
// Only tests use it: they check that the tests of rule files notice every change. It is here because this package alone imports the
// YAML library, and a test of another package cannot reach the tests of this one.
type Editor struct {
	docs []*yaml.Node
	r    *Reader
}

// NewEditor parses a file.
func NewEditor(file string, data []byte) (*Editor, *Error) {
	docs, err := documents(data)
	if err != nil {
		return nil, syntaxError(file, data, err)
	}
	return &Editor{docs, NewReader(file, Options{})}, nil
}

// Walk calls visit for every value of the file where it is written, and not again through aliases. key is the key whose
// value it is, or in whose list it stands; "" for a document. The values in a map or list follow if visit returns true.
func (e *Editor) Walk(visit func(key string, v Value) bool) {
	var walk func(key string, n *yaml.Node)
	walk = func(key string, n *yaml.Node) {
		if n.Kind == yaml.AliasNode || !visit(key, Value{r: e.r, at: n}) {
			return
		}
		for i, c := range n.Content {
			switch {
			case n.Kind != yaml.MappingNode:
				walk(key, c)
			case i%2 == 1:
				walk(n.Content[i-1].Value, c)
			}
		}
	}
	for _, d := range e.docs {
		for _, root := range d.Content {
			walk("", root)
		}
	}
}

// Replace returns the file with another text in place of a scalar.
func (e *Editor) Replace(v Value, text string) ([]byte, error) {
	was := *v.at
	defer func() { *v.at = was }()
	v.at.Value = text
	if v.at.Tag != "!!str" { // what the value is depends on the new text
		v.at.Tag = ""
	}
	return encode(e.docs)
}

// Add returns the file with one more key in a map.
func (e *Editor) Add(v Value, key, text string) ([]byte, error) {
	was := v.at.Content
	defer func() { v.at.Content = was }()
	v.at.Content = append(slices.Clone(was),
		&yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: key},
		&yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: text})
	return encode(e.docs)
}

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
