package parts

import (
	"log/slog"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/config"
	"github.com/ratelimitd/ratelimitd/internal/config/override"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
)

// Store is where counters live.
type Store struct {
	// Open opens the counters. Their background work and their connections become tasks.
	Open func(tasks *Tasks, o StoreOptions) (*Counters, error)
}

// StoreOptions are settings of any store.
type StoreOptions struct {
	MaxCounters int // the most counters in memory
	Logger      *slog.Logger
}

// Counters are the counters of a limiter.
type Counters struct {
	Store, Local backend.Store // see limiter.Options
	Keys         descriptor.KeyBuilder

	Joined    func(*limiter.Limiter) // called with the limiter that uses the counters; may be nil
	Overrides override.Source        // source of overrides next to the counters, or nil
}

// Rules are rule files that may change.
type Rules struct {
	// Open applies them, and returns the work that follows their changes. The options lack where they are.
	Open func(o config.Options, apply func(config.Result)) (Work, error)
}

// Source is where overrides come from.
type Source struct {
	Open func(log *slog.Logger) (override.Source, error)
}
