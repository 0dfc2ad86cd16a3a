package ruletest

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"

	"github.com/ratelimitd/ratelimitd/internal/config"
	"github.com/ratelimitd/ratelimitd/internal/config/override"
	"github.com/ratelimitd/ratelimitd/internal/config/yamlform"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/platform/files"
	"github.com/ratelimitd/ratelimitd/internal/platform/stdin"
)

// IsTestFile reports whether a file of that name holds tests: it ends in _test.yaml or _test.yml.
func IsTestFile(name string) bool {
	return strings.HasSuffix(name, "_test.yaml") || strings.HasSuffix(name, "_test.yml")
}

// Find returns the test files that paths name, sorted. A directory means all test files below it, except in directories
// whose names start with a dot; - means the standard input. untested are the directories without test files. Find fails
// for a path that cannot be read, and for a file that is not a test file.
func Find(paths []string) (found, untested []string, err error) {
	for _, p := range paths {
		if p == stdin.Name {
			found = append(found, p)
			continue
		}
		if p == "" {
			return nil, nil, errors.New("find tests: the name of a file or a directory is empty")
		}
		info, err := files.Stat(p)
		if err != nil {
			return nil, nil, fmt.Errorf("find tests: %w", err)
		}
		if !info.IsDir() {
			if !IsTestFile(p) {
				return nil, nil, noTestFile(p)
			}
			found = append(found, filepath.Clean(p))
			continue
		}
		below, err := files.Within(p, func() ([]string, error) { return testFiles(p) })
		if err != nil {
			return nil, nil, fmt.Errorf("find tests in %s: %w", p, err)
		}
		if len(below) == 0 {
			untested = append(untested, p)
		}
		found = append(found, below...)
	}
	slices.Sort(found)
	return slices.Compact(found), untested, nil
}

// testFiles returns the test files below a directory.
func testFiles(dir string) (found []string, err error) {
	err = filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case name != dir && strings.HasPrefix(d.Name(), "."):
			if d.IsDir() {
				return filepath.SkipDir
			}
		case !d.IsDir() && IsTestFile(name):
			found = append(found, filepath.Clean(name))
		}
		return nil
	})
	return found, err
}

func noTestFile(name string) error {
	ext := filepath.Ext(name)
	beside := strings.TrimSuffix(name, ext) + "_test" + ext
	if _, err := files.Stat(beside); err == nil && IsTestFile(beside) {
		return fmt.Errorf("%s is not a test file: did you mean %s?", name, beside)
	}
	return fmt.Errorf("%s is not a test file: their names end in _test.yaml", name)
}

// RuleFiles returns the rule files below a directory, as the service would find them.
func RuleFiles(dir string) ([]string, error) {
	r, err := config.NewDirectory(config.Options{Dir: dir, Logger: slog.New(slog.DiscardHandler)}).Load()
	if err != nil {
		return nil, err
	}
	var names []string
	for _, f := range r.Files {
		names = append(names, filepath.Join(dir, filepath.FromSlash(f.Name)))
	}
	return names, nil
}

// suite is a test file with its rule files. It does not change after loading.
type suite struct {
	*testFile
	rules []config.File
}

// load reads a test file and its rule files.
func load(name string) (*suite, []*yamlform.Error) {
	data, err := stdin.ReadFile(name)
	name = stdin.NameOf(name)
	if err != nil {
		return nil, []*yamlform.Error{{File: name, Msg: "cannot be read: " + err.Error()}}
	}
	f, errs := parse(name, data)
	if len(errs) > 0 {
		return nil, errs
	}
	refs := f.rules
	if len(refs) == 0 {
		if !IsTestFile(name) {
			return nil, []*yamlform.Error{{File: name,
				Msg: "which rules? write `rules: FILE`, or give the file a name that ends in _test.yaml"}}
		}
		ext := filepath.Ext(name)
		base := strings.TrimSuffix(filepath.Base(name), "_test"+ext)
		refs = []ruleRef{{base + ext, yamlform.Position{Line: 1, Col: 1}}}
	}
	s := &suite{testFile: f}
	for _, ref := range refs {
		path := filepath.FromSlash(ref.name)
		if !filepath.IsAbs(path) {
			path = filepath.Join(filepath.Dir(name), path)
		}
		rules, err := stdin.ReadFile(path)
		if err != nil {
			hint := ""
			if len(f.rules) == 0 {
				hint = "; if the rules are elsewhere, write `rules: FILE`"
			}
			errs = append(errs, &yamlform.Error{File: name, Line: ref.at.Line, Col: ref.at.Col,
				Msg: fmt.Sprintf("the rules cannot be read: %v%s", err, hint)})
			continue
		}
		s.rules = append(s.rules, config.File{Name: path, Data: rules})
	}
	if len(errs) > 0 {
		return nil, errs
	}
	return s, nil
}

// compileFor compiles the suite's rules.
func (s *suite) compileFor(o descriptor.Options) (*descriptor.Tree, []*yamlform.Error) {
	return config.Compile(s.rules, config.CompileOptions{Merge: s.merge, Lenient: true, Tree: o})
}

// compile compiles the suite's rules and returns the domain of requests that name none: the only one there is. It
// rejects requests for domains without rules: they would always pass. It also rejects overrides that do not fit the
// rules.
func (s *suite) compile() (tree *descriptor.Tree, domain string, errs []*yamlform.Error) {
	if tree, errs = s.compileFor(descriptor.Options{}); len(errs) > 0 {
		return nil, "", errs
	}
	var domains []string
	for _, r := range tree.Rules { // the rules of a domain follow each other
		if len(domains) == 0 || domains[len(domains)-1] != r.Domain {
			domains = append(domains, r.Domain)
		}
	}
	if len(domains) == 1 {
		domain = domains[0]
	}
	reported := make(map[string]bool)
	for _, c := range s.cases {
		for _, st := range c.steps {
			name := cmp.Or(st.request.Domain, domain)
			if reported[name] || tree.Domain(name) != nil {
				continue
			}
			reported[name] = true
			e := &yamlform.Error{File: s.name, Line: st.at.Line, Col: st.at.Col}
			switch near := yamlform.Closest(name, domains); {
			case name == "" && len(domains) == 0:
				e.Msg = "there are no rules to test in " + s.rules[0].Name
			case name == "":
				e.Msg = fmt.Sprintf("which domain? the rules are of %s: write `domain` at the top, in the case or in the step",
					yamlform.List(domains, "and"))
			case near != "":
				e.Msg = fmt.Sprintf("no rules of a domain %s: did you mean `%s`?", yamlform.Quote(name), near)
			default:
				e.Msg = fmt.Sprintf("no rules of a domain %s: the rules are of %s", yamlform.Quote(name),
					yamlform.List(domains, "and"))
			}
			errs = append(errs, e)
		}
	}
	check := func(all []override.Placed) {
		_, misfits := override.ResolveAll(tree, all)
		errs = append(errs, misfits...)
	}
	check(s.overrides)
	for _, c := range s.cases {
		check(c.overrides)
	}
	return tree, domain, errs
}
