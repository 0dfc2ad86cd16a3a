package limits

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"
)

var (
	// ErrNever is the error of a Wait for a request that can never pass.
	ErrNever = errors.New("the request is larger than its limit: it would never be allowed")
	// ErrTooLong is the error of a Wait whose context would end before the request is allowed. It returns at once.
	ErrTooLong = errors.New("the request would be allowed only after the deadline")
)

const (
	firstBackoff = 5 * time.Millisecond
	maxBackoff   = time.Second
)

// Allow asks d, and reports whether the request may pass. It returns after the delay of a request that a leaky bucket delays.
func Allow(ctx context.Context, d Decider, r *Request) (bool, error) {
	answer, err := d.Decide(ctx, r)
	if err == nil && answer.Allowed && answer.Delay > 0 {
		err = Sleep(ctx, answer.Delay)
	}
	return answer.Allowed && err == nil, err
}

// Wait asks d until the request is allowed, and waits as long as the answers say. To each wait after a denial it adds a
// random time, so that callers that were denied together do not retry together: between zero and 5 ms after the first
// denial, and twice as much after each further one, up to a second. If the deadline of ctx is too near, it returns
// ErrTooLong without waiting.
func Wait(ctx context.Context, d Decider, r *Request) (Decision, error) {
	for backoff := firstBackoff; ; backoff = min(2*backoff, maxBackoff) {
		answer, err := d.Decide(ctx, r)
		if err != nil {
			return answer, err
		}
		if answer.Allowed {
			return answer, Sleep(ctx, answer.Delay)
		}
		if answer.RetryAfter == Never {
			return answer, ErrNever
		}
		if err := Sleep(ctx, answer.RetryAfter+rand.N(backoff)); err != nil {
			return answer, err
		}
	}
}

// Sleep waits for d. It returns ErrTooLong at once if the deadline of ctx comes before that, and the error of ctx if ctx
// ends while it waits.
func Sleep(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) < d {
		return fmt.Errorf("%w: in %s", ErrTooLong, d)
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
