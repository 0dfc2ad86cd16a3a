package ruleschema

import (
	"fmt"
	"strings"

	"github.com/ratelimitd/ratelimitd/internal/authoring/accesslog"
	"github.com/ratelimitd/ratelimitd/internal/authoring/ruletest"
	"github.com/ratelimitd/ratelimitd/internal/config"
	"github.com/ratelimitd/ratelimitd/internal/config/override"
	"github.com/ratelimitd/ratelimitd/internal/config/yamlform"
)

// RulesReference returns the tables of keys of rule files, as Markdown.
func RulesReference() string { return tables(config.Rules()) }

// TestsReference returns the tables of keys of test files, as Markdown.
func TestsReference() string { return tables(ruletest.Language()) }

// MappingsReference returns the tables of keys of log mappings, as Markdown.
func MappingsReference() string { return tables(accesslog.Language()) }

// OverridesReference returns the tables of keys of files of overrides, as Markdown.
func OverridesReference() string { return tables(override.Language()) }

func tables(l yamlform.Language) string {
	var b strings.Builder
	for _, m := range l.Maps {
		fmt.Fprintf(&b, "**%s**\n\n| key | value | meaning |\n|---|---|---|\n", capital(m.What))
		for _, k := range m.Keys {
			mark, required := "", ""
			if k.Extension {
				mark = " †"
			}
			if k.Required {
				required = ", required"
			}
			fmt.Fprintf(&b, "| `%s`%s | %s%s | %s |\n", k.Name, mark, cell(typeName(l, k.Type)), required, cell(k.Doc))
		}
		b.WriteByte('\n')
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// cell keeps a text within its cell of a table.
func cell(s string) string { return strings.ReplaceAll(s, "|", `\|`) }

func typeName(l yamlform.Language, t yamlform.Type) string {
	of := t.Of
	for _, m := range l.Maps {
		if m.Name == t.Of {
			of = m.What
		}
	}
	if len(t.Names) > 0 && t.Of != "" {
		of = "map, or " + names(t.Names) + ": " + of
	} else {
		of = "map: " + of
	}
	switch t.Kind {
	case yamlform.Text:
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
		return fmt.Sprintf("1 to %d, or map of names to numbers from 0 to %d, and of keys to maps of values to 1 to %d", t.Most, t.Most, t.Most)
	case yamlform.Choice:
		return names(t.Names)
	case yamlform.Choices:
		return "list of " + names(t.Names)
	case yamlform.Nested:
		return of
	case yamlform.ListOf:
		if len(t.Names) > 0 {
			_, what, _ := strings.Cut(of, ": ")
			return "list of " + names(t.Names) + ", or maps: " + what
		}
		return "list of " + strings.Replace(of, "map: ", "maps: ", 1)
	case yamlform.AnyMap:
		return "map"
	default:
		return t.Form
	}
}

func names(all []string) string {
	quoted := make([]string, 0, len(all))
	for _, n := range all {
		if n != "" {
			quoted = append(quoted, "`"+n+"`")
		}
	}
	return strings.Join(quoted, ", ")
}
