package yamlform

import (
	"fmt"
	"slices"

	"gopkg.in/yaml.v3"
)

// Field is one row of a Form: a key, and the function that stores its value in a T. Read is not called for a null.
type Field[T any] struct {
	Key
	Read func(into *T, v Value)
}

// Form is a map that a file may have: its keys, and how they become a T.
type Form[T any] struct {
	Map
	read []func(into *T, v Value)
}

// NewForm returns a form of at most 64 keys. Type.Of refers to a form by its name; messages describe its maps by the
// second argument.
func NewForm[T any](name, what string, fields ...Field[T]) *Form[T] {
	if len(fields) > 64 {
		panic(fmt.Sprintf("%s has %d keys, 64 are the most", what, len(fields)))
	}
	f := &Form[T]{Map: Map{Name: name, What: what}}
	for _, field := range fields {
		f.Map.Keys = append(f.Map.Keys, field.Key)
		f.read = append(f.read, field.Read)
	}
	return f
}

// Read reads a map of that form. It reports whether v is a map, and whether unknown keys were found in it: then a key
// that seems to be missing is probably one of them, misspelt.
func Read[T any](v Value, f *Form[T], into *T) (read, unknown bool) {
	if !v.IsMap() {
		v.Errorf("%s must be a map of keys (%s), not %s", f.What, List(f.Names(), "and"), v.What())
		return false, false
	}
	var have uint64 // a bit for each key that was met
	v.eachMap(0, func(m Value) {
		var own uint64
		var first [64]*yaml.Node // the keys of own
		if v.r.o.Lenient {
			m = m.lastWins()
		}
		n := m.node()
		for i := 0; i+1 < len(n.Content); i += 2 {
			k := n.Content[i]
			name := target(k)
			if isMerge(name) {
				continue
			}
			j := -1
			if name.Kind == yaml.ScalarNode {
				j = f.index(name.Value)
			}
			twice := j >= 0 && own&(1<<j) != 0
			skipped := j < 0 || twice || have&(1<<j) != 0 || isNull(n.Content[i+1])
			if skipped && !m.expand(k) {
				return
			}
			switch {
			case j < 0:
				unknown = m.unknownKey(k, n.Content[i+1], &f.Map) || unknown
				continue
			case twice:
				v.r.ErrorAt(v.r.position(k), "key `%s` twice in one map: the first is %s", name.Value,
					v.r.position(first[j]).Near())
				continue
			}
			own |= 1 << j
			first[j] = k
			have |= 1 << j
			if skipped {
				continue
			}
			if c, ok := m.child(n.Content[i+1], &f.Map.Keys[j]); ok {
				f.read[j](into, c)
			}
		}
	})
	return true, unknown
}

// unknownKey notes an error about a key that the map m does not have, or a warning if the key is to be ignored.
func (v Value) unknownKey(k, value *yaml.Node, m *Map) (wrong bool) {
	r, name := v.r, target(k)
	if name.Kind == yaml.ScalarNode && r.o.Hint != nil {
		if hint := r.o.Hint(name.Value, Value{r, value, nil, v.via}); hint != "" {
			r.ErrorAt(r.position(k), "%s", hint)
			return true
		}
	}
	ignored := r.o.Lenient && name.Kind == yaml.ScalarNode && slices.Contains(r.o.Ignored, name.Value)
	message := unknownKeyMessage{name, value, m, v}
	switch {
	case r.repeated(k, m):
	case ignored:
		r.WarnAt(r.position(k), ReadsToo, "%s: it is ignored", message)
	default:
		r.ErrorAt(r.position(k), "%s", message)
	}
	return !ignored
}
