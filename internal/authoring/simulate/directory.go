package simulate

import (
	"errors"
	"fmt"
	"log/slog"

	"github.com/ratelimitd/ratelimitd/internal/config"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/platform/files"
	"github.com/ratelimitd/ratelimitd/internal/platform/stdin"
)

// LoadRules reads a directory of rules as the service would, or one file; - is the standard input. The service leaves
// bad files out. Here a bad file is an error, because the result for a part of the rules would be misleading.
func LoadRules(dir string, merge bool, o descriptor.Options) (*descriptor.Tree, error) {
	if dir == "" {
		return nil, errors.New("read rules: the name of the directory is empty")
	}
	if info, err := files.Stat(dir); dir == stdin.Name || err == nil && !info.IsDir() {
		return loadFile(dir, merge, o)
	}
	r, err := config.NewDirectory(config.Options{Dir: dir, MergeDomains: merge, Tree: o,
		Logger: slog.New(slog.DiscardHandler)}).Load()
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, f := range r.Files {
		for _, e := range f.Errors {
			errs = append(errs, errors.New(e))
		}
	}
	return usable(dir, r.Tree, errs)
}

func loadFile(name string, merge bool, o descriptor.Options) (*descriptor.Tree, error) {
	data, err := stdin.ReadFile(name)
	name = stdin.NameOf(name)
	if err != nil {
		return nil, fmt.Errorf("read rules: %w", err)
	}
	tree, bad := config.Compile([]config.File{{Name: name, Data: data}},
		config.CompileOptions{Merge: merge, Lenient: true, Tree: o})
	errs := make([]error, len(bad))
	for i, e := range bad {
		errs[i] = e
	}
	return usable(name, tree, errs)
}

func usable(name string, tree *descriptor.Tree, errs []error) (*descriptor.Tree, error) {
	if len(errs) > 0 {
		return nil, fmt.Errorf("the rules of %s cannot be used:\n%w", name, errors.Join(errs...))
	}
	if len(tree.Rules) == 0 {
		return nil, fmt.Errorf("rules of %s: there is no rule in it", name)
	}
	return tree, nil
}
