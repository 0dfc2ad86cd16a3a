package redis

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/backend/redisconn"
)

// restAfterMiss is for how long no caller sends its request itself after one of them had no answer in time. Such a miss
// costs a connection; a late flush of the queue does not.
const restAfterMiss = time.Second

// settleHere settles a request in its caller's goroutine if nothing else waits or is in flight, because the queue would
// have to wake a worker for the request, and then the caller. It returns false if the request must enter the queue:
// then nothing was done. The call counts as a flush. The caller leaves at its deadline, or when ctx is cancelled, which
// closes the connection.
func (q *queue) settleHere(ctx context.Context, at int64, r *backend.Request) (settled bool, err error) {
	s := q.store
	if s.apart() {
		return false, nil
	}
	lane := s.lanes.Take()
	if lane == nil {
		return false, nil
	}
	defer lane.Release()
	call, ok := q.beginHere(ctx)
	if !ok {
		return false, nil
	}
	s.lookAgain()
	c := scriptCalls.Get().(*scriptCall)
	err = q.takeHere(ctx, lane, call.deadline, at, c, r)
	c.release()
	missed := redisconn.IsTimeout(err)
	q.endHere(call.began, missed)
	switch {
	case errors.Is(err, errNothingDone):
		return false, nil
	case errors.Is(err, errFull) && !slices.ContainsFunc(r.Outcomes, func(o backend.Outcome) bool { return o.Failed }):
		err = nil
	case missed && call.callers && ctx.Err() == nil: // it left a moment before its deadline
		err = fmt.Errorf("%w: %w", backend.ErrUnavailable, context.DeadlineExceeded)
	case err != nil && !errors.Is(err, errFull):
		err = s.failure(ctx, err)
	}
	if err != nil {
		backend.Fail(r.Outcomes)
	}
	return true, err
}

// hereCall is a call in its caller's goroutine.
type hereCall struct {
	began    int64
	deadline time.Time
	callers  bool // whether the deadline is the caller's, not the store's timeout
}

// errNothingDone is the error of a call that must be made again, in the queue.
var errNothingDone = errors.New("the call has to be made again")

// beginHere reserves a slot if nothing waits or is in flight.
func (q *queue) beginHere(ctx context.Context) (c hereCall, ok bool) {
	wall := time.Now()
	c.began = int64(wall.Sub(q.base))
	q.mu.Lock()
	late := q.late.Now(wall)
	ok = !q.closed && c.began >= q.restUntil && q.state.idle() && q.state.begin(c.began)
	q.mu.Unlock()
	if !ok {
		return c, false
	}
	c.deadline = q.store.deadline(ctx)
	if own, has := ctx.Deadline(); has {
		if own = own.Add(-backend.Margin(own.Sub(wall), late)); c.deadline.IsZero() || own.Before(c.deadline) {
			c.deadline, c.callers = own, true
		}
	}
	return c, true
}

// endHere gives the slot back.
func (q *queue) endHere(began int64, missed bool) {
	now := q.now()
	q.mu.Lock()
	// one take is no evidence about the counters of waiting requests
	q.state.ended(began, now, q.state.hot && len(q.state.waiting) > 0)
	q.state.free()
	if missed {
		q.restUntil = now + int64(restAfterMiss)
	}
	q.wakeWorker()
	q.mu.Unlock()
	q.signal()
}

// takeHere makes one call. Requests that need another call are left to the queue.
func (q *queue) takeHere(ctx context.Context, lane *redisconn.Lane, deadline time.Time, at int64, c *scriptCall,
	r *backend.Request) error {
	s := q.store
	if err := c.pack(s.terms(at, !s.CallerClock(), 0), r); err != nil {
		return errNothingDone
	}
	if err := c.sendOn(ctx, lane, deadline); err != nil {
		if goredis.HasErrorPrefix(err, "NOSCRIPT") || goredis.HasErrorPrefix(err, noTime) || s.crossed(err) {
			return errNothingDone
		}
		return err
	}
	if now, _, wanted := c.retry(); wanted {
		s.ahead.Store(now - at)
		return errNothingDone
	}
	now, err := c.settle()
	if err == nil && c.calendar {
		s.ahead.Store(now - at)
	}
	return err
}
