package parts

import (
	"context"
	"sync"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/config/override"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
)

// Overrides are a source of overrides that a limiter follows.
type Overrides struct {
	override.Source
	read <-chan struct{}
}

// Follow applies the overrides of a source to a limiter while the tasks run.
func Follow(tasks *Tasks, l *limiter.Limiter, source override.Source) *Overrides {
	inForce := make(chan struct{})
	done := sync.OnceFunc(func() { close(inForce) })
	tasks.Add(func(ctx context.Context) error {
		return source.Run(ctx, func(set *override.Set) {
			l.SetOverrides(set)
			done()
		})
	})
	o := &Overrides{Source: source, read: inForce}
	if s, ok := source.(interface{ Tried() <-chan struct{} }); ok { // it may not answer
		o.read = s.Tried()
	}
	return o
}

// Read reports whether the source has been read, or could not be read: then there is nothing to wait for.
func (o *Overrides) Read() bool {
	select {
	case <-o.read:
		return true
	default:
		return false
	}
}

// Await waits for the first attempt to read the source, so that no decision is made without the overrides if the source
// answers. It reports whether the attempt ended in time.
func (o *Overrides) Await(ctx context.Context, longest time.Duration) bool {
	select {
	case <-o.read:
	case <-ctx.Done():
	case <-time.After(longest):
		return false
	}
	return true
}
