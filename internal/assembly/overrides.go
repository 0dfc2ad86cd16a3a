package assembly

import (
	"context"

	"github.com/ratelimitd/ratelimitd/internal/assembly/parts"
	"github.com/ratelimitd/ratelimitd/internal/backend/redis"
	"github.com/ratelimitd/ratelimitd/internal/backend/redisconn"
	"github.com/ratelimitd/ratelimitd/internal/config/override"
	"github.com/ratelimitd/ratelimitd/internal/config/override/redissource"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
)

// Aliases of package parts, which has everything that needs no Redis.
type (
	// Tasks is parts.Tasks.
	Tasks = parts.Tasks
	// Work is parts.Work.
	Work = parts.Work
	// Background is parts.Background.
	Background = parts.Background
	// Overrides is parts.Overrides.
	Overrides = parts.Overrides
)

// Follow is parts.Follow.
func Follow(tasks *Tasks, l *limiter.Limiter, source override.Source) *Overrides {
	return parts.Follow(tasks, l, source)
}

// overridePool is the number of connections for overrides: one waits for changes.
const overridePool = 4

// Overrides returns a source that reads overrides from a Redis. counted counts its connections; it may be nil.
func (r *Redis) Overrides(tasks *Tasks, counted *redisconn.Connections,
	o redissource.Options) (*redissource.Source, error) {
	connect := r.Connect
	connect.PoolSize, connect.OnEmpty, connect.Connections = overridePool, "", counted
	client, err := r.Dial(tasks, connect)
	if err != nil {
		return nil, err
	}
	o.Client = client
	o.Usable = func(ctx context.Context) (bool, error) { return redis.OneKeyspace(ctx, client, o.Prefix) }
	return redissource.New(o), nil
}
