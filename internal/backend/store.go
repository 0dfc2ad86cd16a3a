package backend

import (
	"context"
	"errors"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// Store keeps counters. memory and redis are stores; overlimit and lease are stores too, each in front of another one, so that
// a limiter does not know what it counts in. A Store may be used by any number of goroutines.
//
// Where a method returns an error, the outcomes that say Failed have no answer; the others hold.
type Store interface {
	// Take settles the takes of one request and fills their outcomes.
	Take(ctx context.Context, now time.Time, r *Request) error

	// Peek judges the takes of a request, each by itself, and changes nothing: an outcome says what is used, and whether so
	// many hits would pass now. Votes, CountDenied, Together and PeekWhenKnown do not matter. It is for operators: it may
	// cost more than Take.
	Peek(ctx context.Context, now time.Time, r *Request) error

	// Reset clears counters. After it has returned without an error, the store knows nothing of what was taken from them
	// before it was called, and neither does this process: remembered refusals and permits that were taken in batches are
	// void. A take that was under way meanwhile counts before the reset or after it. Other processes keep what they remember:
	// refusals until their retry-after, and permits that they hold may pass uncounted, or be given back, once.
	//
	// A reset that fails may have been carried out, for all counters or for some.
	Reset(ctx context.Context, counters []Counter) error
}

// Counter names one counter: its key, and the limit that it is kept under, which may say where it lives.
type Counter struct {
	Key   []byte // valid until the call returns
	Limit *descriptor.Limit
	Rule  *descriptor.Rule // as in Take
}

// Errors that stores return. Any other error also means that the takes whose Outcome says Failed have no answer.
var (
	// ErrFull is returned when a store that is bounded has no room for a new counter.
	ErrFull = errors.New("no room for another counter")
	// ErrUnavailable is returned when a store cannot be reached in time.
	ErrUnavailable = errors.New("backend unavailable")
)
