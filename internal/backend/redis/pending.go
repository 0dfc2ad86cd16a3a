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

// pending is a request that waits for its flush. It owns what the flush works on: a caller whose time is up leaves, and
// its memory with it. Its caller waits for done alone, which costs less than to wait for one of several things: the queue
// looks after the caller's time (expire).
type pending struct {
	at      int64 // the caller's time
	began   int64 // the queue's
	request backend.Request
	keys    []byte
	limits  []descriptor.Limit
	done    chan struct{} // has one element when there is an answer, or none to wait for
	owners  atomic.Int32  // the caller and the queue; the last one puts it back
	listed  bool          // it is in the queue's list; guarded by the queue's lock

	mu    sync.Mutex
	ctx   context.Context // the caller's
	until int64           // when its caller leaves, in nanoseconds after the queue's base; 0: never
	own   bool            // that is because of the caller's deadline, not of the store's timeout
	late  bool            // it was over when expire looked the last time
	state pendingState
	err   error
}

type pendingState uint8

const (
	settled pendingState = iota // err says how; without one its outcomes are there
	queued
	flushed // it is part of a flush: its hits may count
)

func newPending() any { return &pending{done: make(chan struct{}, 1)} }

// begin makes p a request of a caller's, and its own copy of it. now is the queue's time, timeout the store's.
func (p *pending) begin(ctx context.Context, at, now int64, timeout time.Duration, r *backend.Request) {
	p.at = at
	p.keys = p.keys[:0]
	for i := range r.Takes {
		p.keys = append(p.keys, r.Takes[i].Key...)
	}
	p.request.Together = r.Together
	p.request.Takes = append(p.request.Takes[:0], r.Takes...)
	p.request.Outcomes = append(p.request.Outcomes[:0], r.Outcomes...)
	p.limits = slices.Grow(p.limits[:0], len(r.Takes))[:len(r.Takes)]
	start := 0
	for i := range p.request.Takes {
		t := &p.request.Takes[i]
		end := start + len(t.Key)
		t.Key = p.keys[start:end:end]
		// An override's limit lives in the caller's memory.
		p.limits[i] = *t.Limit
		t.Limit = &p.limits[i]
		start = end
	}
	p.owners.Store(2)
	p.began = now
	until, own := int64(0), false
	if timeout > 0 {
		until = now + int64(timeout)
	}
	if d, ok := ctx.Deadline(); ok {
		left := time.Until(d)
		if leave := now + int64(left-backend.Margin(left)); until == 0 || leave < until {
			until, own = leave, true
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ctx, p.until, p.own, p.late, p.state, p.err = ctx, until, own, false, queued, nil
}

// flush says whether p is to be part of a flush: not if its caller has left.
func (p *pending) flush() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.state == settled {
		return false
	}
	p.state = flushed
	return true
}

// settle tells the caller, unless it has been told. The state is locked.
func (p *pending) settle(err error) {
	if p.state == settled {
		return
	}
	p.state, p.err = settled, err
	p.done <- struct{}{}
}

// expire lets the caller go if its time, or the store's, is up. It returns false if nobody waits for p. The answer to what was
// sent may have come while this process had no CPU to read it: such a caller waits until expire looks again.
func (p *pending) expire(s *Store, now int64) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.state == settled {
		return false
	}
	err := p.ctx.Err()
	switch {
	case errors.Is(err, context.Canceled):
		p.settle(context.Canceled)
		return false
	case err == nil && (p.until == 0 || now < p.until):
		return true
	case p.state == flushed && !p.late:
		p.late = true
		return true
	case p.own || err != nil:
		p.settle(fmt.Errorf("%w: %w", backend.ErrUnavailable, context.DeadlineExceeded))
		return false
	default:
		p.settle(fmt.Errorf("%w: no answer within %s", backend.ErrUnavailable, s.opts.Timeout))
		return false
	}
}
