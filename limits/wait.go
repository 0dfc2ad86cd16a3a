package limits

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"
)

var (
	// ErrNever is the error of a Wait for a request that can never pass.
	ErrNever = errors.New("the request is larger than its limit: it would never be allowed")
	// ErrTooLong is the error of a Wait whose context would end before the request is allowed. Wait then returns
	// immediately.
	ErrTooLong = errors.New("the request would be allowed only after the deadline")
)

// Allow asks d, and reports whether the request may pass. It returns after the delay of a request that a leaky bucket
// delays.
func Allow(ctx context.Context, d Decider, r *Request) (bool, error) {
	answer, err := d.Decide(ctx, r.until(ctx))
	if err == nil && !answer.Allowed && answer.Delay > 0 {
		return false, tooLong(answer.Delay)
	}
	if err == nil && answer.Allowed && answer.Delay > 0 {
		err = Sleep(ctx, answer.Delay)
	}
	return answer.Allowed && err == nil, err
}

// Wait waits until the request is allowed. Goroutines of this program that ask d for the same domain and descriptors
// wait in line: they pass in the order in which they came, and only the first of them asks. It asks again when there is
// room according to the last answer. If the room was taken in between, it waits a random time longer. That time is at
// most 5 ms at first, doubles each time, and is never more than a tenth of the wait.
//
// If the deadline of ctx is too near, Wait returns ErrTooLong as soon as this is known, and counts nothing.
func Wait(ctx context.Context, d Decider, r *Request) (Decision, error) {
	t := lines.join(d, r)
	defer t.leave()
	if err := t.await(ctx); err != nil {
		return Decision{}, err
	}
	for denied := 0; ; denied++ {
		if denied > 0 || t.trusts() {
			if err := t.pause(ctx); err != nil {
				return Decision{RetryAfter: time.Until(t.room())}, err
			}
		}
		answer, err := d.Decide(ctx, r.until(ctx))
		switch {
		case err != nil:
			return answer, err
		case answer.Allowed:
			t.asked(answer.NextAfter)
			t.leave() // the next in line need not wait for the delay
			return answer, Sleep(ctx, answer.Delay)
		case answer.RetryAfter == Never:
			return answer, ErrNever
		case answer.Delay > 0:
			return answer, tooLong(answer.Delay)
		}
		t.asked(wait(denied, answer.RetryAfter))
	}
}

// Acquire waits until the request has a place under its limits of requests at the same time, and reserves it.
// Goroutines of this program wait in line, as in Wait. Call release once, when the request is over. If the program
// dies, its place becomes free after the limit's time.
func Acquire(ctx context.Context, d Reserver, r *Request) (release func(), err error) {
	t := lines.join(d, r)
	defer t.leave()
	if err := t.await(ctx); err != nil {
		return nil, err
	}
	for denied := 0; ; denied++ {
		held, err := d.Reserve(ctx, r, ReserveOptions{})
		switch {
		case err != nil:
			return nil, err
		case held.Decision.Allowed:
			return sync.OnceFunc(func() {
				ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
				defer cancel()
				_ = held.Cancel(ctx) // if it fails, the place is free after the limit's time
				lines.released(t.id)
			}), nil
		case held.Decision.RetryAfter == Never:
			return nil, ErrNever
		}
		if err := rest(ctx, min(wait(denied, held.Decision.RetryAfter), longestPoll/2+rand.N(longestPoll/2)),
			t.wake); err != nil {
			return nil, err
		}
	}
}

const (
	releaseTimeout = time.Second
	longestPoll    = 100 * time.Millisecond // interval of asking for a place that another program may give back
)

const (
	firstBackoff = 5 * time.Millisecond
	maxDoublings = 8
)

// wait returns how long to wait after an answer that denies the request, the first one or a later one.
func wait(denied int, retryAfter time.Duration) time.Duration {
	random := rand.N(firstBackoff << min(denied, maxDoublings))
	switch {
	case retryAfter <= 0: // unknown, without an answer
		return random
	case denied == 0:
		return retryAfter
	default: // others compete for the room
		return retryAfter + min(random, retryAfter/10)
	}
}

func tooLong(wait time.Duration) error { return fmt.Errorf("%w: in %s", ErrTooLong, wait) }

// Sleep waits for d. It returns ErrTooLong immediately if the deadline of ctx is earlier, and the error of ctx if ctx
// ends while it waits.
func Sleep(ctx context.Context, d time.Duration) error { return sleep(ctx, d, nil) }

// sleep is Sleep that ends early if wake receives a value.
func sleep(ctx context.Context, d time.Duration, wake <-chan struct{}) error {
	if d <= 0 {
		return ctx.Err()
	}
	if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) < d {
		return tooLong(d)
	}
	return rest(ctx, d, wake)
}

// rest waits for d, or until wake has something or ctx ends.
func rest(ctx context.Context, d time.Duration, wake <-chan struct{}) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-wake:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
