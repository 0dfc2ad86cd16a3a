package redis

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// pending is a request that waits for its flush. It owns what the flush works on: a caller whose time is up leaves, and
// its memory with it. Its caller waits for done alone, which costs less than to wait for one of several things: the queue
// looks after the caller's time (expire).
type pending struct {
	at      int64
	request backend.Request
	keys    []byte
	limits  []descriptor.Limit
	done    chan struct{} // has one element when there is an answer, or none to wait for
	owners  atomic.Int32  // the caller and the queue; the last one puts it back
	listed  bool          // it is in the queue's list; guarded by the queue's lock

	mu    sync.Mutex
	ctx   context.Context // the caller's
	until int64           // when the store's own time is up, in nanoseconds after the queue's base; 0: never
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

// begin makes p a request of a caller's, and its own copy of it.
func (p *pending) begin(ctx context.Context, at, until int64, r *backend.Request) {
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
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ctx, p.until, p.state, p.err = ctx, until, queued, nil
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

// expire lets the caller go if its time, or the store's, is up. It returns false if nobody waits for p.
func (p *pending) expire(s *Store, now int64) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.state == settled:
		return false
	case p.ctx.Err() != nil:
		p.settle(s.failure(p.ctx, p.ctx.Err()))
		return false
	case p.until > 0 && now >= p.until:
		p.settle(fmt.Errorf("%w: no answer within %s", backend.ErrUnavailable, s.opts.Timeout))
		return false
	default:
		return true
	}
}
