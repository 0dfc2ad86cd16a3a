package backend

import (
	"context"
	"errors"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// Counter names one counter: its key, and the limit that it is kept under, which may say where it lives.
type Counter struct {
	Key   []byte // valid until the call returns
	Limit *descriptor.Limit
	Rule  *descriptor.Rule // as in Take
}

// Resetter is a store that can clear counters, or a layer in front of one.
//
// After Reset has returned without an error, the store knows nothing of what was taken from these counters before it was
// called, and neither does this process: remembered refusals and permits that were taken in batches are void. A take that
// was under way meanwhile counts before the reset or after it. Other processes keep what they remember: refusals until their
// retry-after, and permits that they hold may pass uncounted, or be given back, once.
//
// A reset that fails may have been carried out, for all counters or for some.
type Resetter interface {
	Reset(ctx context.Context, counters []Counter) error
}

// ErrNoReset is returned where what stands behind a layer cannot clear counters.
var ErrNoReset = errors.New("this backend cannot clear counters")

// Reset clears counters in a store, if it can.
func Reset(ctx context.Context, store any, counters []Counter) error {
	if r, ok := store.(Resetter); ok {
		return r.Reset(ctx, counters)
	}
	return ErrNoReset
}
