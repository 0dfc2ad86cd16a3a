package ruleschema

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"unicode"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/ratelimitd/ratelimitd/internal/authoring/ruletest"
	"github.com/ratelimitd/ratelimitd/internal/config/override"
	"github.com/ratelimitd/ratelimitd/internal/config/yamlform"
)

const draft = "http://json-schema.org/draft-07/schema#"

// Tests returns the schema of test files.
func Tests() *jsonschema.Schema {
	s := of(ruletest.Language())
	s.Title = "Tests of rules"
	relateOverride(s.Definitions["override"])
	s.Description = "Unit tests for rule files: what is asked when, and what must come. Run by `ratelimitd test`."
	return s
}

// Overrides returns the schema of files of overrides.
func Overrides() *jsonschema.Schema {
	s := of(override.Language())
	s.Title = "Overrides of ratelimitd"
	s.Description = "Numbers for one customer that replace the rule's. Read by `ratelimitd serve --overrides`."
	relateOverride(s.Definitions["override"])
	return s
}

// relateOverride adds which keys of an override exclude and require each other.
func relateOverride(o *jsonschema.Schema) {
	kinds := []*jsonschema.Schema{has("requests_per_unit"), has("factor")}
	for _, key := range []string{"unlimited", "blocked"} {
		kinds = append(kinds, &jsonschema.Schema{Required: []string{key},
			Properties: map[string]*jsonschema.Schema{key: yes()}})
	}
	o.OneOf = kinds
	o.AllOf = append(o.AllOf, &jsonschema.Schema{If: has("burst"), Then: has("requests_per_unit")})
}

// Write returns a schema as a file.
func Write(s *jsonschema.Schema) ([]byte, error) {
	b, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("write schema: %w", err)
	}
	return append(b, '\n'), nil
}

// of returns the schema of a language, without the relations between its keys.
func of(l yamlform.Language) *jsonschema.Schema {
	s := ref(l.Maps[0].Name)
	top := &jsonschema.Schema{Schema: draft, AllOf: []*jsonschema.Schema{s},
		Definitions: make(map[string]*jsonschema.Schema)}
	for _, m := range l.Maps {
		top.Definitions[m.Name] = object(m)
	}
	return top
}

func ref(name string) *jsonschema.Schema { return &jsonschema.Schema{Ref: "#/definitions/" + name} }

func object(m *yamlform.Map) *jsonschema.Schema {
	s := &jsonschema.Schema{
		Type:                 "object",
		Properties:           make(map[string]*jsonschema.Schema),
		AdditionalProperties: &jsonschema.Schema{Not: &jsonschema.Schema{}},
	}
	for _, k := range m.Keys {
		v := value(k.Type)
		v.Description = capital(k.Doc)
		if k.Default != "" {
			v.Description += ". Default: " + k.Default
		}
		s.Properties[k.Name] = v
		s.PropertyOrder = append(s.PropertyOrder, k.Name)
		if k.Required {
			s.Required = append(s.Required, k.Name)
			// A null means that the key is absent, and an empty text is not allowed.
			s.AllOf = append(s.AllOf, &jsonschema.Schema{Properties: map[string]*jsonschema.Schema{
				k.Name: {Not: &jsonschema.Schema{Enum: []any{nil, ""}}},
			}})
		}
	}
	return s
}

// capital makes the first letter of a sentence upper case.
func capital(s string) string {
	r := []rune(s)
	r[0] = unicode.ToUpper(r[0])
	return string(r)
}

// value returns the schema of a key's value. Null is always allowed: it means that the key is absent.
func value(t yamlform.Type) *jsonschema.Schema {
	s := &jsonschema.Schema{}
	switch t.Kind {
	case yamlform.Anything:
	case yamlform.Text:
		s = text(t)
	case yamlform.TextList:
		s.AnyOf = []*jsonschema.Schema{textList(), null()}
	case yamlform.Texts:
		s.AnyOf = []*jsonschema.Schema{{Type: "array", Items: text(yamlform.Type{Kind: yamlform.Text})}, null()}
	case yamlform.TextOrList:
		s.AnyOf = []*jsonschema.Schema{textList(), text(t)}
	case yamlform.Flag:
		s.AnyOf = boolean()
	case yamlform.FlagOrMap:
		s.AnyOf = append(boolean(), nested(t)...)
	case yamlform.Number:
		s = number(t)
	case yamlform.Decimal:
		above, most := 0.0, float64(t.Most)
		s = &jsonschema.Schema{Types: []string{"number", "null"}, ExclusiveMinimum: &above, Maximum: &most}
	case yamlform.Weights:
		s.AnyOf = weights(t)
	case yamlform.Table:
		s.AnyOf = []*jsonschema.Schema{table(t), null()}
	case yamlform.Choice:
		if s = choice(t.Names); t.AnyCase {
			s = anyCase(t.Names)
		}
	case yamlform.Choices:
		items := enum(t.Names)
		if t.AnyCase {
			items = anyCase(t.Names)
		}
		s.AnyOf = []*jsonschema.Schema{{Type: "array", Items: items, UniqueItems: true}, null()}
	case yamlform.Nested:
		s.AnyOf = nested(t)
	case yamlform.ListOf:
		s.AnyOf = []*jsonschema.Schema{{Type: "array", Items: &jsonschema.Schema{AnyOf: nested(t)}}, null()}
	case yamlform.AnyMap:
		s.Types = []string{"object", "null"}
	}
	return s
}

// weights is one weight, or a map of weights by name and of tables of weights by value.
func weights(t yamlform.Type) []*jsonschema.Schema {
	none, most, one := 0.0, float64(t.Most), 1
	weight := &jsonschema.Schema{Type: "number", Minimum: &none, Maximum: &most}
	return []*jsonschema.Schema{
		whole(t),
		{Type: "object", MinProperties: &one, AdditionalProperties: &jsonschema.Schema{AnyOf: []*jsonschema.Schema{weight,
			table(t), null()}}},
		null(),
	}
}

// table is a map of whole numbers by value.
func table(t yamlform.Type) *jsonschema.Schema {
	one := 1
	return &jsonschema.Schema{Type: "object", MinProperties: &one,
		AdditionalProperties: &jsonschema.Schema{AnyOf: []*jsonschema.Schema{whole(t), null()}}}
}

func whole(t yamlform.Type) *jsonschema.Schema {
	least, most := 1.0, float64(t.Most)
	return &jsonschema.Schema{Type: "integer", Minimum: &least, Maximum: &most}
}

func boolean() []*jsonschema.Schema {
	return []*jsonschema.Schema{{Types: []string{"boolean", "null"}},
		{Enum: append(words(yamlform.FlagWords(true)), words(yamlform.FlagWords(false))...)}}
}

func null() *jsonschema.Schema { return &jsonschema.Schema{Type: "null"} }

// text allows the values that YAML has for a text without quotes. A number with a point is not allowed.
func text(t yamlform.Type) *jsonschema.Schema {
	if t.Pattern == "" {
		return &jsonschema.Schema{Types: []string{"string", "integer", "boolean", "null"}}
	}
	s := &jsonschema.Schema{Types: []string{"string", "null"}, Pattern: "^(" + t.Pattern + ")$"}
	whole := regexp.MustCompile(s.Pattern)
	if whole.MatchString("0") || whole.MatchString("1") {
		s.Types = append(s.Types, "integer")
	}
	if whole.MatchString("true") {
		s.Types = append(s.Types, "boolean")
	}
	return s
}

func textList() *jsonschema.Schema {
	one, none := 1, `^[^*]+$` // exact texts: a * in them would be no wildcard
	return &jsonschema.Schema{Type: "array", MinItems: &one, UniqueItems: true, Items: &jsonschema.Schema{
		Types: []string{"string", "integer", "boolean"}, Pattern: none,
	}}
}

func number(t yamlform.Type) *jsonschema.Schema {
	least, most := float64(t.Least), float64(t.Most)
	n := &jsonschema.Schema{Type: "integer", Minimum: &least, Maximum: &most}
	if t.Word == "" {
		n.Type, n.Types = "", []string{"integer", "null"}
		return n
	}
	return &jsonschema.Schema{AnyOf: []*jsonschema.Schema{n, {Enum: []any{t.Word, nil}}}}
}

func enum(names []string) *jsonschema.Schema {
	s := &jsonschema.Schema{}
	for _, n := range names {
		if n != "" {
			s.Enum = append(s.Enum, n)
		}
	}
	return s
}

// choice allows names as they are written, and null.
func choice(names []string) *jsonschema.Schema {
	s := enum(names)
	s.Enum = append(s.Enum, nil)
	return s
}

// anyCase suggests names as they are written, and allows any case of letters.
func anyCase(names []string) *jsonschema.Schema {
	var pattern strings.Builder
	for _, name := range names {
		if name == "" {
			continue
		}
		if pattern.Len() > 0 {
			pattern.WriteByte('|')
		}
		for _, r := range name {
			if unicode.IsLetter(r) {
				fmt.Fprintf(&pattern, "[%c%c]", unicode.ToLower(r), unicode.ToUpper(r))
			} else {
				pattern.WriteString(regexp.QuoteMeta(string(r)))
			}
		}
	}
	return &jsonschema.Schema{AnyOf: []*jsonschema.Schema{choice(names),
		{Type: "string", Pattern: "^(" + pattern.String() + ")$"}}}
}

// nested is a map, or one of the names that may replace it.
func nested(t yamlform.Type) []*jsonschema.Schema {
	either := []*jsonschema.Schema{ref(t.Of), null()}
	if len(t.Names) > 0 {
		either = append(either, anyCase(t.Names))
	}
	return either
}

// words returns texts as values of a schema.
func words(texts []string) []any {
	all := make([]any, len(texts))
	for i, t := range texts {
		all[i] = t
	}
	return all
}
