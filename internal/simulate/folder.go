package simulate

import (
	"errors"
	"fmt"
	"log/slog"

	"github.com/ratelimitd/ratelimitd/internal/config"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// LoadRules reads a folder of rules as the service would. A service leaves bad files out; here any is an error: what a
// part of the rules would do is not what was asked.
func LoadRules(dir string, merge bool) (*descriptor.Tree, error) {
	r, err := config.NewFolder(config.Options{Dir: dir, MergeDomains: merge, Logger: slog.New(slog.DiscardHandler)}).Load()
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, f := range r.Files {
		for _, e := range f.Errors {
			errs = append(errs, errors.New(e))
		}
	}
	if len(errs) > 0 {
		return nil, fmt.Errorf("rules of %s:\n%w", dir, errors.Join(errs...))
	}
	if len(r.Tree.Rules) == 0 {
		return nil, fmt.Errorf("rules of %s: there is no rule in this folder", dir)
	}
	return r.Tree, nil
}
