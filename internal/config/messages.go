package config

import (
	"fmt"
	"slices"
	"strconv"

	"gopkg.in/yaml.v3"
)

// What follows is what messages about any YAML that people write have in common: rule files here, tests of rules and
// mappings of logs elsewhere.

// Place is a map that a file may have, and its keys.
type Place struct {
	What  string // the map, in messages
	Names []string
}

// UnknownKey is a message about a key that a map of the name what, with the keys here, does not have. It says what the key
// was probably meant to be, else where it belongs, else which keys there are.
func UnknownKey(k *yaml.Node, what string, here []string, places []Place) string {
	if k.Kind != yaml.ScalarNode {
		return fmt.Sprintf("a key must be text, this is %s: %s has %s", KindOf(k), what, List(here, "and"))
	}
	shown := Clip(k.Value)
	for _, p := range places {
		if slices.Contains(p.Names, k.Value) {
			return fmt.Sprintf("`%s` does not belong in %s: it is a key of %s", shown, what, p.What)
		}
	}
	if c := Closest(k.Value, here); c != "" {
		return fmt.Sprintf("unknown key `%s`: did you mean `%s`?", shown, c)
	}
	for _, p := range places {
		if c := Closest(k.Value, p.Names); c != "" {
			return fmt.Sprintf("unknown key `%s`: did you mean `%s`, a key of %s?", shown, c, p.What)
		}
	}
	return fmt.Sprintf("unknown key `%s`: %s has %s", shown, what, List(here, "and"))
}

// UnknownWord is a message about a text that is none of those that a key takes.
func UnknownWord(name, text string, names []string) string {
	if c := Closest(text, names); c != "" {
		return fmt.Sprintf("unknown `%s` %s: did you mean `%s`?", name, Quote(text), c)
	}
	return fmt.Sprintf("unknown `%s` %s: write %s", name, Quote(text), List(names, "or"))
}

// KindOf says what a node is.
func KindOf(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a map"
	case yaml.SequenceNode:
		return "a list"
	}
	switch n.Tag {
	case "!!null":
		return "nothing"
	case "!!str", "!!timestamp":
		return "the text " + Quote(n.Value)
	case "!!int", "!!float":
		return "the number " + Clip(n.Value)
	case "!!bool":
		return Clip(n.Value)
	}
	return "a value tagged " + Clip(n.Tag)
}

const longest = 60 // characters of a file that a message repeats

// Clip is the beginning of a text, as much as a message repeats.
func Clip(s string) string {
	n := 0
	for i := range s {
		if n == longest {
			return s[:i] + "..."
		}
		n++
	}
	return s
}

// Quote is the same in quotes.
func Quote(s string) string { return strconv.Quote(Clip(s)) }
