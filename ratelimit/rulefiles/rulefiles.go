package rulefiles

import (
	"fmt"
	"log/slog"

	"github.com/ratelimitd/ratelimitd/internal/assembly/parts"
	"github.com/ratelimitd/ratelimitd/internal/config"
	"github.com/ratelimitd/ratelimitd/internal/config/follow"
	"github.com/ratelimitd/ratelimitd/internal/config/override"
	"github.com/ratelimitd/ratelimitd/ratelimit"
)

// Dir is a directory of rule files (*.yaml), for Options.Dir. It is read with all directories below it. A change
// applies within a second. A bad file keeps its last good version, and the log says why it is bad. Open fails if no
// file can be used.
func Dir(path string) *ratelimit.RuleFiles {
	return &ratelimit.RuleFiles{Open: func(o config.Options, apply func(config.Result)) (parts.Work, error) {
		o.Dir = path
		return follow.Open(o, apply)
	}}
}

// Overrides are those in a YAML file, for Options.Overrides. A change applies within a second.
func Overrides(path string) *ratelimit.Overrides {
	return &ratelimit.Overrides{Open: func(log *slog.Logger) (override.Source, error) {
		source, err := override.OpenFile(override.FileOptions{Path: path, Log: log})
		if err != nil {
			return nil, fmt.Errorf("read overrides from %s: %w", path, err)
		}
		return source, nil
	}}
}
