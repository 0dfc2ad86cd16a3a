package yamlform

import (
	"encoding/base64"
	"iter"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"gopkg.in/yaml.v3"
)

// label names the value in a message: `key`.
func (v Value) label() string {
	if v.key == nil {
		return "the value"
	}
	return "`" + v.key.Name + "`"
}

func (v Value) typed() Type {
	if v.key == nil {
		return Type{}
	}
	return v.key.Type
}

// Text reads a text. Whole numbers, times, true and false are taken as written. A number with a point is rejected
// unless the type takes it: 1.10 as a version is one number, and the text that was meant is another.
func (v Value) Text() (string, bool) {
	n := v.node()
	if n.Kind == yaml.ScalarNode {
		switch n.Tag {
		case "!!str", "!!int", "!!bool", "!!timestamp":
			return n.Value, true
		case "!!float":
			if v.key != nil && v.key.Type.Floats {
				return n.Value, true
			}
			v.Errorf("%s must be text, not the number %s: write it in quotes, %s", v.label(), Clip(n.Value), Quote(n.Value))
			return "", false
		}
		if text, ok := v.r.tagged(n); ok {
			return text, true
		}
	}
	v.Errorf("%s must be text, not %s", v.label(), v.What())
	return "", false
}

// tagged is the text of a scalar with a private tag (!mine), which means nothing here, or with the tag of base64.
func (r *Reader) tagged(n *yaml.Node) (string, bool) {
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

// Texts reads a list of texts, or a single text. It skips invalid items.
func (v Value) Texts() []string {
	var all []string
	for item := range v.Items() {
		if text, ok := item.Text(); ok {
			all = append(all, text)
		}
	}
	return all
}

var (
	trueWords  = []string{"yes", "Yes", "YES", "on", "On", "ON", "y", "Y"}
	falseWords = []string{"no", "No", "NO", "off", "Off", "OFF", "n", "N"}
)

// FlagWords returns the words that YAML 1.1 took for true or false. To YAML 1.2 they are texts; a flag takes them.
func FlagWords(value bool) []string {
	if value {
		return slices.Clone(trueWords)
	}
	return slices.Clone(falseWords)
}

func oldFlag(text string) (value, is bool) {
	switch {
	case slices.Contains(trueWords, text):
		return true, true
	case slices.Contains(falseWords, text):
		return false, true
	}
	return false, false
}

// Flag reads true or false, or a word that YAML 1.1 took for them, like yes and off; in a file also in quotes. It is
// false, with an error noted, for anything else.
func (v Value) Flag() bool {
	n := v.node()
	if n.Kind == yaml.ScalarNode {
		if n.Tag == "!!bool" && (n.Value == "true" || n.Value == "false") {
			return n.Value == "true"
		}
		var b bool
		if decode(n, &b) {
			return b
		}
		// a quoted boolean, which templates often write
		if n.Tag == "!!str" && v.r.steps == nil && (n.Value == "true" || n.Value == "false") {
			return n.Value == "true"
		}
	}
	v.Errorf("%s must be true or false, not %s", v.label(), v.What())
	return false
}

// Choice reads one of the names of the type and returns its index.
func (v Value) Choice() (int, bool) {
	text, ok := v.Text()
	if !ok {
		return 0, false
	}
	t := v.typed()
	for i, name := range t.Names {
		if name != "" && (name == text || t.AnyCase && strings.EqualFold(name, text)) {
			return i, true
		}
	}
	if !v.r.repeated(v.at, v.key) {
		v.Errorf("%s", unknownWordMessage{v.label(), text, t.Names})
	}
	return 0, false
}

// Number reads a whole number within the bounds of the type.
func (v Value) Number() (uint64, bool) {
	n, t := v.node(), v.typed()
	if n.Kind == yaml.ScalarNode && n.Tag == "!!int" {
		if u, ok := whole(n); ok && u >= t.Least && u <= t.Most {
			return u, true
		}
	}
	or := ""
	if t.Word != "" {
		or = ", or `" + t.Word + "`"
	}
	v.Errorf("%s must be a whole number from %d to %d%s, not %s", v.label(), t.Least, t.Most, or, v.What())
	return 0, false
}

// Millionths reads a decimal number within the bounds of the type, in millionths: 1.5 is 1,500,000.
func (v Value) Millionths() (uint64, bool) {
	n, t := v.node(), v.typed()
	if n.Kind == yaml.ScalarNode && (n.Tag == "!!int" || n.Tag == "!!float") {
		if u, ok := millionths(n.Value); ok && u > 0 && u <= t.Most*1_000_000 {
			return u, true
		}
	}
	v.Errorf("%s must be a number above 0 and at most %d, with at most six decimals, not %s", v.label(), t.Most,
		v.What())
	return 0, false
}

// Weight reads a whole number from 1 to the Most of the type.
func (v Value) Weight() (uint64, bool) {
	n, most := v.node(), v.typed().Most
	if n.Kind == yaml.ScalarNode && n.Tag == "!!int" {
		if u, ok := whole(n); ok && u > 0 && u <= most {
			return u, true
		}
	}
	return 0, false
}

// MillionthsByText reads a map of texts to decimal numbers within the bounds of the type. It yields the numbers in
// millionths, in the order of the file, and records an error for each pair that it leaves out. It leaves out maps
// without an error, because WeightsByText reads them.
func (v Value) MillionthsByText() iter.Seq2[string, uint64] {
	return func(yield func(string, uint64) bool) {
		for name, value := range v.byText() {
			if value.IsMap() {
				continue
			}
			n, most := value.node(), v.typed().Most
			u, ok := uint64(0), n.Kind == yaml.ScalarNode && (n.Tag == "!!int" || n.Tag == "!!float")
			if ok {
				u, ok = millionths(n.Value)
			}
			if !ok || u > most*1_000_000 {
				value.Errorf("%s of %s must be a number from 0 to %d, with at most six decimals, not %s", Quote(name),
					v.label(), most, value.What())
				continue
			}
			if !yield(name, u) {
				return
			}
		}
	}
}

// TablesByText yields the maps in a map, in the order of the file, with the texts that they belong to.
func (v Value) TablesByText() iter.Seq2[string, Value] {
	return func(yield func(string, Value) bool) {
		for k, value := range v.Pairs() { // wrong keys are errors of MillionthsByText
			if value.IsMap() && !yield(k.Written(), value) {
				return
			}
		}
	}
}

// WeightsByText reads a map of texts to whole numbers from 1 to the Most of the type, in the order of the file. It
// records an error for each pair that it leaves out.
func (v Value) WeightsByText() iter.Seq2[string, uint64] {
	return func(yield func(string, uint64) bool) {
		for name, value := range v.byText() {
			u, ok := value.Weight()
			if !ok {
				value.Errorf("%s in %s must be a whole number from 1 to %d, not %s", Quote(name), v.label(), v.typed().Most,
					value.What())
				continue
			}
			if !yield(name, u) {
				return
			}
		}
	}
}

// byText yields the values of a map of texts, without nulls.
func (v Value) byText() iter.Seq2[string, Value] {
	return func(yield func(string, Value) bool) {
		have := make(map[string]struct{}, v.Len())
		for k, value := range v.Pairs() {
			name, ok := k.Text()
			if !ok || value.IsNull() {
				continue
			}
			if _, twice := have[name]; twice {
				k.Errorf("%s twice in %s", Quote(name), v.label())
				continue
			}
			have[name] = struct{}{}
			if !yield(name, value) {
				return
			}
		}
	}
}

func millionths(text string) (uint64, bool) {
	whole, decimals, point := strings.Cut(text, ".")
	if len(decimals) > 6 || point && decimals == "" || len(whole) > 10 ||
		strings.Trim(whole+decimals, "0123456789") != "" {
		return 0, false
	}
	u, err := strconv.ParseUint(whole+decimals+strings.Repeat("0", 6-len(decimals)), 10, 64)
	return u, err == nil
}

// IsWord reports whether the value is the word that is allowed instead of a number.
func (v Value) IsWord() bool {
	n := v.node()
	return n.Kind == yaml.ScalarNode && n.Tag == "!!str" && n.Value == v.typed().Word
}

// whole reads a whole number in any notation of YAML.
func whole(n *yaml.Node) (u uint64, ok bool) {
	// A leading zero means octal in YAML: let the library parse that and the other notations.
	if n.Value[:min(1, len(n.Value))] != "0" {
		if u, err := strconv.ParseUint(n.Value, 10, 64); err == nil {
			return u, true
		}
	}
	ok = decode(n, &u)
	return u, ok
}

// decode lets the library interpret a scalar. The library panics on some odd tags, which is a bug.
func decode(n *yaml.Node, into any) (ok bool) {
	defer func() {
		if recover() != nil {
			ok = false
		}
	}()
	return n.Decode(into) == nil
}
