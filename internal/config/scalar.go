package config

import (
	"strconv"

	"gopkg.in/yaml.v3"
)

// text reads a text. Whole numbers, true and false are taken as written; a float is refused, as the reference does:
// 1.10 as a version is one float, and the text that was meant is another.
func (r *reader) text(name string, n *yaml.Node) (string, bool) {
	t, ok := r.enter(n)
	if !ok {
		return "", false
	}
	defer r.leave(n)
	if t.Kind == yaml.ScalarNode {
		switch t.Tag {
		case "!!str", "!!int", "!!bool", "!!timestamp":
			return t.Value, true
		case "!!float":
			r.errorf(n, "`%s` must be text, this is the number %s: write it in quotes, %s", name, clip(t.Value), quote(t.Value))
			return "", false
		}
	}
	r.errorf(n, "`%s` must be text, this is %s", name, kindOf(t))
	return "", false
}

// flag reads true or false, or a word that YAML 1.1 took for them, like yes and off.
func (r *reader) flag(name string, n *yaml.Node) bool {
	t, ok := r.enter(n)
	if !ok {
		return false
	}
	defer r.leave(n)
	if t.Kind == yaml.ScalarNode {
		switch t.Value {
		case "true":
			if t.Tag == "!!bool" {
				return true
			}
		case "false":
			if t.Tag == "!!bool" {
				return false
			}
		}
		var b bool
		if decode(t, &b) {
			return b
		}
	}
	r.errorf(n, "`%s` must be true or false, this is %s", name, kindOf(t))
	return false
}

// number reads a whole number from 0 to 4294967295.
func (r *reader) number(name string, n *yaml.Node) uint32 {
	t, ok := r.enter(n)
	if !ok {
		return 0
	}
	defer r.leave(n)
	const most = "4294967295"
	if t.Kind != yaml.ScalarNode || t.Tag != "!!int" {
		r.errorf(n, "`%s` must be a whole number from 0 to %s, this is %s", name, most, kindOf(t))
		return 0
	}
	// A leading zero means octal to YAML: only the library knows that and the other notations.
	if t.Value[:min(1, len(t.Value))] != "0" {
		if u, err := strconv.ParseUint(t.Value, 10, 32); err == nil {
			return uint32(u)
		}
	}
	var u uint32
	if !decode(t, &u) {
		r.errorf(n, "`%s` must be a whole number from 0 to %s, this is %s", name, most, clip(t.Value))
		return 0
	}
	return u
}

// decode lets the library decide what a scalar means. Its panics are defects of it, met with odd tags.
func decode(n *yaml.Node, into any) (ok bool) {
	defer func() {
		if recover() != nil {
			ok = false
		}
	}()
	return n.Decode(into) == nil
}
