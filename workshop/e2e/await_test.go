package e2e

import (
	"context"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/testkit/servicetest"
)

// patience is how long anything may take to happen on a busy machine.
const patience = servicetest.Patience

// await repeats ok until it returns nil, and fails the test if that takes too long.
func await(t *testing.T, what string, ok func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	var last error
	for {
		err := ok(ctx)
		if err == nil {
			return
		}
		if ctx.Err() == nil {
			last = err
		}
		select {
		case <-ctx.Done():
			t.Fatalf("%s: not within %v: %v", what, patience, last)
		case <-tick.C:
		}
	}
}
