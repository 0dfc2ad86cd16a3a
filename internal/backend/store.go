package backend

import (
	"context"
	"errors"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// Store keeps counters. memory and redis are stores. overlimit and lease are stores too, each in front of another one.
// So a limiter works with every store. A Store may be used by any number of goroutines.
//
// If a method returns an error, the outcomes marked Failed have no answer; the others hold.
type Store interface {
	Starter

	// Peek judges each take of a request on its own and changes nothing. An outcome contains the used hits, and whether
	// the take's hits would pass now. Votes, CountDenied, Together and PeekWhenKnown do not matter. Peek is for operators:
	// it may wait, and cost more than Start.
	Peek(ctx context.Context, now time.Time, r *Request) error

	// Reset clears counters. After it returns without an error, neither the store nor this replica remembers the hits
	// taken from them before the call: remembered denials, and permits that were taken in batches, are void. A take that
	// runs at the same time counts before the reset or after it. Other replicas forget a moment later
	// (redis.Invalidations). Until then their denials last, and permits that they hold may pass uncounted, or be given
	// back, once.
	//
	// A reset that fails may still have been carried out, for all counters or for some.
	Reset(ctx context.Context, counters []Counter) error
}

// Starter is the part of a Store that settles requests.
type Starter interface {
	// Start settles the takes of one request and fills their outcomes. It never blocks its caller. If it can settle the
	// request immediately, it returns true and the error. Otherwise it returns false, and calls done with the error later,
	// once, from another goroutine; it uses ctx and r until then. done must return quickly, because other requests wait
	// for it. A request that must be sent may wait for the other requests of its batch; b may be nil. Await is for callers
	// that can block.
	Start(ctx context.Context, now time.Time, b *Batch, r *Request, done func(error)) (settled bool, err error)
}

// Counter identifies one counter: its key, and the limit that it is kept under. Where the counter lives may depend on
// the limit.
type Counter struct {
	Key   []byte // valid until the call returns
	Limit *descriptor.Limit
	Rule  *descriptor.Rule // see Take.Rule
}

// Errors that stores return. After any other error too, the takes whose Outcome is marked Failed have no answer.
var (
	// ErrFull is returned when a bounded store has no room for a new counter.
	ErrFull = errors.New("no room for another counter")
	// ErrUnavailable is returned when a store cannot be reached in time.
	ErrUnavailable = errors.New("backend unavailable")
)
