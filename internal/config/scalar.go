package config

import (
	"encoding/base64"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

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
			r.errorf(n, "`%s` must be text, this is the number %s: write it in quotes, %s", name, Clip(t.Value), Quote(t.Value))
			return "", false
		}
		if text, ok := r.tagged(t); ok {
			return text, true
		}
	}
	r.errorf(n, "`%s` must be text, this is %s", name, KindOf(t))
	return "", false
}

// tagged is the text of a scalar with a tag that is nobody's business here (!mine), or that says that the text is in base64.
func (r *reader) tagged(n *yaml.Node) (string, bool) {
	switch {
	case r.steps != nil: // it came from no file
	case n.Tag == "!!binary":
		b, err := base64.StdEncoding.DecodeString(strings.Join(strings.Fields(n.Value), ""))
		return string(b), err == nil && utf8.Valid(b)
	case strings.HasPrefix(n.Tag, "!") && !strings.HasPrefix(n.Tag, "!!"):
		return n.Value, true
	}
	return "", false
}

// oldBool is what YAML 1.1 takes for true or false and YAML 1.2 for a text.
func oldBool(text string) (value, is bool) {
	switch text {
	case "y", "Y", "yes", "Yes", "YES", "on", "On", "ON":
		return true, true
	case "n", "N", "no", "No", "NO", "off", "Off", "OFF":
		return false, true
	}
	return false, false
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
	r.errorf(n, "`%s` must be true or false, this is %s", name, KindOf(t))
	return false
}

// choice reads one of some names, as they are written.
func (r *reader) choice(name string, n *yaml.Node, names []string) (string, bool) {
	text, ok := r.text(name, n)
	if !ok {
		return "", false
	}
	if slices.Contains(names, text) {
		return text, true
	}
	r.errorf(n, "%s", UnknownWord(name, text, names))
	return "", false
}

// number reads a whole number from 0 to 4294967295.
func (r *reader) number(name string, n *yaml.Node) (uint32, bool) {
	t, ok := r.enter(n)
	if !ok {
		return 0, false
	}
	defer r.leave(n)
	const most = "4294967295"
	if t.Kind != yaml.ScalarNode || t.Tag != "!!int" {
		r.errorf(n, "`%s` must be a whole number from 0 to %s, this is %s", name, most, KindOf(t))
		return 0, false
	}
	// A leading zero means octal to YAML: only the library knows that and the other notations.
	if t.Value[:min(1, len(t.Value))] != "0" {
		if u, err := strconv.ParseUint(t.Value, 10, 32); err == nil {
			return uint32(u), true
		}
	}
	var u uint32
	if !decode(t, &u) {
		r.errorf(n, "`%s` must be a whole number from 0 to %s, this is %s", name, most, Clip(t.Value))
		return 0, false
	}
	return u, true
}

// numberFrom reads a whole number between two others, which are part of it.
func (r *reader) numberFrom(name string, n *yaml.Node, least, most uint32) (uint32, bool) {
	u, ok := r.number(name, n)
	if ok && (u < least || u > most) {
		if most >= math.MaxUint32-1 {
			r.errorf(n, "`%s` must be at least %d, this is %d", name, least, u)
		} else {
			r.errorf(n, "`%s` must be from %d to %d, this is %d", name, least, most, u)
		}
		return 0, false
	}
	return u, ok
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
