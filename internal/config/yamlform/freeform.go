package yamlform

import (
	"math"

	"gopkg.in/yaml.v3"
)

// AnyMap reads a map of anything: text, finite numbers, true, false, null, lists and maps of them. All of these fit
// into a google.protobuf.Struct. It returns nil, and notes an error, for a value that is not a map.
func (v Value) AnyMap() map[string]any {
	if !v.IsMap() {
		v.Errorf("%s must be a map, not %s", v.label(), v.What())
		return nil
	}
	return v.anyMap(1)
}

func (v Value) anyMap(level int) map[string]any {
	r := v.r
	into := make(map[string]any, v.Len())
	v.eachMap(0, func(m Value) {
		content := m.node().Content
		own := make(map[string]*yaml.Node, len(content)/2)
		for i := 0; i+1 < len(content); i += 2 {
			k, name := content[i], target(content[i])
			if isMerge(name) {
				continue
			}
			if name.Kind != yaml.ScalarNode {
				if !m.expand(k) {
					return
				}
				r.ErrorAt(r.position(k), "a key in %s must be text, not %s", v.label(), what(name))
				continue
			}
			first, twice := own[name.Value]
			_, have := into[name.Value]
			if skipped := twice && !r.o.Lenient || have && !twice; skipped && !m.expand(k) {
				return
			}
			if twice && !r.o.Lenient {
				r.ErrorAt(r.position(k), "key `%s` twice in one map: the first is %s", Clip(name.Value), r.position(first).Near())
				continue
			}
			if twice {
				r.WarnAt(r.position(k), ReadsToo, "key `%s` twice in one map: this one counts, not the first, %s", Clip(name.Value),
					r.position(first).Near())
			} else {
				own[name.Value] = k
			}
			if have && !twice {
				continue
			}
			if c, ok := m.child(content[i+1], v.key); ok {
				into[name.Value] = c.anything(level)
			}
		}
	})
	return into
}

func (v Value) anything(level int) any {
	n, r := v.node(), v.r
	if level >= MaxLevels && n.Kind != yaml.ScalarNode {
		if r.o.Lenient {
			v.Warnf(Keeps, "%s has more than %d levels, which no client can read: what is below is left out", v.label(),
				MaxLevels)
		} else {
			v.Errorf("%s has more than %d levels", v.label(), MaxLevels)
		}
		return nil
	}
	switch n.Kind {
	case yaml.MappingNode:
		return v.anyMap(level + 1)
	case yaml.SequenceNode:
		values := make([]any, 0, len(n.Content))
		for item := range v.Items() {
			values = append(values, item.anything(level+1))
		}
		return values
	}
	switch n.Tag {
	case "!!null":
		return nil
	case "!!str":
		if n.Style == 0 && r.steps == nil { // neither quotes nor a tag, in a file
			if b, is := oldFlag(n.Value); is {
				return b
			}
		}
		return n.Value
	case "!!timestamp":
		return n.Value
	case "!!bool":
		var b bool
		if decode(n, &b) {
			return b
		}
	case "!!int":
		var i int
		if decode(n, &i) {
			return i
		}
		var f float64
		if decode(n, &f) {
			return f
		}
	case "!!float":
		var f float64
		if decode(n, &f) && !math.IsNaN(f) && !math.IsInf(f, 0) {
			return f
		}
		if r.o.Lenient {
			v.Warnf(Keeps, "%s may hold finite numbers, not %s: it is left out", v.label(), Clip(n.Value))
			return nil
		}
	default:
		if text, ok := r.tagged(n); ok {
			return text
		}
	}
	v.Errorf("%s may hold text, finite numbers, true, false, null, lists and maps, not %s", v.label(), v.What())
	return nil
}
