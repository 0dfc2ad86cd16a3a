package yamlform

import (
	"math"
)

// Language describes the files of one kind: which maps they have, and which keys each map has. Schemas and references
// are generated from it.
type Language struct {
	Maps []*Map // the first is the file itself
}

// Map is one map of a language.
type Map struct {
	Name string // name for references from Type.Of
	What string // description for messages and references
	Keys []Key
}

// Names returns the names of the keys.
func (m *Map) Names() []string {
	names := make([]string, len(m.Keys))
	for i := range m.Keys {
		names[i] = m.Keys[i].Name
	}
	return names
}

func (m *Map) index(name string) int {
	for i := range m.Keys {
		if m.Keys[i].Name == name {
			return i
		}
	}
	return -1
}

// Has reports whether the map has a key of that name.
func (m *Map) Has(name string) bool { return m.index(name) >= 0 }

// Key is one key of a map.
type Key struct {
	Name      string
	Type      Type
	Doc       string // meaning of the key, in Markdown
	Default   string // value that applies if the key is absent, in Markdown; empty if obvious
	Required  bool
	Extension bool // envoyproxy/ratelimit does not have it
}

// Type describes the values that a key may have. The same type reads the value, describes it and bounds it in a schema.
type Type struct {
	Kind        Kind
	Names       []string // choices of Choice and Choices; for Nested and ListOf, names that may replace the map
	AnyCase     bool     // whether Names may be written in any case of letters
	Least, Most uint64   // range of Number; Decimal, Weights and Table use only Most
	Word        string   // word that may replace a Number
	Of          string   // name of the Map of Nested and ListOf
	Pattern     string   // regular expression for the whole of a Text that must have a form; empty if any
	Form        string   // form in words, for Text with a Pattern and for Anything
	Floats      bool     // whether Text accepts a number with a point, as it is written
}

// Kind is the kind of a Type.
type Kind int

// Kinds of values.
const (
	Anything Kind = iota // Form describes the value, if it is restricted
	Text
	TextList
	TextOrList // one text, or a list of them
	Texts      // a list of texts, which may be empty
	Flag
	Number
	Choice    // one of Names
	Choices   // a list of some of Names
	Nested    // a map
	ListOf    // a list of maps
	AnyMap    // a map of anything
	FlagOrMap // true, false, or a map of the language
	Decimal   // a number above 0 and at most Most, with at most six decimals
	// a whole number from 1 to Most, or a map of texts to numbers from 0 to Most with at most six decimals, or to maps of
	// such whole numbers
	Weights
	Table // a map of texts to whole numbers from 1 to Most
)

// Between is a whole number from least to most, both included.
func Between(least, most uint64) Type { return Type{Kind: Number, Least: least, Most: most} }

// Uint32 is a whole number of 32 bits, of at least minimum.
func Uint32(minimum uint32) Type { return Between(uint64(minimum), math.MaxUint32) }

// Uint53 is a whole number of 53 bits, of at least minimum. JSON, Redis' Lua and the metadata of answers have it
// exactly.
func Uint53(minimum uint64) Type { return Between(minimum, 1<<53-1) }

// OneOf is one of some names. An empty name cannot be written; it keeps the place of a value without a name.
func OneOf(names ...string) Type { return Type{Kind: Choice, Names: names} }

// SomeOf is a list of some names.
func SomeOf(names ...string) Type { return Type{Kind: Choices, Names: names} }

// MapOf is a map of the language, by its name.
func MapOf(name string) Type { return Type{Kind: Nested, Of: name} }

// FlagOr is true or false, or a map of the language, by its name.
func FlagOr(name string) Type { return Type{Kind: FlagOrMap, Of: name} }

// MapsOf is a list of such maps.
func MapsOf(name string) Type { return Type{Kind: ListOf, Of: name} }
