package follow

import (
	"context"
	"errors"
	"fmt"

	"github.com/ratelimitd/ratelimitd/internal/config"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// Open applies the rules of a directory, and returns the work that follows its files. Unless some rules are fixed, it
// is an error if no file can be used.
func Open(o config.Options, apply func(config.Result)) (work func(context.Context) error, err error) {
	f := config.NewDirectory(o)
	result, err := f.Load()
	switch {
	case err != nil:
		return nil, fmt.Errorf("read rules from %s: %w", o.Dir, err)
	case result.InUse == 0 && len(o.Fixed)+len(o.Defaults) == 0:
		return nil, noRules(o.Dir, result.Files)
	}
	apply(result)
	return func(ctx context.Context) error { return Directory(ctx, f, apply) }, nil
}

// noRules returns the error that explains why no file of a directory can be used.
func noRules(directory string, files []descriptor.FileStatus) error {
	if len(files) == 0 {
		return fmt.Errorf("%s has no rule file (*.yaml)", directory)
	}
	var all []error
	for i := range files {
		for _, text := range files[i].Errors {
			all = append(all, errors.New(text))
		}
	}
	return fmt.Errorf("no rule file of %s can be used: %w", directory, errors.Join(all...))
}
