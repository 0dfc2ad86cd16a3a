package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"

	"gopkg.in/yaml.v3"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// documents parses all YAML documents in data, in order. When one is not YAML, those before it come with the error.
func documents(data []byte) (docs []*yaml.Node, err error) {
	defer func() {
		// The library turns its own errors into returned ones; whatever else it panics with is a defect of it, which
		// must not end the process because of a rule file.
		if p := recover(); p != nil {
			err = fmt.Errorf("yaml: %v", p)
		}
	}()
	d := yaml.NewDecoder(bytes.NewReader(data))
	for {
		n := new(yaml.Node)
		if err := d.Decode(n); errors.Is(err, io.EOF) {
			return docs, nil
		} else if err != nil {
			return docs, err
		}
		docs = append(docs, n)
	}
}

// Parse parses all YAML documents of a text that people write. What is no YAML is an error at the best line that can be
// found, with a hint at what is usually the matter.
func Parse(name string, data []byte) ([]*yaml.Node, *Error) {
	docs, err := documents(data)
	if err != nil {
		return docs, syntaxError(name, data, err)
	}
	return docs, nil
}

// source is what one version of a rule file says.
type source struct {
	domains  []descriptor.DomainSpec
	rules    int
	errs     []*Error // if there are any, nothing else of it may be used
	warnings []*Error // what was taken otherwise than it is written
}

// readSource reads one rule file, leniently or strictly. It is a pure function.
func readSource(name string, data []byte, lenient bool) *source {
	if s := readInChunks(name, data); s != nil {
		return s
	}
	r := &reader{file: name, lenient: lenient}
	if lenient {
		data = r.untilEnd(data)
	}
	docs, err := documents(data)
	s := &source{}
	for _, d := range docs {
		root := d
		if d.Kind == yaml.DocumentNode {
			if len(d.Content) == 0 {
				continue
			}
			root = d.Content[0]
		}
		if isNull(root) {
			continue // templates like to leave empty documents behind
		}
		s.domains = append(s.domains, r.document(root))
	}
	if err != nil {
		r.errs = append(r.errs, syntaxError(name, data, err))
	} else if len(s.domains) == 0 {
		r.errs = append(r.errs, &Error{name, 1, 1, "no rules in this file: write `domain: NAME` and a list of `descriptors`"})
	}
	s.rules = r.rules
	s.errs, s.warnings = r.sorted(), SortErrors(r.warnings)
	return s
}
