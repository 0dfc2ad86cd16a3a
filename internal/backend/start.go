package backend

import (
	"context"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/platform/async"
)

// Await settles a request as Start does, and waits for the answer. When it returns, the store no longer uses the
// request.
func Await(ctx context.Context, s Starter, now time.Time, r *Request) error {
	w := async.NewWaiter()
	settled, err := s.Start(ctx, now, CallerWaits, r, w.Done)
	return w.Wait(settled, err)
}
