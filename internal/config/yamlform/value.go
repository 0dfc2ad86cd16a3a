package yamlform

import (
	"iter"

	"gopkg.in/yaml.v3"
)

// Value is one value of a file. An alias is treated as its target, at the place of the alias. The zero Value is one
// that is not given.
type Value struct {
	r   *Reader
	at  *yaml.Node
	key *Key   // the key that it is the value of, or an item of
	via *alias // the aliases that lead here; nil without any
}

// alias is one alias on the way to a value.
type alias struct {
	anchor *yaml.Node
	before *alias
}

func (a *alias) leadsThrough(anchor *yaml.Node) bool {
	for ; a != nil; a = a.before {
		if a.anchor == anchor {
			return true
		}
	}
	return false
}

// child returns a value in v. It returns false, with an error noted, if that value is an alias that never ends or if
// the file's aliases expand to too much.
func (v Value) child(n *yaml.Node, key *Key) (Value, bool) {
	c := Value{v.r, n, key, v.via}
	if !v.expand(n) {
		return Value{}, false
	}
	if n.Kind == yaml.AliasNode {
		if v.r.expanded > v.r.most { // the error is already recorded
			return Value{}, false
		}
		if n.Alias == nil || v.via.leadsThrough(n.Alias) {
			c.Errorf("the alias *%s stands within its own anchor: it would never end", n.Value)
			return Value{}, false
		}
		v.r.aliased = true
		c.via = &alias{n.Alias, v.via}
	}
	return c, true
}

// expand counts one of the values in v, or a key without one, if aliases lead to v. It returns false if the file's
// aliases expand to too much, and notes that error once. Without this bound a map of n keys behind n aliases would cost
// n times n.
func (v Value) expand(n *yaml.Node) bool {
	if v.via == nil {
		return true
	}
	v.r.expanded++
	if v.r.expanded == v.r.most+1 {
		v.r.ErrorAt(v.r.position(n),
			"the aliases of this file stand for more than %d values: write fewer aliases within aliases", v.r.most)
	}
	return v.r.expanded <= v.r.most
}

// node resolves an alias and returns the value's node.
func (v Value) node() *yaml.Node { return target(v.at) }

func target(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode && n.Alias != nil {
		return n.Alias
	}
	return n
}

// Given reports whether there is a value.
func (v Value) Given() bool { return v.at != nil }

// Key returns the name of the key that the value belongs to, or "".
func (v Value) Key() string {
	if v.key == nil {
		return ""
	}
	return v.key.Name
}

// Reader returns the reader of the value's file.
func (v Value) Reader() *Reader { return v.r }

// Position returns the position of the value.
func (v Value) Position() Position { return v.r.position(v.at) }

// Errorf notes an error about the value.
func (v Value) Errorf(format string, args ...any) { v.r.ErrorAt(v.Position(), format, args...) }

// Warnf notes a warning about the value, and how envoyproxy/ratelimit treats the file.
func (v Value) Warnf(reference Reference, format string, args ...any) {
	v.r.WarnAt(v.Position(), reference, format, args...)
}

// IsMap reports whether the value is a map.
func (v Value) IsMap() bool { return v.node().Kind == yaml.MappingNode }

// IsList reports whether the value is a list.
func (v Value) IsList() bool { return v.node().Kind == yaml.SequenceNode }

// IsScalar reports whether the value is neither a map nor a list.
func (v Value) IsScalar() bool { return v.node().Kind == yaml.ScalarNode }

// IsNumber reports whether the value is a whole number in a file, without quotes.
func (v Value) IsNumber() bool { return v.node().Kind == yaml.ScalarNode && v.node().Tag == "!!int" }

// IsNull reports whether the value is null. A key whose value is null is as if it were absent.
func (v Value) IsNull() bool { return isNull(v.at) }

func isNull(n *yaml.Node) bool {
	n = target(n)
	return n.Kind == 0 || n.Kind == yaml.ScalarNode && n.Tag == "!!null"
}

// Written returns a scalar as the file has it, without quotes; "" for a map or a list.
func (v Value) Written() string {
	if n := v.node(); n.Kind == yaml.ScalarNode {
		return n.Value
	}
	return ""
}

// What describes the value in a message: "a map", "the text "x"".
func (v Value) What() string { return what(v.node()) }

// Len is how many items a list has, or how many keys a map has, not counting keys that it merges.
func (v Value) Len() int {
	if n := v.node(); n.Kind == yaml.MappingNode {
		return len(n.Content) / 2
	}
	return len(v.node().Content)
}

// Items yields the items of a list. A value that is not a list counts as a list of one item.
func (v Value) Items() iter.Seq[Value] {
	return func(yield func(Value) bool) {
		if !v.IsList() {
			yield(v)
			return
		}
		for _, n := range v.node().Content {
			if c, ok := v.child(n, v.key); ok && !yield(c) {
				return
			}
		}
	}
}

// Pairs yields the keys and values of a map. First come the pairs of the map itself, including repeated keys. Then come
// the pairs of the maps that it merges in, if their keys were not yielded before. Nulls are included.
func (v Value) Pairs() iter.Seq2[Value, Value] {
	return func(yield func(key, value Value) bool) {
		if !v.IsMap() {
			return
		}
		have := make(map[string]struct{}, v.Len())
		merged, done := false, false
		v.eachMap(0, func(m Value) {
			content := m.node().Content
			for i := 0; i+1 < len(content) && !done; i += 2 {
				name := target(content[i])
				if isMerge(name) {
					continue
				}
				if _, there := have[name.Value]; there && merged {
					if !m.expand(content[i]) {
						return
					}
					continue
				}
				key, ok := m.child(content[i], v.key)
				if !ok {
					continue
				}
				if value, ok := m.child(content[i+1], v.key); ok {
					done = !yield(key, value)
				}
			}
			for i := 0; i+1 < len(content); i += 2 {
				have[target(content[i]).Value] = struct{}{}
			}
			merged = true
		})
	}
}

// Has reports whether a map has a key with that name, not counting keys that it merges.
func (v Value) Has(name string) bool {
	if !v.IsMap() {
		return false
	}
	content := v.node().Content
	for i := 0; i+1 < len(content); i += 2 {
		if target(content[i]).Value == name {
			return true
		}
	}
	return false
}

// Keys returns the values of a map by key, without nulls. Of a repeated key it returns the first value.
func (v Value) Keys() map[string]Value {
	keys := make(map[string]Value, v.Len())
	for k, value := range v.Pairs() {
		if _, there := keys[k.Written()]; !there {
			keys[k.Written()] = value
		}
	}
	for name, value := range keys {
		if value.IsNull() {
			delete(keys, name)
		}
	}
	return keys
}

// eachMap calls read for a map and then for every map that it merges in, in the order in which their keys count: a
// map's own keys come before merged keys, and earlier merges before later ones. merges is how many merges lead here.
func (v Value) eachMap(merges int, read func(Value)) {
	read(v)
	var merge *yaml.Node
	content := v.node().Content
	for i := 0; i+1 < len(content); i += 2 {
		switch {
		case !isMerge(target(content[i])):
		case merge == nil:
			merge = content[i+1]
		case !v.expand(content[i]):
			return
		default:
			v.r.ErrorAt(v.r.position(content[i]), "key `<<` twice in one map: write `<<: [*one, *other]`")
		}
	}
	if merge == nil {
		return
	}
	from, ok := v.child(merge, nil)
	switch {
	case !ok:
	case merges >= MaxLevels:
		from.Errorf("more than %d merge keys within each other", MaxLevels)
	case from.IsMap():
		from.eachMap(merges+1, read)
	case from.IsList():
		for m := range from.Items() {
			if m.IsMap() {
				m.eachMap(merges+1, read)
			} else {
				m.Errorf("`<<` merges maps, not %s", m.What())
			}
		}
	default:
		from.Errorf("`<<` merges a map or a list of maps, not %s", from.What())
	}
}

// isMerge reports whether a key is the merge key, << without quotes.
func isMerge(k *yaml.Node) bool { return k.Kind == yaml.ScalarNode && k.Tag == "!!merge" }
