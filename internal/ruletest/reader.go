package ruletest

import (
	"slices"
	"strings"

	"gopkg.in/yaml.v3"

	"github.com/ratelimitd/ratelimitd/internal/config"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

const (
	maxFileSize = 16 << 20  // bytes of a test file
	maxNodes    = 1_000_000 // YAML nodes of a test file, aliases counted as what they stand for
)

// key is one key of a map in a test file, and what reads its value. read is not called for a null.
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

// reader reads one test file. It notes what is wrong and reads on, so that all errors of a file come at once.
type reader struct {
	config.Complaints
	nodes int
}

// document parses the one YAML document of a test file, aliases replaced by what they stand for. It returns nil if there
// is none, with the reason in r.Errs.
func (r *reader) document(data []byte) *yaml.Node {
	docs, err := config.Parse(r.File, data)
	if err != nil {
		r.Errs = append(r.Errs, err)
		return nil
	}
	docs = slices.DeleteFunc(docs, func(d *yaml.Node) bool { return len(d.Content) == 0 || isNull(d.Content[0]) })
	if len(docs) == 0 {
		r.ErrorAt(descriptor.Position{Line: 1, Col: 1}, "no tests in this file: write `cases:` and a list of cases, each with a `name` and `steps`")
		return nil
	}
	if len(docs) > 1 {
		r.Errorf(docs[1].Content[0], "a second YAML document: put all cases of a test file into one")
		return nil
	}
	root, ok := r.expand(docs[0].Content[0], nil)
	if !ok {
		return nil
	}
	return root
}

// expand replaces aliases by the nodes they stand for and merge keys by the keys they bring. behind holds the anchors
// within which n stands.
func (r *reader) expand(n *yaml.Node, behind []*yaml.Node) (*yaml.Node, bool) {
	if r.nodes++; r.nodes > maxNodes {
		r.Errorf(n, "more than %d YAML nodes in this file, aliases counted as what they stand for", maxNodes)
		return nil, false
	}
	if n.Kind == yaml.AliasNode {
		if n.Alias == nil || slices.Contains(behind, n.Alias) {
			r.Errorf(n, "the alias *%s stands within its own anchor: it would never end", n.Value)
			return nil, false
		}
		return r.expand(n.Alias, behind)
	}
	if n.Anchor != "" {
		behind = append(slices.Clone(behind), n)
	}
	for i, c := range n.Content {
		e, ok := r.expand(c, behind)
		if !ok {
			return nil, false
		}
		n.Content[i] = e
	}
	if n.Kind == yaml.MappingNode {
		return n, r.merge(n)
	}
	return n, true
}

// merge gives a map the keys that its merge key brings; its own come first, and earlier merges before later ones.
func (r *reader) merge(m *yaml.Node) bool {
	at := slices.IndexFunc(m.Content, func(k *yaml.Node) bool { return k.Kind == yaml.ScalarNode && k.Tag == "!!merge" })
	if at < 0 || at%2 != 0 {
		return true
	}
	from := []*yaml.Node{m.Content[at+1]}
	if from[0].Kind == yaml.SequenceNode {
		from = from[0].Content
	}
	m.Content = slices.Delete(m.Content, at, at+2)
	for _, f := range from {
		if f.Kind != yaml.MappingNode {
			r.Errorf(f, "`<<` merges a map or a list of maps, this is %s", config.KindOf(f))
			return false
		}
		for i := 0; i+1 < len(f.Content); i += 2 {
			if keyOf(m, f.Content[i].Value) == nil {
				m.Content = append(m.Content, f.Content[i], f.Content[i+1])
			}
		}
	}
	return true
}

// keyOf returns the key of that name in a map, or nil.
func keyOf(m *yaml.Node, name string) *yaml.Node {
	for i := 0; i+1 < len(m.Content); i += 2 {
		if k := m.Content[i]; k.Kind == yaml.ScalarNode && k.Value == name {
			return k
		}
	}
	return nil
}

// readMap reads a map of that shape.
func readMap[T any](r *reader, s *shape[T], into *T, m *yaml.Node) bool {
	if m.Kind != yaml.MappingNode {
		r.Errorf(m, "%s must be a map of keys (%s), this is %s", s.what, config.List(s.names(), "and"), config.KindOf(m))
		return false
	}
	for i := 0; i+1 < len(m.Content); i += 2 {
		k, v := m.Content[i], m.Content[i+1]
		j := slices.IndexFunc(s.keys, func(e key[T]) bool { return k.Kind == yaml.ScalarNode && e.name == k.Value })
		if j < 0 {
			r.unknownKey(k, v, s.what, s.names())
			continue
		}
		if first := keyOf(m, k.Value); first != k {
			r.Errorf(k, "key `%s` twice in one map: the first is on line %d", k.Value, first.Line)
			continue
		}
		if !isNull(v) {
			s.keys[j].read(r, into, v)
		}
	}
	return true
}

// unknownKey says what a key that is not known was probably meant to be.
func (r *reader) unknownKey(k, v *yaml.Node, what string, here []string) {
	if isNull(v) && k.Kind == yaml.ScalarNode && strings.Contains(k.Value, "=") {
		shown := config.Clip(k.Value)
		r.Errorf(k, "unknown key `%s`: within { } put a descriptor with commas in quotes, \"key=value,%s\"", shown, shown)
		return
	}
	r.Errorf(k, "%s", config.UnknownKey(k, what, here, places))
}

func isNull(n *yaml.Node) bool {
	return n.Kind == 0 || n.Kind == yaml.ScalarNode && n.Tag == "!!null"
}
