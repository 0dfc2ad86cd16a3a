package main

import (
	"errors"
	"fmt"
	"io"

	"github.com/ratelimitd/ratelimitd/internal/config/override"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/platform/stdin"
)

// readOverrides reads a file of overrides.
func readOverrides(name string) ([]override.Placed, error) {
	data, err := stdin.ReadFileOf(name, override.MaxFileSize)
	if err != nil {
		return nil, misuse(fmt.Errorf("read overrides: %w", err))
	}
	return parseOverrides(stdin.NameOf(name), data)
}

// parseOverrides reads the text of a file of overrides.
func parseOverrides(name string, data []byte) ([]override.Placed, error) {
	all, errs := override.ReadFile(name, data)
	if len(errs) == 0 {
		return all, nil
	}
	joined := make([]error, len(errs))
	for i, e := range errs {
		joined[i] = e
	}
	return nil, misuse(errors.Join(joined...))
}

// overridesFor returns the overrides of a file that fit the rules, and writes why others do not. Without a file there
// are none.
func overridesFor(name string, tree *descriptor.Tree, warn io.Writer) (*override.Set, error) {
	if name == "" {
		return nil, nil
	}
	all, err := readOverrides(name)
	if err != nil {
		return nil, err
	}
	good, misfits := override.ResolveAll(tree, all)
	for _, e := range misfits {
		fmt.Fprintln(warn, e)
	}
	return override.SetOf(good), nil
}
