package gate

import (
	"context"
	"math/rand/v2"
	"time"
)

const (
	firstJitter = 250 * time.Millisecond
	maxJitter   = 8 * time.Second
)

// Waits are the waits of one request between its attempts.
type Waits struct {
	Attempts int           // remaining attempts
	Left     time.Duration // most time to wait from now on, in all

	jitter time.Duration
}

// Next returns how long to wait before the next attempt: the server's time, plus a random time, so that clients that
// were denied together do not retry together. The random time is below 250 ms at first, and its bound doubles each
// time. Next returns false if no attempt is left, or if the server's time is too long or after the deadline of ctx.
func (w *Waits) Next(ctx context.Context, after time.Duration) (time.Duration, bool) {
	left := w.Left
	if deadline, ok := ctx.Deadline(); ok {
		left = min(left, time.Until(deadline))
	}
	if w.Attempts <= 0 || after >= left {
		return 0, false
	}
	w.jitter = min(max(2*w.jitter, firstJitter), maxJitter)
	wait := after + rand.N(min(w.jitter, (left-after)/2+1)) // half of the time is for the attempt
	w.Attempts--
	w.Left -= wait
	return wait, true
}
