package config

import (
	"cmp"
	"runtime"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/yamlform"
)

// File is the text of one rule file.
type File struct {
	Name string // stands in errors and in the position of every rule
	Data []byte
}

// CompileOptions say how rule files are read. The zero value is strict: what is probably a mistake is an error, also where
// the reference takes it.
type CompileOptions struct {
	Merge   bool // files that give the same domain share it; else it belongs to the file that sorts first, and the others are in error
	Lenient bool // what the reference takes is taken as it takes it: so a service reads files unless it is told to be strict
	Tree    descriptor.Options
}

// Compile makes one tree of rule files. Files with errors are left out of it; all errors of all files come back, in the
// order of the files' names and lines.
func Compile(files []File, o CompileOptions) (*descriptor.Tree, []*yamlform.Error) {
	files = slices.Clone(files)
	slices.SortStableFunc(files, func(a, b File) int { return cmp.Compare(a.Name, b.Name) })

	sources := make([]*source, len(files))
	var g errgroup.Group
	g.SetLimit(runtime.GOMAXPROCS(0))
	for i := range files {
		g.Go(func() error {
			sources[i] = readSource(files[i].Name, files[i].Data, o.Lenient)
			return nil
		})
	}
	_ = g.Wait() // none of them fails

	l := ledger{merge: o.Merge, tree: o.Tree}
	var errs []*yamlform.Error
	for _, s := range sources {
		errs = append(errs, l.admit(s)...)
	}
	tree, err := l.compile()
	if err != nil {
		// All that the tree refuses has been looked for above, and told better. Should something be left, no file is good.
		return &descriptor.Tree{}, append(errs, &yamlform.Error{File: files[0].Name, Msg: err.Error()})
	}
	return tree, errs
}
