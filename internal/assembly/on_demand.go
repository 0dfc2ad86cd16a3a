package assembly

import (
	"context"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend"
)

// onDemand is a store whose background work starts with the first take. Most processes never count locally.
type onDemand struct {
	backend.Store
	begin func()
}

// Start implements backend.Store.
func (s *onDemand) Start(ctx context.Context, now time.Time, b *backend.Batch, r *backend.Request,
	done func(error)) (settled bool, err error) {
	s.begin()
	return s.Store.Start(ctx, now, b, r, done)
}
