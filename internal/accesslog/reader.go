package accesslog

import (
	"slices"

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

func (s *shape[T]) place() config.Place { return config.Place{What: s.what, Names: s.names()} }

// reader reads one mapping file. It notes what is wrong and reads on, so that all errors come at once.
type reader struct {
	config.Complaints
}

// document parses the one YAML document of a mapping; nil if there is none, with the reason in r.Errs.
func (r *reader) document(data []byte) *yaml.Node {
	docs, err := config.Parse(r.File, data)
	if err != nil {
		r.Errs = append(r.Errs, err)
		return nil
	}
	if len(docs) == 0 || len(docs[0].Content) == 0 {
		r.ErrorAt(descriptor.Position{Line: 1, Col: 1}, "nothing in this file: write `format`, `domain` and `descriptors`")
		return nil
	}
	if len(docs) > 1 {
		r.Errorf(docs[1], "a second YAML document: a mapping is one")
		return nil
	}
	return docs[0].Content[0]
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
		r.Errorf(m, "%s must be a map of keys (%s), this is %s", s.what, config.List(s.names(), "and"), config.KindOf(m))
		return false
	}
	seen := make(map[string]int)
	for i := 0; i+1 < len(m.Content); i += 2 {
		k, v := behind(m.Content[i]), behind(m.Content[i+1])
		j := slices.IndexFunc(s.keys, func(e key[T]) bool { return k.Kind == yaml.ScalarNode && e.name == k.Value })
		switch {
		case j < 0:
			r.Errorf(k, "%s", config.UnknownKey(k, s.what, s.names(), places))
		case seen[k.Value] > 0:
			r.Errorf(k, "key `%s` twice in one map: the first is on line %d", k.Value, seen[k.Value])
		default:
			seen[k.Value] = k.Line
			s.keys[j].read(r, into, v)
		}
	}
	return true
}

// text reads a text; numbers, true and false are taken as written.
func (r *reader) text(name string, n *yaml.Node) (string, bool) {
	if n.Kind == yaml.ScalarNode && n.Tag != "!!null" {
		return n.Value, true
	}
	r.Errorf(n, "`%s` must be text, this is %s", name, config.KindOf(n))
	return "", false
}

func (r *reader) flag(name string, n *yaml.Node) bool {
	var b bool
	if n.Kind != yaml.ScalarNode || n.Tag != "!!bool" || n.Decode(&b) != nil {
		r.Errorf(n, "`%s` must be true or false, this is %s", name, config.KindOf(n))
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
	r.Errorf(n, "%s", config.UnknownWord(name, text, names))
	return 0, false
}
