package ruleschema

import (
	"fmt"
	"slices"
	"strings"

	"github.com/ratelimitd/ratelimitd/internal/authoring/accesslog"
	"github.com/ratelimitd/ratelimitd/internal/authoring/ruletest"
	"github.com/ratelimitd/ratelimitd/internal/config"
	"github.com/ratelimitd/ratelimitd/internal/config/override"
	"github.com/ratelimitd/ratelimitd/internal/config/yamlform"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// RulesReference returns the tables of keys of rule files, as Markdown.
func RulesReference() string { return tables(config.Rules()) }

// TestsReference returns the tables of keys of test files, as Markdown. The page of overrides has theirs.
func TestsReference() string {
	return tables(ruletest.Language(), override.Language().Maps...)
}

// MappingsReference returns the tables of keys of log mappings, as Markdown.
func MappingsReference() string { return tables(accesslog.Language()) }

// OverridesReference returns the tables of keys of files of overrides, as Markdown.
func OverridesReference() string { return tables(override.Language()) }

// tables writes a table for each map of the language, except those that the page of overrides shows. Rows that an
// earlier table shows too are named, not repeated.
func tables(l yamlform.Language, elsewhere ...*yamlform.Map) string {
	var b strings.Builder
	for i, m := range l.Maps {
		if slices.ContainsFunc(elsewhere, func(o *yamlform.Map) bool { return o.What == m.What }) {
			continue
		}
		fmt.Fprintf(&b, "### %s\n\n", heading(m.What))
		var rows []string
		earlier, repeated := mostRepeated(l, m, l.Maps[:i])
		for _, k := range m.Keys {
			if !slices.Contains(repeated, k.Name) {
				rows = append(rows, row(l, k))
			}
		}
		if len(repeated) > 0 {
			fmt.Fprintf(&b, "`%s`: as in %s.\n\n", strings.Join(repeated, "`, `"), link(earlier.What))
		}
		if k := m.Keys[0]; len(m.Keys) == 1 { // no table for one key
			fmt.Fprintf(&b, "%s (%s): %s.\n\n", nameOf(l, k), valueOf(l, k), k.Doc)
		} else if len(rows) > 0 {
			b.WriteString("| key | value | meaning |\n|---|---|---|\n" + strings.Join(rows, "") + "\n")
		}
	}
	text := strings.TrimSuffix(b.String(), "\n")
	for _, o := range elsewhere {
		text = strings.ReplaceAll(text, "("+anchor(o.What)+")", "(../do/overrides.md"+anchor(o.What)+")")
	}
	return text
}

// heading is the heading of the table of a map.
func heading(what string) string {
	if strings.HasPrefix(what, "the top ") || strings.HasPrefix(what, "what ") {
		return capital(what)
	}
	return "Keys of " + what
}

// link leads to the table of a map.
func link(what string) string { return "[" + what + "](" + anchor(what) + ")" }

func anchor(what string) string {
	return "#" + strings.ReplaceAll(strings.ReplaceAll(strings.ToLower(heading(what)), "`", ""), " ", "-")
}

// mostRepeated returns the map that shares most rows with m, and the keys of these rows. A few rows are not worth a
// reference.
func mostRepeated(l yamlform.Language, m *yamlform.Map, earlier []*yamlform.Map) (most *yamlform.Map, repeated []string) {
	const few = 3
	for _, e := range earlier {
		var same []string
		for _, k := range m.Keys {
			if slices.ContainsFunc(e.Keys, func(o yamlform.Key) bool { return row(l, o) == row(l, k) }) {
				same = append(same, k.Name)
			}
		}
		if len(same) >= few && len(same) > len(repeated) {
			most, repeated = e, same
		}
	}
	return most, repeated
}

// row is the row of a key in its table.
func row(l yamlform.Language, k yamlform.Key) string {
	return fmt.Sprintf("| %s | %s | %s |\n", nameOf(l, k), cell(valueOf(l, k)), cell(k.Doc))
}

// nameOf is the key, in bold if envoyproxy/ratelimit has it.
func nameOf(l yamlform.Language, k yamlform.Key) string {
	if !k.Extension && extends(l) {
		return "**`" + k.Name + "`**"
	}
	return "`" + k.Name + "`"
}

// valueOf says which values a key may have, with the default: marked among the choices, or after them.
func valueOf(l yamlform.Language, k yamlform.Key) string {
	values := typeName(l, k.Type)
	switch {
	case k.Required:
		return values + ", required"
	case k.Default == "":
		return values
	case k.Type.Kind == yamlform.Choice && slices.Contains(k.Type.Names, strings.Trim(k.Default, "`")):
		return strings.Replace(values, k.Default, k.Default+" (default)", 1)
	case strings.HasSuffix(k.Type.Form, ")"):
		return values + ", default: " + k.Default
	}
	return values + " (default: " + k.Default + ")"
}

// extends reports whether a language has the keys of envoyproxy/ratelimit, and more.
func extends(l yamlform.Language) bool {
	return slices.ContainsFunc(l.Maps, func(m *yamlform.Map) bool {
		return slices.ContainsFunc(m.Keys, func(k yamlform.Key) bool { return k.Extension })
	})
}

// cell keeps a text within its cell of a table.
func cell(s string) string { return strings.ReplaceAll(s, "|", `\|`) }

func typeName(l yamlform.Language, t yamlform.Type) string {
	of := t.Of
	for _, m := range l.Maps {
		if m.Name == t.Of {
			of = link(m.What)
		}
	}
	switch t.Kind {
	case yamlform.Text:
		if strings.HasPrefix(t.Form, "a duration ") { // the pages explain it
			if _, other, ok := strings.Cut(t.Form, ", or "); ok {
				return "duration, or " + other
			}
			return "duration"
		}
		if t.Form != "" {
			return t.Form
		}
		return "text"
	case yamlform.TextList, yamlform.Texts:
		return "list of text"
	case yamlform.TextOrList:
		return "text, or a list of text"
	case yamlform.Flag:
		return "bool"
	case yamlform.FlagOrMap:
		return "bool, or " + of
	case yamlform.Number:
		if t.Word != "" {
			return fmt.Sprintf("%d to %d, or `%s`", t.Least, t.Most, t.Word)
		}
		return fmt.Sprintf("%d to %d", t.Least, t.Most)
	case yamlform.Decimal:
		return fmt.Sprintf("above 0, at most %d", t.Most)
	case yamlform.Weights:
		return fmt.Sprintf("1 to %d, a table of these, or weights of 0 to %d", t.Most, t.Most)
	case yamlform.Table:
		return fmt.Sprintf("map of values to 1 to %d", t.Most)
	case yamlform.Choice:
		return names(t.Names)
	case yamlform.Choices:
		return "list of " + names(t.Names)
	case yamlform.Nested:
		if len(t.Names) > 0 {
			return names(t.Names) + ", or " + of
		}
		return of
	case yamlform.ListOf:
		if len(t.Names) > 0 {
			return "list of " + names(t.Names) + ", or " + of
		}
		return "list: " + of
	case yamlform.AnyMap:
		return "map"
	default:
		return t.Form
	}
}

func names(all []string) string {
	if slices.Equal(all, descriptor.WeekdayNames) {
		return fmt.Sprintf("`%s`, `%s`, … `%s`", all[0], all[1], all[len(all)-1])
	}
	quoted := make([]string, 0, len(all))
	for _, n := range all {
		if n != "" {
			quoted = append(quoted, "`"+n+"`")
		}
	}
	return strings.Join(quoted, ", ")
}
