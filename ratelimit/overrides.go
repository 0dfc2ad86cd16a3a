package ratelimit

import (
	"errors"
	"fmt"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/assembly"
	"github.com/ratelimitd/ratelimitd/internal/config/override"
	"github.com/ratelimitd/ratelimitd/internal/config/override/redissource"
)

// longestFirstRead is how long Open may wait for overrides.
const longestFirstRead = 2 * time.Second

// openOverrides makes the limiter follow overrides; nil: there are none. Operators remove overrides that have ended, not this process.
func (l *Limiter) openOverrides(o *Options, at *assembly.Redis) (*assembly.Overrides, error) {
	switch {
	case o.OverridesInRedis && o.OverridesFile != "":
		return nil, errors.New("Options.OverridesInRedis and Options.OverridesFile are both set: overrides have one source")
	case o.OverridesInRedis && at == nil:
		return nil, errors.New("Options.OverridesInRedis needs Options.Redis")
	case o.OverridesInRedis:
		source, err := at.Overrides(&l.work.Tasks, nil, redissource.Options{Prefix: o.KeyPrefix, Log: o.Logger})
		if err != nil {
			return nil, fmt.Errorf("Options.Redis: %w", err)
		}
		return assembly.Follow(&l.work.Tasks, l.engine, source), nil
	case o.OverridesFile != "":
		source, err := override.OpenFile(override.FileOptions{Path: o.OverridesFile, Log: o.Logger})
		if err != nil {
			return nil, fmt.Errorf("read overrides from %s: %w", o.OverridesFile, err)
		}
		return assembly.Follow(&l.work.Tasks, l.engine, source), nil
	}
	return nil, nil //nolint:nilnil // none is no mistake
}
