package redis

import (
	"sync"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend"
)

// pending is a request that waits for its flush. It owns what the flush works on: a caller whose time is up leaves, and
// its memory with it.
type pending struct {
	at      int64
	request backend.Request
	keys    []byte
	err     error
	done    chan struct{} // has one element when the flush is over
	timer   *time.Timer

	mu    sync.Mutex
	state pendingState
}

type pendingState uint8

const (
	queued  pendingState = iota
	flushed              // it is part of a flush: its hits may count
	left                 // the caller is gone; whoever finds it so puts it back
)

var pendings = sync.Pool{New: func() any {
	t := time.NewTimer(time.Hour)
	t.Stop()
	return &pending{done: make(chan struct{}, 1), timer: t}
}}

// copy makes p's own copy of a request.
func (p *pending) copy(at int64, r *backend.Request) {
	p.at, p.err, p.state = at, nil, queued
	p.keys = p.keys[:0]
	for i := range r.Takes {
		p.keys = append(p.keys, r.Takes[i].Key...)
	}
	p.request.Together = r.Together
	p.request.Takes = append(p.request.Takes[:0], r.Takes...)
	p.request.Outcomes = append(p.request.Outcomes[:0], r.Outcomes...)
	start := 0
	for i := range p.request.Takes {
		t := &p.request.Takes[i]
		end := start + len(t.Key)
		t.Key = p.keys[start:end:end]
		// An override's limit lives in the caller's memory.
		l := *t.Limit
		t.Limit = &l
		start = end
	}
}

// leave is what a caller does that waits no longer. What has not been sent will not be.
func (p *pending) leave() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.state = left
}

// begin says whether p is to be part of a flush: not if its caller has left.
func (p *pending) begin() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.state == left {
		return false
	}
	p.state = flushed
	return true
}

// finish hands the outcomes over, or puts p back if nobody wants them.
func (p *pending) finish(err error) {
	p.mu.Lock()
	gone := p.state == left
	p.err = err
	p.mu.Unlock()
	if gone {
		p.release()
		return
	}
	p.done <- struct{}{}
}

func (p *pending) release() {
	select {
	case <-p.done: // the caller left at the moment that the flush was over
	default:
	}
	if cap(p.keys) > keepRoom || cap(p.request.Takes) > 1024 {
		return
	}
	clear(p.request.Takes)
	pendings.Put(p)
}
