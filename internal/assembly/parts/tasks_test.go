package parts_test

import (
	"context"
	"errors"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/ratelimitd/ratelimitd/internal/assembly/parts"
)

// A process that must survive panics of its work recovers them in a guard.
func TestGuard(t *testing.T) {
	caught := errors.New("caught")
	var tasks parts.Tasks
	tasks.Guard = func(work parts.Work) parts.Work {
		return func(ctx context.Context) (err error) {
			defer func() {
				if recover() != nil {
					err = caught
				}
			}()
			return work(ctx)
		}
	}
	tasks.Add(func(context.Context) error { panic("kaboom") })
	var g errgroup.Group
	tasks.Start(t.Context(), &g)
	if err := g.Wait(); !errors.Is(err, caught) {
		t.Errorf("the work ended with %v", err)
	}
}
