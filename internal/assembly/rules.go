package assembly

import (
	"context"
	"errors"
	"fmt"

	"github.com/ratelimitd/ratelimitd/internal/config"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// FollowRules applies the rules of a directory, and follows its files while the tasks run. Unless some rules are fixed, it is an error
// if no file can be used.
func FollowRules(tasks *Tasks, o config.Options, apply func(config.Result)) error {
	folder := config.NewFolder(o)
	result, err := folder.Load()
	switch {
	case err != nil:
		return fmt.Errorf("read rules from %s: %w", o.Dir, err)
	case result.InUse == 0 && len(o.Fixed) == 0:
		return noRules(o.Dir, result.Files)
	}
	apply(result)
	tasks.Add(func(ctx context.Context) error { return folder.Watch(ctx, apply) })
	return nil
}

// noRules says why no file of a directory can be used.
func noRules(folder string, files []descriptor.FileStatus) error {
	if len(files) == 0 {
		return fmt.Errorf("%s has no rule file (*.yaml)", folder)
	}
	var all []error
	for i := range files {
		for _, text := range files[i].Errors {
			all = append(all, errors.New(text))
		}
	}
	return fmt.Errorf("no rule file of %s can be used: %w", folder, errors.Join(all...))
}
