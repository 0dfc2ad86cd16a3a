package accesslog

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"gopkg.in/yaml.v3"

	"github.com/ratelimitd/ratelimitd/internal/config"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// key is one key of a map in a mapping file, and what reads its value.
type key[T any] struct {
	name string
	read func(r *reader, into *T, value *yaml.Node)
}

// shape is the keys that a map may have.
type shape[T any] struct {
	what string // the map, in messages
	keys []key[T]
}

func (s *shape[T]) names() []string {
	names := make([]string, len(s.keys))
	for i := range s.keys {
		names[i] = s.keys[i].name
	}
	return names
}

// reader reads one mapping file. It notes what is wrong and reads on, so that all errors come at once.
type reader struct {
	file string
	errs []*config.Error
}

func (r *reader) position(n *yaml.Node) descriptor.Position {
	return descriptor.Position{File: r.file, Line: max(n.Line, 1), Col: max(n.Column, 1)}
}

func (r *reader) errorf(at *yaml.Node, format string, args ...any) {
	r.errorAt(r.position(at), format, args...)
}

func (r *reader) errorAt(at descriptor.Position, format string, args ...any) {
	e := &config.Error{File: r.file, Line: at.Line, Col: at.Col, Msg: fmt.Sprintf(format, args...)}
	if !slices.ContainsFunc(r.errs, func(told *config.Error) bool { return *told == *e }) && len(r.errs) < 100 {
		r.errs = append(r.errs, e)
	}
}

func (r *reader) sorted() []*config.Error {
	slices.SortStableFunc(r.errs, func(a, b *config.Error) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Col, b.Col))
	})
	return r.errs
}

// document parses the one YAML document of a mapping; nil if there is none, with the reason in r.errs.
func (r *reader) document(data []byte) *yaml.Node {
	docs, err := documents(data)
	if err != nil {
		line, msg := 1, strings.TrimPrefix(err.Error(), "yaml: ")
		if rest, ok := strings.CutPrefix(msg, "line "); ok {
			number, text, _ := strings.Cut(rest, ": ")
			if n, err := strconv.Atoi(number); err == nil {
				line, msg = n, text
			}
		}
		r.errorAt(descriptor.Position{Line: line, Col: 1}, "not YAML: %s", msg)
		return nil
	}
	if len(docs) == 0 || len(docs[0].Content) == 0 {
		r.errorAt(descriptor.Position{Line: 1, Col: 1}, "nothing in this file: write `format`, `domain` and `descriptors`")
		return nil
	}
	if len(docs) > 1 {
		r.errorf(docs[1], "a second YAML document: a mapping is one")
		return nil
	}
	return docs[0].Content[0]
}

func documents(data []byte) (docs []*yaml.Node, err error) {
	defer func() {
		// The library turns its own errors into returned ones; whatever else it panics with is a defect of it.
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

// behind is what an alias stands for. Where a mapping nests is given by its shapes, so no alias can make it endless.
func behind(n *yaml.Node) *yaml.Node {
	for n.Kind == yaml.AliasNode && n.Alias != nil {
		n = n.Alias
	}
	return n
}

// readMap reads a map of that shape.
func readMap[T any](r *reader, s *shape[T], into *T, m *yaml.Node) bool {
	m = behind(m)
	if m.Kind != yaml.MappingNode {
		r.errorf(m, "%s must be a map of keys (%s), this is %s", s.what, config.List(s.names(), "and"), kindOf(m))
		return false
	}
	seen := make(map[string]int)
	for i := 0; i+1 < len(m.Content); i += 2 {
		k, v := behind(m.Content[i]), behind(m.Content[i+1])
		j := slices.IndexFunc(s.keys, func(e key[T]) bool { return k.Kind == yaml.ScalarNode && e.name == k.Value })
		switch {
		case j < 0:
			r.unknownKey(k, s.what, s.names())
		case seen[k.Value] > 0:
			r.errorf(k, "key `%s` twice in one map: the first is on line %d", k.Value, seen[k.Value])
		default:
			seen[k.Value] = k.Line
			s.keys[j].read(r, into, v)
		}
	}
	return true
}

// unknownKey says what the key was probably meant to be, else where it belongs, else which keys there are.
func (r *reader) unknownKey(k *yaml.Node, what string, here []string) {
	if k.Kind != yaml.ScalarNode {
		r.errorf(k, "a key must be text, this is %s: %s has %s", kindOf(k), what, config.List(here, "and"))
		return
	}
	if near := config.Closest(k.Value, here); near != "" {
		r.errorf(k, "unknown key %s: did you mean `%s`?", quote(k.Value), near)
		return
	}
	for _, p := range places {
		if slices.Contains(p.names, k.Value) {
			r.errorf(k, "`%s` does not belong in %s: it is a key of %s", k.Value, what, p.what)
			return
		}
	}
	r.errorf(k, "unknown key %s: %s has %s", quote(k.Value), what, config.List(here, "and"))
}

// kindOf says what a node is, for messages.
func kindOf(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a map"
	case yaml.SequenceNode:
		return "a list"
	}
	if n.Tag == "!!null" {
		return "nothing"
	}
	return quote(n.Value)
}

// text reads a text; numbers, true and false are taken as written.
func (r *reader) text(name string, n *yaml.Node) (string, bool) {
	if n.Kind == yaml.ScalarNode && n.Tag != "!!null" {
		return n.Value, true
	}
	r.errorf(n, "`%s` must be text, this is %s", name, kindOf(n))
	return "", false
}

func (r *reader) flag(name string, n *yaml.Node) bool {
	var b bool
	if n.Kind != yaml.ScalarNode || n.Tag != "!!bool" || n.Decode(&b) != nil {
		r.errorf(n, "`%s` must be true or false, this is %s", name, kindOf(n))
	}
	return b
}

// list reads a list, or one item for a list of it.
func (r *reader) list(n *yaml.Node) []*yaml.Node {
	if n.Kind != yaml.SequenceNode {
		return []*yaml.Node{n}
	}
	items := make([]*yaml.Node, len(n.Content))
	for i, item := range n.Content {
		items[i] = behind(item)
	}
	return items
}

func (r *reader) texts(name string, n *yaml.Node) []string {
	var all []string
	for _, item := range r.list(n) {
		if s, ok := r.text(name, item); ok {
			all = append(all, s)
		}
	}
	return all
}

// choice reads one of a few names.
func (r *reader) choice(name string, n *yaml.Node, names []string) (int, bool) {
	text, ok := r.text(name, n)
	if !ok {
		return 0, false
	}
	if i := slices.Index(names, text); i >= 0 {
		return i, true
	}
	if near := config.Closest(text, names); near != "" {
		r.errorf(n, "unknown `%s` %s: did you mean `%s`?", name, quote(text), near)
	} else {
		r.errorf(n, "unknown `%s` %s: write %s", name, quote(text), config.List(names, "or"))
	}
	return 0, false
}
