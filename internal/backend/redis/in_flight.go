package redis

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// inFlight is a request in a queue. It owns the memory that a flush works on, because a caller may leave at its
// deadline and reuse the memory of its request. The queue watches the caller's deadline (expire).
type inFlight struct {
	at           int64 // the time given by the caller
	request      backend.Request
	keys         []byte
	limits       []descriptor.Limit
	reservations []backend.Reservation

	callback func(error)      // called when there is an answer, or when no answer will come
	whole    *backend.Request // the caller's request, which gets the outcomes
	part     bool             // whole is a part of another request, whose error names the failure

	owners  atomic.Int32 // the caller and the queue; the last one to release it returns it to the pool
	watched bool         // the queue watches its deadline; guarded by the queue's lock
	slot    slotID       // slot of its counters; flush uses it where they cannot share a script

	ctx context.Context // the caller's; not used after the answer

	mu     sync.Mutex
	until  int64 // when the caller leaves, in nanoseconds after the queue's base; 0 means never
	caller bool  // whether until is the caller's deadline, not the store's timeout
	late   bool  // whether until had passed at the last check by expire
	state  inFlightState
	err    error
}

type inFlightState uint8

const (
	answered inFlightState = iota // err is set, or the outcomes are
	waiting
	sent // it is part of a flush: its hits may count
)

func newInFlight() any { return new(inFlight) }

// init copies a caller's request.
func (f *inFlight) init(ctx context.Context, at int64, r *backend.Request, done func(error)) {
	f.at, f.ctx, f.callback, f.whole, f.part = at, ctx, done, r, false
	f.keys = f.keys[:0]
	for i := range r.Takes {
		f.keys = append(f.keys, r.Takes[i].Key...)
	}
	f.request.Together = r.Together
	f.request.Takes = append(f.request.Takes[:0], r.Takes...)
	f.request.Outcomes = append(f.request.Outcomes[:0], r.Outcomes...)
	f.limits = slices.Grow(f.limits[:0], len(r.Takes))[:len(r.Takes)]
	// allocated once, because their addresses must not change
	f.reservations = slices.Grow(f.reservations[:0], reservationsOf(r))
	start := 0
	for i := range f.request.Takes {
		t := &f.request.Takes[i]
		end := start + len(t.Key)
		t.Key = f.keys[start:end:end]
		if !ofRule(t) { // the limits of requests and overrides live in the caller's memory
			f.limits[i] = *t.Limit
			t.Limit = &f.limits[i]
		}
		if t.Reservation != nil {
			f.reservations = append(f.reservations, *t.Reservation)
			t.Reservation = &f.reservations[len(f.reservations)-1]
		}
		start = end
	}
	f.owners.Store(2)
}

// ofRule reports whether the limit of a take is its rule's, which does not change.
func ofRule(t *backend.Take) bool {
	if t.Rule == nil {
		return false
	}
	for i := range t.Rule.Limits {
		if t.Limit == &t.Rule.Limits[i] {
			return true
		}
	}
	return false
}

func reservationsOf(r *backend.Request) (n int) {
	for i := range r.Takes {
		if r.Takes[i].Reservation != nil {
			n++
		}
	}
	return n
}

// copyTo copies the answer to the caller's request.
func (f *inFlight) copyTo(r *backend.Request) {
	copy(r.Outcomes, f.request.Outcomes)
	if len(f.reservations) == 0 {
		return
	}
	for i := range f.request.Takes {
		if h := f.request.Takes[i].Reservation; h != nil {
			to := r.Takes[i].Reservation
			to.Result, to.Granted, to.Expires, to.Late = h.Result, h.Granted, h.Expires, h.Late
		}
	}
}

// enter starts the time of a request in the queue: now by the wall clock, at by the queue's clock. timeout is the
// store's timeout, and late is the present lateness of timers. It returns the time at which the caller leaves; 0 means
// never.
func (f *inFlight) enter(now time.Time, at int64, timeout, late time.Duration) (until int64) {
	caller := false
	if timeout > 0 {
		until = at + int64(timeout)
	}
	if d, ok := f.ctx.Deadline(); ok {
		left := d.Sub(now)
		if leave := at + int64(left-backend.Margin(left, late)); until == 0 || leave < until {
			until, caller = leave, true
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.until, f.caller, f.late, f.state, f.err = until, caller, false, waiting, nil
	return until
}

// markSent makes f part of a flush. It returns false if its caller has left.
func (f *inFlight) markSent() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.state == answered {
		return false
	}
	f.state = sent
	return true
}

// isAnswered reports whether the caller has an answer, or has left.
func (f *inFlight) isAnswered() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.state == answered
}

// answer delivers an answer. It returns false if the caller already has one, otherwise the callback must be called now.
func (f *inFlight) answer(err error) (call bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.answerLocked(err)
}

func (f *inFlight) answerLocked(err error) (call bool) {
	if f.state == answered {
		return false
	}
	f.state, f.err = answered, err
	return true
}

// expire answers the caller with an error if the caller's deadline or the store's timeout has passed. It returns false
// if no caller waits for f, and true for call if the callback must be called now. If f was sent, its answer may have
// arrived while this process had no CPU to read it, so the caller waits until the next check.
func (f *inFlight) expire(s *Store, now int64) (waits, call bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.state == answered {
		return false, false
	}
	err := f.ctx.Err()
	switch {
	case errors.Is(err, context.Canceled):
		return false, f.answerLocked(context.Canceled)
	case err == nil && (f.until == 0 || now < f.until):
		return true, false
	case f.state == sent && !f.late:
		f.late = true
		return true, false
	case f.caller || err != nil:
		return false, f.answerLocked(fmt.Errorf("%w: %w", backend.ErrUnavailable, context.DeadlineExceeded))
	default:
		return false, f.answerLocked(fmt.Errorf("%w: no answer within %s", backend.ErrUnavailable, s.opts.Timeout))
	}
}

// forget clears the pointers in f, so that f can be reused. It returns false if f holds too much memory for that.
func (f *inFlight) forget() bool {
	if cap(f.keys) > keepRoom || cap(f.request.Takes) > 1024 {
		return false
	}
	clear(f.request.Takes)
	f.ctx, f.callback, f.whole = nil, nil, nil
	return true
}
