package config

import (
	"cmp"
	"runtime"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/ratelimitd/ratelimitd/internal/config/yamlform"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// File is one rule file.
type File struct {
	Name string // is part of errors and of the position of every rule
	Data []byte

	// Elsewhere is set if the file is a link to one outside of the rule directory: its errors do not quote the content.
	Elsewhere bool

	// Rules are the content of a file that has no text, such as rules in code, instead of Data. It is always read
	// strictly.
	Rules yamlform.Pairs
}

func (f *File) read(lenient bool) *source {
	if f.Rules != nil {
		return readResource(&Resource{Name: f.Name, Rules: f.Rules})
	}
	s := readSource(f.Name, f.Data, lenient)
	if f.Elsewhere {
		s.hide(f.Name)
	}
	return s
}

// CompileOptions set how rule files are read. The zero value is strict: a probable mistake is an error, even if the
// reference accepts it.
type CompileOptions struct {
	// files may share a domain; if false, the domain belongs to the file that sorts first, and the others have an error
	Merge   bool
	Lenient bool // files accepted by envoyproxy/ratelimit have the same meaning here; the default of the service
	Tree    descriptor.Options

	NoRegions bool // limits with `regions` are an error: the program counts only in one region
}

// Compile makes one tree from rule files. Files with errors are left out. It returns the errors of all files, sorted by
// file name and line.
func Compile(files []File, o CompileOptions) (*descriptor.Tree, []*yamlform.Error) {
	tree, errs, _ := compile(files, o)
	return tree, errs
}

// Tolerated returns, by name, the warnings of the files that the service loads although Compile finds errors in them,
// because it reads them leniently.
func Tolerated(files []File, merge bool) map[string][]*yamlform.Error {
	_, errs, sources := compile(files, CompileOptions{Merge: merge, Lenient: true})
	warnings := make(map[string][]*yamlform.Error, len(files))
	for name, s := range sources {
		warnings[name] = s.warnings
	}
	for _, e := range errs {
		delete(warnings, e.File)
	}
	return warnings
}

func compile(files []File, o CompileOptions) (*descriptor.Tree, []*yamlform.Error, map[string]*source) {
	files = slices.Clone(files)
	slices.SortStableFunc(files, func(a, b File) int { return cmp.Compare(a.Name, b.Name) })

	sources := make([]*source, len(files))
	var g errgroup.Group
	g.SetLimit(runtime.GOMAXPROCS(0))
	for i := range files {
		g.Go(func() error {
			sources[i] = files[i].read(o.Lenient)
			return nil
		})
	}
	_ = g.Wait() // none of them fails

	l := ledger{merge: o.Merge, alone: o.NoRegions, tree: o.Tree}
	var errs []*yamlform.Error
	byName := make(map[string]*source, len(files))
	for i, s := range sources {
		errs = append(errs, l.admit(s)...)
		byName[files[i].Name] = s
	}
	tree, err := l.compile()
	if err != nil {
		// The checks above find everything that the tree rejects, with better messages. If they missed something, no file is
		// used.
		return &descriptor.Tree{}, append(errs, &yamlform.Error{File: files[0].Name, Msg: err.Error()}), nil
	}
	return tree, errs, byName
}
