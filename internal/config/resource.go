package config

import (
	"crypto/sha256"
	"math"
	"strconv"

	"gopkg.in/yaml.v3"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// Resource is what a rule file says, from somewhere else than a file: as plain values, and with paths in the place of
// lines.
type Resource struct {
	Name string // stands in errors and in the position of every rule
	// Unnamed: the name is made up, because none could be read.
	Unnamed bool
	Sum     [sha256.Size]byte // of what it was made of: the same name and sum are the same rules. Zero: not known
	Rules   Fields            // the top of a rule file
	Err     error             // why there are no values; nil if there are

	// Later, if it is there, makes Rules and Err when they are needed, once: what did not change is not asked for, and of many
	// large resources one at a time is made.
	Later func() (Fields, error)
}

// Fields is a map of a rule file. Its values, and those within them, are string, bool, uint32, float64, nil, []any and Fields.
type Fields []Field

// Field is one key of such a map. Path is where it really stands if that is not below the map, as errors shall say it.
type Field struct {
	Key   string
	Value any
	Path  string
}

// The values of a resource become the nodes that the reader of rule files reads: so there is one place alone that knows
// what a rule may say. In the place of a line a node has the number of the step that leads to it.

// step is one step of the way from the top of a resource to a value.
type step struct {
	from  int    // the step before, counted from 1; 0: this is the top
	key   string // of a map; empty: of a list
	index int    // of a list
	path  string // the whole way, if it is another
}

// pathTo is the way to a value, with a colon and a space before it, as in ": descriptors[2].rate_limit.unit"; empty for
// the top.
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

// planter makes nodes of values.
type planter struct{ steps []step }

// plant makes n the node of a value. Nodes that stand together are made together: there are many of them.
func (p *planter) plant(n *yaml.Node, s step, value any) {
	p.steps = append(p.steps, s)
	at := len(p.steps)
	n.Kind, n.Line, n.Column = yaml.ScalarNode, at, 1
	switch v := value.(type) {
	case Fields:
		n.Kind = yaml.MappingNode
		nodes := below(n, 2*len(v))
		for i := range v {
			key, value := &nodes[2*i], &nodes[2*i+1]
			p.plant(value, step{from: at, key: v[i].Key, path: v[i].Path}, v[i].Value)
			key.Kind, key.Tag, key.Value, key.Line, key.Column = yaml.ScalarNode, "!!str", v[i].Key, value.Line, 1
		}
	case []any:
		n.Kind = yaml.SequenceNode
		nodes := below(n, len(v))
		for i, e := range v {
			p.plant(&nodes[i], step{from: at, index: i}, e)
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
		n.Tag = "!unknown" // refused wherever it stands
	}
}

// below gives a node so many empty ones.
func below(n *yaml.Node, many int) []yaml.Node {
	nodes := make([]yaml.Node, many)
	n.Content = make([]*yaml.Node, many)
	for i := range nodes {
		n.Content[i] = &nodes[i]
	}
	return nodes
}

// number writes a number of JSON: what has no fraction is whole, up to where a float64 counts by ones.
func number(v float64) (tag, text string) {
	switch {
	case v == math.Trunc(v) && math.Abs(v) < 1<<53:
		return "!!int", strconv.FormatInt(int64(v), 10)
	case math.IsNaN(v):
		return "!!float", ".nan"
	case math.IsInf(v, 0):
		return "!!float", ".inf"
	default:
		return "!!float", strconv.FormatFloat(v, 'g', -1, 64)
	}
}

// readResource reads one resource. It is a pure function.
func readResource(x *Resource) *source {
	rules, err := x.Rules, x.Err
	if x.Later != nil {
		rules, err = x.Later()
	}
	if err != nil {
		return &source{errs: []*Error{{File: x.Name, Msg: err.Error()}}}
	}
	top, list, at := apart(rules)
	var p planter
	var root yaml.Node
	p.plant(&root, step{}, top)
	r := &reader{file: x.Name, steps: p.steps}
	domain := r.document(&root)
	if list != nil {
		domain.Children = r.oneByOne(&p, at, list)
	}
	s := &source{domains: []descriptor.DomainSpec{domain}}
	s.rules, s.errs = r.rules, r.sorted()
	return s
}

// apart parts the first level of descriptors from the rest: nodes are far larger than what they are made of, so each
// descriptor becomes nodes by itself. There is no list if it is not written as it should be.
func apart(rules Fields) (top Fields, list []any, at Field) {
	for i, f := range rules {
		if f.Key != "descriptors" {
			continue
		}
		value, is := f.Value.([]any)
		if !is || list != nil {
			return rules, nil, Field{}
		}
		list, at = value, f
		top = append(append(top, rules[:i]...), rules[i+1:]...)
	}
	if list == nil {
		top = rules
	}
	return top, list, at
}

// oneByOne reads the first level of descriptors.
func (r *reader) oneByOne(p *planter, at Field, list []any) []descriptor.NodeSpec {
	p.steps = append(p.steps, step{from: 1, key: at.Key, path: at.Path})
	above := len(p.steps)
	r.level++
	specs := make([]descriptor.NodeSpec, 0, len(list))
	for i, e := range list {
		p.steps = p.steps[:above]
		var n yaml.Node
		p.plant(&n, step{from: above, index: i}, e)
		r.steps = p.steps
		if spec, ok := r.descriptor(&n); ok {
			specs = append(specs, spec)
		}
	}
	r.level--
	return r.twice(specs)
}
