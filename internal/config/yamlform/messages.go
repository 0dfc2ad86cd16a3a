package yamlform

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"gopkg.in/yaml.v3"
)

// unknownKeyMessage is a message about a key that a map does not have. It suggests the key that was probably meant, or
// the map where the key belongs, or lists the existing keys. Finding that out takes long: String is called only for
// errors that are reported.
type unknownKeyMessage struct {
	k, value *yaml.Node
	m        *Map
	in       Value // a map of the form m
}

func (u unknownKeyMessage) String() string {
	k, m, places := u.k, u.m, u.in.r.o.Places
	if k.Kind != yaml.ScalarNode {
		return fmt.Sprintf("a key must be text, not %s: %s has %s", what(k), m.What, List(m.Names(), "and"))
	}
	shown := Clip(k.Value)
	for _, p := range places {
		if p.Has(k.Value) {
			return fmt.Sprintf("`%s` does not belong in %s: it is a key of %s", shown, m.What, p.What)
		}
	}
	if c := Closest(k.Value, m.Names()); c != "" {
		return fmt.Sprintf("unknown key `%s`: did you mean `%s`?", shown, c)
	}
	for _, p := range places {
		if c := Closest(k.Value, p.Names()); c != "" {
			return fmt.Sprintf("unknown key `%s`: did you mean `%s`, a key of %s?", shown, c, p.What)
		}
	}
	if meant := u.in.r.o.Meant; meant != nil {
		if advice := meant(m, u.in, k.Value, Value{u.in.r, u.value, nil, u.in.via}); advice != "" {
			return fmt.Sprintf("unknown key `%s`: %s", shown, advice)
		}
	}
	return fmt.Sprintf("unknown key `%s`: %s has %s", shown, m.What, List(m.Names(), "and"))
}

// unknownWordMessage is UnknownWord about a choice, made only if it is reported.
type unknownWordMessage struct {
	label, text string
	names       []string // an empty one cannot be written
}

func (u unknownWordMessage) String() string {
	return UnknownWord(u.label, u.text, slices.DeleteFunc(slices.Clone(u.names),
		func(name string) bool { return name == "" }))
}

// UnknownWord is a message about a text that is not among the names that label accepts.
func UnknownWord(label, text string, names []string) string {
	if c := Closest(text, names); c != "" {
		return fmt.Sprintf("unknown %s %s: did you mean `%s`?", label, Quote(text), c)
	}
	return fmt.Sprintf("unknown %s %s: write %s", label, Quote(text), List(names, "or"))
}

// what describes a node in a message.
func what(n *yaml.Node) string {
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

// Clip returns as much of a text as a message quotes.
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

// Quote returns the same in quotes.
func Quote(s string) string { return strconv.Quote(Clip(s)) }

// List writes names for a message: `a`, `b` or `c`.
func List(names []string, and string) string {
	quoted := make([]string, len(names))
	for i, n := range names {
		quoted[i] = "`" + n + "`"
	}
	if len(quoted) < 2 {
		return strings.Join(quoted, "")
	}
	last := len(quoted) - 1
	return strings.Join(quoted[:last], ", ") + " " + and + " " + quoted[last]
}
