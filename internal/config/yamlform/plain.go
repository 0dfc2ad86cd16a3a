package yamlform

import (
	"iter"
	"math"
	"strconv"

	"gopkg.in/yaml.v3"
)

// Pairs is a map as plain values, in order. A value, at any depth, is a string, bool, uint32, float64, nil, []any or
// Pairs.
type Pairs []Pair

// Pair is one key of such a map. Path is the path of its value in errors, if that is not below the map.
type Pair struct {
	Key   string
	Value any
	Path  string
}

// Plain values become the same nodes that the library makes of a file, so that one reader reads both. Where a node of a
// file has a line, a node of plain values has the number of the step that leads to it. Errors name the path that these
// steps make.

// step is one step of the path from the top of plain values to one of them.
type step struct {
	from  int    // index of the previous step, counted from 1; 0 at the top
	key   string // key in a map; empty in a list
	index int    // index in a list
	path  string // the whole path, if it does not follow from the other fields
}

// pathTo returns the path to a value, with a colon and a space before it, as in ": descriptors[2].rate_limit.unit"; it
// is empty for the top.
func pathTo(steps []step, line int) string {
	if line > len(steps) || steps[line-1].from == 0 {
		return ""
	}
	return ": " + string(appendPath(nil, steps, line))
}

func appendPath(b []byte, steps []step, line int) []byte {
	s := &steps[line-1]
	switch {
	case s.from == 0:
		return b
	case s.path != "":
		return append(b, s.path...)
	}
	b = appendPath(b, steps, s.from)
	if s.key == "" {
		return append(strconv.AppendInt(append(b, '['), int64(s.index), 10), ']')
	}
	if len(b) > 0 {
		b = append(b, '.')
	}
	return append(b, s.key...)
}

// Plain returns plain values as a Value. The reader is for one such map and for no file.
func (r *Reader) Plain(top Pairs) Value {
	n := new(yaml.Node)
	r.node(n, step{}, top)
	return Value{r: r, at: n}
}

// PlainItems yields the items of a list that belongs below the map of Plain, but is not part of it. It makes one at a
// time: nodes are far larger than the values. An item is valid until the next one is made.
func (r *Reader) PlainItems(of Pair, list []any) iter.Seq[Value] {
	return func(yield func(Value) bool) {
		r.steps = append(r.steps, step{from: 1, key: of.Key, path: of.Path})
		above := len(r.steps)
		for i, e := range list {
			r.steps = r.steps[:above]
			n := new(yaml.Node)
			r.node(n, step{from: above, index: i}, e)
			if !yield(Value{r: r, at: n}) {
				return
			}
		}
	}
}

// node makes n the node of a plain value. The nodes of one list or map are allocated together: there are many of them.
func (r *Reader) node(n *yaml.Node, s step, value any) {
	r.steps = append(r.steps, s)
	at := len(r.steps)
	n.Kind, n.Line, n.Column = yaml.ScalarNode, at, 1
	switch v := value.(type) {
	case Pairs:
		n.Kind = yaml.MappingNode
		nodes := addContent(n, 2*len(v))
		for i := range v {
			key, value := &nodes[2*i], &nodes[2*i+1]
			r.node(value, step{from: at, key: v[i].Key, path: v[i].Path}, v[i].Value)
			key.Kind, key.Tag, key.Value, key.Line, key.Column = yaml.ScalarNode, "!!str", v[i].Key, value.Line, 1
		}
	case []any:
		n.Kind = yaml.SequenceNode
		nodes := addContent(n, len(v))
		for i, e := range v {
			r.node(&nodes[i], step{from: at, index: i}, e)
		}
	case string:
		n.Tag, n.Value = "!!str", v
	case bool:
		n.Tag, n.Value = "!!bool", strconv.FormatBool(v)
	case uint32:
		n.Tag, n.Value = "!!int", strconv.FormatUint(uint64(v), 10)
	case float64:
		n.Tag, n.Value = number(v)
	case nil:
		n.Tag, n.Value = "!!null", "null"
	default:
		n.Tag = "!unknown" // rejected everywhere
	}
	r.size += len(s.key) + len(n.Value)
}

// addContent gives a node that many empty ones.
func addContent(n *yaml.Node, many int) []yaml.Node {
	nodes := make([]yaml.Node, many)
	n.Content = make([]*yaml.Node, many)
	for i := range nodes {
		n.Content[i] = &nodes[i]
	}
	return nodes
}

// number writes a number of JSON. A number without a fraction is an integer, up to 2^53, where a float64 no longer
// holds every integer.
func number(v float64) (tag, text string) {
	switch {
	case v == math.Trunc(v) && math.Abs(v) < 1<<53:
		return "!!int", strconv.FormatInt(int64(v), 10)
	case math.IsNaN(v):
		return "!!float", ".nan"
	case math.IsInf(v, 0):
		return "!!float", ".inf"
	case math.Abs(v) >= 1e-6 && math.Abs(v) < 1e21: // JSON writes these without an exponent
		return "!!float", strconv.FormatFloat(v, 'f', -1, 64)
	default:
		return "!!float", strconv.FormatFloat(v, 'g', -1, 64)
	}
}
