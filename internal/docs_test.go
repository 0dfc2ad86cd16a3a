package internal_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode"
)

// document is a Markdown file: its links to other files of the repository, and its headings as anchors.
type document struct {
	links   []string
	anchors map[string]bool
}

var (
	linkPattern    = regexp.MustCompile(`\]\(([^()\s]+)\)`)
	headingPattern = regexp.MustCompile(`^#{1,6} (.+)$`)
)

func parseDocument(text string) document {
	d := document{anchors: make(map[string]bool)}
	code := false
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		if strings.HasPrefix(strings.TrimSpace(line), "```") {
			code = !code
		}
		if code {
			continue
		}
		if m := headingPattern.FindStringSubmatch(line); m != nil {
			d.anchors[anchor(m[1])] = true
		}
		for _, m := range linkPattern.FindAllStringSubmatch(line, -1) {
			if !strings.Contains(m[1], "://") {
				d.links = append(d.links, m[1])
			}
		}
	}
	return d
}

// anchor returns the anchor that GitHub gives a heading.
func anchor(heading string) string {
	var b strings.Builder
	for _, r := range strings.ToLower(heading) {
		switch {
		case unicode.IsLetter(r), unicode.IsDigit(r), r == '-', r == '_':
			b.WriteRune(r)
		case r == ' ':
			b.WriteByte('-')
		}
	}
	return b.String()
}

// documents reads every Markdown file of the repository, by path.
func documents(t *testing.T) map[string]document {
	t.Helper()
	all := make(map[string]document)
	err := filepath.WalkDir("..", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && name != ".." && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata" || d.Name() == "node_modules") {
			return filepath.SkipDir
		}
		if filepath.Ext(name) != ".md" {
			return nil
		}
		text, err := os.ReadFile(name)
		if strings.Contains("\n"+string(text), "\n<<<<<<< ") {
			t.Errorf("%s has a conflict of a merge in it", name)
		}
		all[name] = parseDocument(string(text))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < 20 {
		t.Fatalf("found only %d documents", len(all))
	}
	return all
}

// Every link leads to a file that exists, and to a heading in it.
func TestLinks(t *testing.T) {
	all := documents(t)
	links := 0
	for name, d := range all {
		for _, link := range d.links {
			links++
			path, fragment, _ := strings.Cut(link, "#")
			target := name
			if path != "" {
				target = filepath.Join(filepath.Dir(name), filepath.FromSlash(path))
			}
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s links to %s: %v", name, link, err)
				continue
			}
			if other, parsed := all[target]; fragment != "" && parsed && !other.anchors[fragment] {
				t.Errorf("%s links to %s: there is no such heading", name, link)
			}
		}
	}
	if links < 100 {
		t.Errorf("found only %d links", links)
	}
}

// Every decision is in the list of decisions.
func TestDecisionsAreListed(t *testing.T) {
	all := documents(t)
	const dir = "../docs/understand/decisions"
	listed := strings.Join(all[filepath.Join(dir, "README.md")].links, " ")
	pages := 0
	for name := range all {
		if filepath.Dir(name) == filepath.FromSlash(dir) && filepath.Base(name) != "README.md" {
			pages++
			if !strings.Contains(listed, filepath.Base(name)) {
				t.Errorf("%s is not in the list of decisions", name)
			}
		}
	}
	if pages == 0 {
		t.Error("there are no decisions")
	}
}

// The documents for contributors name every package, and only paths that exist.
func TestArchitectureNamesPackages(t *testing.T) {
	paths := regexp.MustCompile(`\b(?:middleware|internal|cmd|docs|config|workshop|deploy)/[\w./-]*\w`)
	named := make(map[string]bool)
	for _, name := range []string{"../docs/contributing/packages.md", "../CONTRIBUTING.md"} {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range paths.FindAllString(string(text), -1) {
			named[path] = true
			if _, err := os.Stat(filepath.Join("..", filepath.FromSlash(path))); err != nil && !strings.Contains(path, "NAME") {
				t.Errorf("%s names %s: %v", name, path, err)
			}
		}
	}
	for _, p := range packages(t) {
		if strings.HasPrefix(p.dir, "internal/") && hasCode(p) && !named[p.dir] {
			t.Errorf("docs/contributing/packages.md does not name the package %s", p.dir)
		}
	}
}

// Every page of docs/ is in the list of pages, except the decisions, which have a separate list.
func TestPagesAreListed(t *testing.T) {
	all := documents(t)
	const dir = "../docs"
	listed := make(map[string]bool)
	for _, link := range all[filepath.Join(dir, "README.md")].links {
		listed[filepath.Join(dir, filepath.FromSlash(link))] = true
	}
	decisions := filepath.Join(dir, "understand", "decisions", "README.md")
	for name := range all {
		inside := strings.HasPrefix(name, filepath.FromSlash(dir+"/"))
		if inside && name != filepath.Join(dir, "README.md") && (filepath.Dir(name) != filepath.Dir(decisions) || name == decisions) && !listed[name] {
			t.Errorf("%s is not in docs/README.md", name)
		}
	}
}

// Every text that names a page of docs/, such as a help text, a comment or an alert, names one that exists.
func TestNamedPagesExist(t *testing.T) {
	page := regexp.MustCompile(`\b(?:blob/master/)?docs/(?:[a-z0-9-]+/)*[A-Za-z0-9-]+\.md\b`)
	named := 0
	err := filepath.WalkDir("..", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if base := d.Name(); name != ".." && (strings.HasPrefix(base, ".") && base != ".github" && base != ".ci" || base == "testdata" || base == "node_modules") {
				return filepath.SkipDir
			}
			return nil
		}
		info, err := d.Info()
		if err != nil || !info.Mode().IsRegular() || info.Size() > 1<<20 {
			return err
		}
		text, err := os.ReadFile(name)
		for _, path := range page.FindAllString(string(text), -1) {
			if strings.HasPrefix(path, "blob/master/") {
				continue // another project's path, because this one's branch is main
			}
			named++
			if _, err := os.Stat(filepath.Join("..", filepath.FromSlash(path))); err != nil {
				t.Errorf("%s names %s: %v", name, path, err)
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if named < 100 {
		t.Errorf("found only %d names of pages", named)
	}
}
