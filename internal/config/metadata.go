package config

import (
	"math"

	"gopkg.in/yaml.v3"
)

// metadata reads the free-form map of a rule. Its values can all be said in a google.protobuf.Struct, which is what
// they become in an answer.
func (r *reader) metadata(n *yaml.Node) map[string]any {
	t, ok := r.enter(n)
	if !ok {
		return nil
	}
	defer r.leave(n)
	if t.Kind != yaml.MappingNode {
		r.errorf(n, "`metadata` must be a map, this is %s", KindOf(t))
		return nil
	}
	return r.anyMap(t, 1)
}

func (r *reader) anyMap(m *yaml.Node, level int) map[string]any {
	into := make(map[string]any, len(m.Content)/2)
	r.anyPairs(m, into, level, 0)
	return into
}

// anyPairs reads the keys of m that are not yet there: first its own, then the ones that it merges in.
func (r *reader) anyPairs(m *yaml.Node, into map[string]any, level, merges int) {
	var merge *yaml.Node
	own := make(map[string]*yaml.Node, len(m.Content)/2)
	for i := 0; i+1 < len(m.Content); i += 2 {
		k, v := m.Content[i], m.Content[i+1]
		name := k
		if k.Kind == yaml.AliasNode {
			name = k.Alias
		}
		if isMerge(name) {
			if merge != nil {
				r.errorf(k, "key `<<` twice in one map: write `<<: [*one, *other]`")
				continue
			}
			merge = v
			continue
		}
		if name.Kind != yaml.ScalarNode {
			r.errorf(k, "a key in `metadata` must be text, this is %s", KindOf(name))
			continue
		}
		if first, twice := own[name.Value]; twice && r.lenient {
			r.warnf(k, "key `%s` twice in one map: this one counts, not the first, %s", Clip(name.Value), there(r.position(first)))
			into[name.Value] = r.anyValue(v, level)
			continue
		} else if twice {
			r.errorf(k, "key `%s` twice in one map: the first is %s", Clip(name.Value), there(r.position(first)))
			continue
		}
		own[name.Value] = k
		if _, have := into[name.Value]; !have {
			into[name.Value] = r.anyValue(v, level)
		}
	}
	if merge != nil {
		r.merge(merge, merges, func(m *yaml.Node) { r.anyPairs(m, into, level, merges+1) })
	}
}

func (r *reader) anyValue(n *yaml.Node, level int) any {
	t, ok := r.enter(n)
	if !ok {
		return nil
	}
	defer r.leave(n)
	if level >= maxLevels && t.Kind != yaml.ScalarNode {
		if r.lenient {
			r.warnf(n, "`metadata` has more than %d levels, which no caller can read: what is below is left out", maxLevels)
		} else {
			r.errorf(n, "`metadata` has more than %d levels", maxLevels)
		}
		return nil
	}
	switch t.Kind {
	case yaml.MappingNode:
		return r.anyMap(t, level+1)
	case yaml.SequenceNode:
		values := make([]any, 0, len(t.Content))
		for _, e := range t.Content {
			values = append(values, r.anyValue(e, level+1))
		}
		return values
	}
	switch t.Tag {
	case "!!null":
		return nil
	case "!!str":
		if t.Style == 0 && r.steps == nil { // neither quotes nor a tag, in a file
			if b, is := oldBool(t.Value); is {
				return b
			}
		}
		return t.Value
	case "!!timestamp":
		return t.Value
	case "!!bool":
		var b bool
		if decode(t, &b) {
			return b
		}
	case "!!int":
		var i int
		if decode(t, &i) {
			return i
		}
		var f float64
		if decode(t, &f) {
			return f
		}
	case "!!float":
		var f float64
		if decode(t, &f) && !math.IsNaN(f) && !math.IsInf(f, 0) {
			return f
		}
		if r.lenient {
			r.warnf(n, "`metadata` may hold finite numbers, this is %s: it is left out", Clip(t.Value))
			return nil
		}
	default:
		if text, ok := r.tagged(t); ok {
			return text
		}
	}
	r.errorf(n, "`metadata` may hold text, finite numbers, true, false, null, lists and maps, this is %s", KindOf(t))
	return nil
}
