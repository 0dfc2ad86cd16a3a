package rulecheck

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/config"
	"github.com/ratelimitd/ratelimitd/internal/config/override"
	"github.com/ratelimitd/ratelimitd/internal/config/yamlform"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/platform/files"
	"github.com/ratelimitd/ratelimitd/internal/platform/stdin"
)

// Options select the files and findings of a Run.
type Options struct {
	// Paths are directories of rule files, each checked as the service would load it, and files. Files of one directory
	// are checked together.
	Paths   []string
	Merge   bool     // files that give the same domain share it
	Months  bool     // a month is a calendar month, as with USE_CALENDAR_MONTH_RATE_LIMIT
	Disable []string // codes that are left out

	Overrides []string // files of overrides, each checked against the rules of all paths
	Regions   []string // the names of all regions; if empty, any name can be one
}

// Report has the findings of a run.
type Report struct {
	Files    int // number of files checked
	Findings []Finding
}

// Count returns how many findings have a severity.
func (r *Report) Count(s Severity) int {
	n := 0
	for i := range r.Findings {
		if r.Findings[i].Severity == s {
			n++
		}
	}
	return n
}

// Run checks rule files. It fails for a path or a code that does not exist, and for a directory without rule files; a
// file that cannot be read is a finding.
func Run(o Options) (*Report, error) {
	for _, code := range o.Disable {
		if err := knownCode(code); err != nil {
			return nil, err
		}
	}
	sets, err := find(o.Paths)
	if err != nil {
		return nil, err
	}
	r := &Report{}
	for _, s := range sets {
		r.Files += len(s.files) + len(s.unreadable)
		r.Findings = append(r.Findings, s.unreadable...)
		r.Findings = append(r.Findings, s.skipped...)
		r.Findings = append(r.Findings, Check(s.files, &o, time.Now())...)
	}
	for _, name := range o.Overrides {
		r.Files++
		r.Findings = append(r.Findings, overrides(name, sets, &o, r.Count(Error) > 0)...)
	}
	r.Findings = sortFindings(slices.DeleteFunc(r.Findings,
		func(f Finding) bool { return slices.Contains(o.Disable, f.Code) }))
	return r, nil
}

// Check checks the text of rule files that are loaded together. It is a pure function. A file with errors has no
// warnings, because the file may be very different without them. Limits that end are compared with now.
func Check(files []config.File, o *Options, now time.Time) []Finding {
	files = slices.SortedStableFunc(slices.Values(files),
		func(a, b config.File) int { return cmp.Compare(a.Name, b.Name) })
	tree, errs := config.Compile(files, config.CompileOptions{Merge: o.Merge,
		Tree: descriptor.Options{CalendarMonths: o.Months}})
	var all []Finding
	bad := make(map[string]bool)
	tolerated := toleratedFiles(files, errs, o.Merge)
	for _, e := range errs {
		bad[e.File] = true
		fix := ""
		if warnings, loads := tolerated[e.File]; loads {
			fix = tolerance(e, warnings)
		}
		all = append(all, Finding{File: e.File, Line: e.Line, Col: e.Col, Severity: Error, Message: e.Msg, Fix: fix})
	}
	var good []config.File
	for _, f := range files {
		if !bad[f.Name] {
			good = append(good, f)
		}
	}
	c := checker{now: now, regions: o.Regions}
	for _, d := range readDomains(good, tree) {
		c.domain(d)
	}
	byFile := make(map[string][]Finding)
	for _, f := range sortFindings(c.found) {
		byFile[f.File] = append(byFile[f.File], f)
	}
	for _, f := range good {
		all = append(all, together(accept(f.Name, byFile[f.Name], directives(lines(f.Data))))...)
	}
	return quoteSource(sortFindings(all), files)
}

// tolerance describes, for an error in a file that the service loads nevertheless, how the service and
// envoyproxy/ratelimit treat it. warnings are the service's warnings about the file.
func tolerance(e *yamlform.Error, warnings []*yamlform.Error) string {
	text := "the service loads this with a warning, unless RATELIMITD_STRICT_RULES is set"
	reference := yamlform.Reference("")
	for _, w := range warnings {
		if w.Line == e.Line && w.Col == e.Col {
			reference = w.Reference
			break
		}
		reference = cmp.Or(reference, w.Reference) // a YAML error is at the place where it was noticed
	}
	if reference != "" {
		text += "; " + string(reference)
	}
	return text
}

// mostExplained is for how many errors check reads the files a second time.
const mostExplained = 100

// toleratedFiles returns the files with errors that the service loads, with its warnings. It reads rule files as
// envoyproxy/ratelimit does.
func toleratedFiles(files []config.File, errs []*yamlform.Error, merge bool) map[string][]*yamlform.Error {
	if len(errs) == 0 || len(errs) > mostExplained {
		return nil
	}
	return config.Tolerated(files, merge)
}

// overrides checks a file of overrides. Where the rules have errors, it is not compared with them.
func overrides(name string, sets []*set, o *Options, alone bool) []Finding {
	data, err := stdin.ReadFileOf(name, override.MaxFileSize)
	name = stdin.NameOf(name)
	if err != nil {
		return []Finding{{File: name, Severity: Error, Message: "cannot be read: " + err.Error()}}
	}
	placed, errs := override.ReadFile(name, data)
	if !alone {
		of := make(map[*descriptor.Tree][]override.Placed)
		trees := make([]*descriptor.Tree, len(sets))
		for i, s := range sets {
			trees[i], _ = config.Compile(s.files, config.CompileOptions{Merge: o.Merge,
				Tree: descriptor.Options{CalendarMonths: o.Months}})
		}
		for _, p := range placed {
			i := slices.IndexFunc(trees, func(t *descriptor.Tree) bool { return t.Domain(p.Domain) != nil })
			of[trees[max(i, 0)]] = append(of[trees[max(i, 0)]], p)
		}
		for _, tree := range trees {
			_, misfits := override.ResolveAll(tree, of[tree])
			errs = append(errs, misfits...)
		}
	}
	var all []Finding
	for _, e := range errs {
		all = append(all, Finding{File: e.File, Line: e.Line, Col: e.Col, Severity: Error, Message: e.Msg})
	}
	return quoteSource(all, []config.File{{Name: name, Data: data}})
}

// checker collects the findings in files that load.
type checker struct {
	now     time.Time
	regions []string // the names of all regions; if empty, any name can be one
	found   []Finding

	overlaps, covers int // pairs of patterns that were compared
}

func (c *checker) add(s Severity, at yamlform.Position, code, fix, format string, args ...any) {
	c.found = append(c.found, Finding{File: at.File, Line: at.Line, Col: at.Col, Severity: s, Code: code,
		Message: fmt.Sprintf(format, args...), Fix: fix})
}

func (c *checker) domain(d *domain) {
	if len(d.roots) == 0 {
		c.add(Warning, d.at, codeNoLimit, "write descriptors, or remove it",
			"the domain %s has no rules, so all its requests pass", yamlform.Quote(d.name))
	}
	c.characters("the domain", d.name, d.at)
	c.siblings(d.roots)
	d.each(func(n *node) {
		c.siblings(n.children)
		c.value(n)
		c.limits(n)
	})
	c.names(d)
	c.sent(d)
	c.superfluous(d)
	c.leases(d)
	c.delay(d)
	c.buckets(d)
}

// oncePerFile are codes with at most one finding per file: there may be thousands of findings, and more than one would
// not help.
var oncePerFile = []string{codePerSecond, codeWindowUnnamed, codeNewline, codeNameOfWindow}

// together keeps only the first finding of these codes in a file.
func together(all []Finding) []Finding {
	first := make(map[string]int)
	more := make(map[string]int)
	var out []Finding
	for _, f := range all {
		if slices.Contains(oncePerFile, f.Code) {
			if _, met := first[f.Code]; met {
				more[f.Code]++
				continue
			}
			first[f.Code] = len(out)
		}
		out = append(out, f)
	}
	for code, n := range more {
		out[first[code]].Message += fmt.Sprintf(" (and %d more in this file)", n)
	}
	return out
}

// quoteSource adds the line of its file to every finding.
func quoteSource(all []Finding, from []config.File) []Finding {
	texts := make(map[string][]string)
	for _, f := range from {
		if !f.Elsewhere {
			texts[f.Name] = nil
		}
	}
	for i := range all {
		f := &all[i]
		text, known := texts[f.File]
		if text == nil && known && f.Line > 0 {
			at := slices.IndexFunc(from, func(c config.File) bool { return c.Name == f.File })
			text = lines(from[at].Data)
			texts[f.File] = text
		}
		if f.Line >= 1 && f.Line <= len(text) {
			f.Source = text[f.Line-1]
		}
	}
	return all
}

var lineEnds = strings.NewReplacer("\r\n", "\n", "\r", "\n", "\u0085", "\n", "\u2028", "\n", "\u2029", "\n")

// lines splits a text at the line ends of YAML.
func lines(data []byte) []string {
	return strings.Split(lineEnds.Replace(strings.TrimPrefix(string(data), "\ufeff")), "\n")
}

// set is files that are loaded together.
type set struct {
	files      []config.File
	unreadable []Finding
	skipped    []Finding
}

// find reads the files that paths name.
func find(paths []string) ([]*set, error) {
	var sets []*set
	byDirectory := make(map[string]*set)
	seen := make(map[string]bool)
	for _, p := range paths {
		if p == stdin.Name {
			s := &set{}
			s.read(p, false)
			sets = append(sets, s)
			continue
		}
		if p == "" {
			return nil, errors.New("find rule files: the name of a file or a directory is empty")
		}
		info, err := files.Stat(p)
		if err != nil {
			return nil, fmt.Errorf("find rule files: %w", err)
		}
		if info.IsDir() {
			if p = filepath.Clean(p); seen[p] {
				continue
			}
			seen[p] = true
			s, err := directory(p)
			if err != nil {
				return nil, err
			}
			sets = append(sets, s)
			continue
		}
		if p = filepath.Clean(p); seen[p] {
			continue
		}
		seen[p] = true
		s := byDirectory[filepath.Dir(p)]
		if s == nil {
			s = &set{}
			byDirectory[filepath.Dir(p)] = s
			sets = append(sets, s)
		}
		info, err = files.Lstat(p)
		s.read(p, err == nil && info.Mode()&os.ModeSymlink != 0 && files.Leaves(filepath.Dir(p), p))
	}
	return sets, nil
}

// directory reads the files of a directory that the service would read.
func directory(dir string) (*set, error) {
	r, err := config.NewDirectory(config.Options{Dir: dir, Logger: slog.New(slog.DiscardHandler)}).Load()
	if err != nil {
		return nil, err
	}
	s := &set{}
	unreadable := make(map[string]string, len(r.Unreadable))
	for _, e := range r.Unreadable {
		unreadable[e.File] = e.Msg
	}
	for _, f := range r.Files {
		name := filepath.Join(dir, filepath.FromSlash(f.Name))
		if msg, is := unreadable[name]; is {
			s.cannot(name, msg)
			continue
		}
		s.read(name, files.Leaves(dir, name))
	}
	for _, f := range r.Skipped {
		found := Finding{File: filepath.Join(dir, filepath.FromSlash(f.Name)), Line: 1, Col: 1, Severity: Info,
			Code: codeSkipped, Message: "this file is not loaded: " + f.Why}
		switch {
		case f.Rules:
			found.Severity, found.Message, found.Fix = Warning, "this file has a domain and is not loaded: "+f.Why,
				"give it another name, or remove it"
		case f.Tests:
			continue
		}
		if data, err := stdin.ReadFile(found.File); err == nil && !files.Leaves(dir, found.File) {
			found.Source = lines(data)[0]
		}
		s.skipped = append(s.skipped, found)
	}
	if len(r.Files) == 0 {
		return nil, fmt.Errorf("find rule files: there is none in %s", dir)
	}
	return s, nil
}

// read reads a file. elsewhere is set if its name is a link that leads out of the directory.
func (s *set) read(name string, elsewhere bool) {
	data, err := stdin.ReadFile(name)
	name = stdin.NameOf(name)
	if err != nil {
		s.cannot(name, "cannot be read: "+err.Error())
		return
	}
	s.files = append(s.files, config.File{Name: name, Data: data, Elsewhere: elsewhere})
}

func (s *set) cannot(name, msg string) {
	s.unreadable = append(s.unreadable, Finding{File: name, Severity: Error, Message: msg})
}

// sorted returns the keys of a map in order.
func sorted[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
