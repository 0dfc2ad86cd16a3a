package descriptor

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write what the scripts in testdata answer now")

// TestMatchScripts runs testdata/match. A script gives the rules of domain d, one level per line and indented by tabs,
//
//	key=value limit share     no value: matches every value; "limit" gives the level a rule
//	key=a,b values            one of "values", "cidr" and "regex" says that the value is a list, a network, an expression
//
// and then asks: "? key=value key=value" finds a rule, or none. The line below is the answer: the rule's levels and the
// key of its counter. Words that hold a space or are empty after the = are written as Go strings.
func TestMatchScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/match/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatal("no scripts:", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			script, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got, err := runScript(string(script))
			if err != nil {
				t.Fatal(err)
			}
			if *update {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			if diff := cmp.Diff(strings.Split(string(script), "\n"), strings.Split(got, "\n")); diff != "" && !*update {
				t.Error("answers differ (-want +got):\n", diff)
			}
		})
	}
}

// runScript returns the script with the answers of now.
func runScript(script string) (string, error) {
	var out []string
	var spec DomainSpec
	var domain *Domain
	var open []*[]NodeSpec // the children of each level above
	for i, line := range strings.Split(script, "\n") {
		switch {
		case strings.HasPrefix(line, "= "): // an old answer
			continue
		case line == "" || strings.HasPrefix(line, "#"):
			out = append(out, line)
		case strings.HasPrefix(line, "?"):
			out = append(out, line)
			if domain == nil {
				tree, err := Compile([]DomainSpec{spec}, Options{})
				if err != nil {
					return "", err
				}
				domain = tree.Domain("d")
			}
			entries, err := parseEntries(line[1:])
			if err != nil {
				return "", fmt.Errorf("line %d: %w", i+1, err)
			}
			out = append(out, "= "+answer(domain, entries))
		case domain != nil:
			return "", fmt.Errorf("line %d: a rule after a question", i+1)
		default:
			out = append(out, line)
			if open == nil {
				spec.Name = "d"
				open = []*[]NodeSpec{&spec.Children}
			}
			depth := len(line) - len(strings.TrimLeft(line, "\t"))
			if depth >= len(open) {
				return "", fmt.Errorf("line %d: indented below nothing", i+1)
			}
			n, err := parseLevel(line[depth:])
			if err != nil {
				return "", fmt.Errorf("line %d: %w", i+1, err)
			}
			siblings := open[depth]
			*siblings = append(*siblings, n)
			open = append(open[:depth+1], &(*siblings)[len(*siblings)-1].Children)
		}
	}
	return strings.Join(out, "\n"), nil
}

func parseLevel(line string) (NodeSpec, error) {
	words := strings.Fields(line)
	e, err := parseEntry(words[0])
	if err != nil {
		return NodeSpec{}, err
	}
	n := NodeSpec{Key: e.Key, Value: e.Value}
	for _, flag := range words[1:] {
		switch flag {
		case "limit":
			n.Rule = perMinute(1)
		case "share":
			n.ShareThreshold = true
		case "values":
			n.Kind, n.Value, n.Values = MatchValues, "", strings.Split(n.Value, ",")
		case "cidr":
			n.Kind = MatchCIDR
		case "regex":
			n.Kind = MatchRegex
		default:
			return NodeSpec{}, fmt.Errorf("unknown flag %q", flag)
		}
	}
	return n, nil
}

func parseEntries(text string) ([]Entry, error) {
	var entries []Entry
	for _, word := range strings.Fields(text) {
		e, err := parseEntry(word)
		if err != nil {
			return nil, err
		}
		entries = append(entries, e)
	}
	return entries, nil
}

// parseEntry reads key=value, split at the first equals sign; each side may be a Go string.
func parseEntry(word string) (Entry, error) {
	key, value, err := cutQuoted(word)
	if err != nil {
		return Entry{}, err
	}
	if strings.HasPrefix(value, `"`) {
		value, err = strconv.Unquote(value)
	}
	return Entry{key, value}, err
}

func cutQuoted(word string) (before, after string, err error) {
	if !strings.HasPrefix(word, `"`) {
		before, after, _ = strings.Cut(word, "=")
		return before, after, nil
	}
	quoted, err := strconv.QuotedPrefix(word)
	if err != nil {
		return "", "", fmt.Errorf("read %s: %w", word, err)
	}
	before, err = strconv.Unquote(quoted)
	return before, strings.TrimPrefix(word[len(quoted):], "="), err
}

func answer(d *Domain, entries []Entry) string {
	r := d.Match(entries)
	if r == nil {
		return "none"
	}
	levels := make([]string, len(r.Levels))
	for i, l := range r.Levels {
		levels[i] = l.Key
		if l.Value != "" {
			levels[i] += "=" + l.Value
		}
		if l.Kind == MatchValues || l.Kind == MatchCIDR || l.Kind == MatchRegex {
			levels[i] += " " + l.Kind.String()
		}
	}
	key := string(KeyBuilder{}.AppendKey(nil, d.Name, r.CountedEntries(entries), r, &r.Limits[0]))
	if !utf8.ValidString(key) || strings.ContainsAny(key, "\n") {
		key = strconv.Quote(key)
	}
	return strings.Join(levels, " / ") + "   counts in " + key
}
