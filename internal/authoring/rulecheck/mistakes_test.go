package rulecheck

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the generated parts of these documents anew")

const (
	mistakes  = "testdata/mistakes"
	guide     = "../../../docs/do/checking-rules.md"
	reference = "../../../docs/reference/check-codes.md"
	listing   = "testdata/mistakes.md"
)

// mistake is a rule file, or a directory of them, with one typical mistake.
type mistake struct {
	name  string
	title string
	info  bool   // whether --info is needed to see it
	said  string // the output of --output plain, without the directory
	found []Finding
}

func typicalMistakes(t *testing.T) []mistake {
	t.Helper()
	entries, err := os.ReadDir(mistakes)
	if err != nil {
		t.Fatal(err)
	}
	var all []mistake
	for _, e := range entries {
		path := filepath.Join(mistakes, e.Name())
		first, prefix := path, mistakes+"/"
		if e.IsDir() {
			files, err := filepath.Glob(path + "/*")
			if err != nil || len(files) == 0 {
				t.Fatal(path, err)
			}
			first, prefix = files[0], path+"/"
		}
		text, err := os.ReadFile(first)
		if err != nil {
			t.Fatal(err)
		}
		title, _, _ := strings.Cut(string(text), "\n")
		r, err := Run(Options{Paths: []string{path}, Regions: []string{"eu", "us"}})
		if err != nil {
			t.Fatal(err)
		}
		m := mistake{name: e.Name(), title: strings.TrimPrefix(title, "# "), found: r.Findings}
		m.info = r.Count(Error)+r.Count(Warning) == 0
		var out bytes.Buffer
		if err := WritePlain(&out, r, m.info); err != nil {
			t.Fatal(err)
		}
		m.said = strings.ReplaceAll(out.String(), prefix, "")
		if m.said == "" {
			t.Errorf("%s: nothing is said", m.name)
		}
		all = append(all, m)
	}
	return all
}

// The documents show the output of check for each typical mistake, and every code with the first mistake that it finds.
func TestDocuments(t *testing.T) {
	all := typicalMistakes(t)
	if len(all) < 30 {
		t.Fatalf("only %d mistakes", len(all))
	}
	var table strings.Builder
	table.WriteString("| | mistake | what `check` says |\n|---|---|---|\n")
	seen := make(map[string]Severity)
	example := make(map[string]string)
	for i, m := range all {
		var lines []string
		for _, line := range strings.Split(strings.TrimSpace(m.said), "\n") {
			line = strings.TrimPrefix(line, m.name+":")
			lines = append(lines, cell(line))
		}
		flag := ""
		if m.info {
			flag = " (with `--info`)"
		}
		fmt.Fprintf(&table, "| [%d](mistakes/%s) | %s%s | %s |\n", i+1, m.name, m.title, flag, strings.Join(lines, "<br>"))
		for _, f := range m.found {
			if f.Code == "" {
				continue // an error
			}
			if worse := seen[f.Code]; worse == "" || worse == Info {
				if worse != f.Severity {
					example[f.Code] = m.name
				}
				seen[f.Code] = f.Severity
			}
		}
	}
	var codes strings.Builder
	codes.WriteString("| code | what it finds |\n|---|---|\n")
	for _, c := range Codes {
		severity := seen[c.Name]
		if severity == "" {
			t.Errorf("no mistake shows %s", c.Name)
		}
		what := c.What
		if severity != Warning {
			what = fmt.Sprintf("(%s) %s", severity, what)
		}
		fmt.Fprintf(&codes, "| [`%s`](../../internal/authoring/rulecheck/%s/%s) | %s |\n", c.Name, mistakes, example[c.Name], what)
		delete(seen, c.Name)
	}
	for code := range seen {
		t.Errorf("%s is not among the codes", code)
	}
	sample, err := Run(Options{Paths: []string{mistakes + "/29-a-star-in-the-middle-of.yaml"}})
	if err != nil {
		t.Fatal(err)
	}
	sample.Findings[1].File = "rules/shop.yaml"
	sample.Findings = sample.Findings[1:]
	var text bytes.Buffer
	if err := WriteText(&text, sample, TextOptions{}); err != nil {
		t.Fatal(err)
	}

	compareParts(t, guide, map[string]string{"sample": "```\n" + text.String() + "```\n"})
	compareParts(t, reference, map[string]string{"codes": codes.String()})
	compareParts(t, listing, map[string]string{"mistakes": table.String()})
}

// compareParts compares generated parts of a document, by name, with the expected ones; with -update it writes them.
func compareParts(t *testing.T, document string, parts map[string]string) {
	t.Helper()
	data, err := os.ReadFile(document)
	if err != nil {
		t.Fatal(err)
	}
	want := string(data)
	for name, part := range parts {
		begin, end := "<!-- begin "+name+" -->\n", "<!-- end "+name+" -->"
		before, rest, ok := strings.Cut(want, begin)
		_, after, closed := strings.Cut(rest, end)
		if !ok || !closed {
			t.Fatalf("%s has no part %s", document, name)
		}
		want = before + begin + part + end + after
	}
	if *update {
		if err := os.WriteFile(document, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if want != string(data) {
		t.Errorf("%s is not what check says: run go test ./internal/authoring/rulecheck -run TestDocuments -update, and look at the difference", document)
	}
}

// cell formats a line as code in a Markdown table. A line with backquotes needs two around it.
func cell(s string) string {
	s = strings.ReplaceAll(s, "|", `\|`)
	if strings.Contains(s, "`") {
		return "`` " + s + " ``"
	}
	return "`" + s + "`"
}

// Each finding has a position: a line and a column that exist in the file.
func TestMistakesHaveAPlace(t *testing.T) {
	for _, m := range typicalMistakes(t) {
		for _, f := range m.found {
			if f.Line < 1 || f.Col < 1 || f.Source == "" || f.Col > len([]rune(f.Source))+1 {
				t.Errorf("%s: %+v", m.name, f)
			}
		}
	}
}

// The problem matcher of the documentation reads every line that --output plain writes.
func TestProblemMatcher(t *testing.T) {
	text, err := os.ReadFile(guide)
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "```json\n")
	block, _, _ := strings.Cut(rest, "```")
	var task struct {
		ProblemMatcher struct {
			Pattern struct {
				Regexp                                      string
				File, Line, Column, Severity, Message, Code int
			}
		}
	}
	if err := json.Unmarshal([]byte(block), &task); err != nil {
		t.Fatal(err)
	}
	p := task.ProblemMatcher.Pattern
	pattern, err := regexp.Compile(p.Regexp)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	var all []Finding
	for _, m := range typicalMistakes(t) {
		r, err := Run(Options{Paths: []string{filepath.Join(mistakes, m.name)}, Regions: []string{"eu", "us"}})
		if err != nil {
			t.Fatal(err)
		}
		if err := WritePlain(&out, r, true); err != nil {
			t.Fatal(err)
		}
		all = append(all, r.Findings...)
	}
	lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
	if len(lines) < 30 || len(lines) != len(all) {
		t.Fatalf("%d lines of %d findings", len(lines), len(all))
	}
	for i, line := range lines {
		f, m := all[i], pattern.FindStringSubmatch(line)
		if m == nil {
			t.Errorf("the problem matcher does not read\n%s", line)
			continue
		}
		got := []string{m[p.File], m[p.Line], m[p.Column], m[p.Severity], m[p.Code]}
		if want := []string{f.File, fmt.Sprint(f.Line), fmt.Sprint(f.Col), string(f.Severity), f.Code}; !slices.Equal(got, want) || !strings.HasPrefix(m[p.Message], f.Message) {
			t.Errorf("the problem matcher reads %q, want %q, in\n%s", got, want, line)
		}
	}
}
