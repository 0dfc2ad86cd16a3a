package redis

import (
	"context"
	"fmt"
	"sync"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/ratelimitd/ratelimitd/internal/backend"
)

// queue lets requests that are in flight together share round trips. There is no delay: whatever has come while the
// last flush was under way goes as one. While nothing is under way a request goes at once, from the goroutine that
// brought it.
type queue struct {
	store *Store
	slots chan struct{} // one for each flush that may be under way

	mu      sync.Mutex
	waiting []*pending
	started bool
	wake    chan struct{} // something is waiting
}

const (
	// flushers is how many flushes may be under way: with two, one is prepared while the other is on its way.
	flushers = 2
	// maxFlush is how many takes go in one flush, about: Redis does nothing else meanwhile.
	maxFlush = 64
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

func newQueue(s *Store) *queue {
	return &queue{store: s, slots: make(chan struct{}, flushers), wake: make(chan struct{}, 1)}
}

// take settles a request, alone if nothing is under way, else with the others that wait.
func (q *queue) take(ctx context.Context, at int64, r *backend.Request) error {
	if err := ctx.Err(); err != nil {
		return q.store.failure(ctx, err)
	}
	select {
	case q.slots <- struct{}{}:
		c := calls.Get().(*call)
		err := q.store.take(ctx, at, c, r)
		c.release()
		<-q.slots
		return err
	default:
	}
	p := pendings.Get().(*pending)
	p.copy(at, r)
	q.put(p)

	timeout := q.store.opts.Timeout
	if timeout > 0 {
		p.timer.Reset(timeout)
		defer p.timer.Stop()
	}
	var timedOut <-chan time.Time
	if timeout > 0 {
		timedOut = p.timer.C
	}
	select {
	case <-p.done:
		err := p.err
		if err == nil {
			copy(r.Outcomes, p.request.Outcomes)
		}
		p.release()
		return err
	case <-ctx.Done():
		p.leave()
		return q.store.failure(ctx, ctx.Err())
	case <-timedOut:
		p.leave()
		return fmt.Errorf("%w: no answer within %s", backend.ErrUnavailable, timeout)
	}
}

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

func (q *queue) put(p *pending) {
	q.mu.Lock()
	q.waiting = append(q.waiting, p)
	if !q.started {
		q.started = true
		for range flushers {
			go q.run()
		}
	}
	q.mu.Unlock()
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// run flushes what waits, for as long as the process lives.
func (q *queue) run() {
	var batch []*pending
	for range q.wake {
		for {
			q.slots <- struct{}{}
			batch = q.next(batch[:0])
			if len(batch) == 0 {
				<-q.slots
				break
			}
			q.flush(batch)
			<-q.slots
		}
	}
}

// next takes the requests of the next flush off the queue.
func (q *queue) next(batch []*pending) []*pending {
	q.mu.Lock()
	defer q.mu.Unlock()
	takes, n := 0, 0
	for ; n < len(q.waiting) && takes < maxFlush; n++ {
		p := q.waiting[n]
		if !p.begin() {
			p.release()
			continue
		}
		takes += len(p.request.Takes)
		batch = append(batch, p)
	}
	rest := copy(q.waiting, q.waiting[n:])
	clear(q.waiting[rest:])
	q.waiting = q.waiting[:rest]
	if rest > 0 { // for the other flusher
		select {
		case q.wake <- struct{}{}:
		default:
		}
	}
	return batch
}

// flush settles requests in one round trip; on a cluster, in one to each node. Its time is the store's; callers with less
// leave earlier.
func (q *queue) flush(batch []*pending) {
	if !q.store.cluster {
		q.send(batch)
		return
	}
	slots := make(map[uint16][]*pending)
	for _, p := range batch {
		slot := slotOf(p.request.Takes[0].Key)
		slots[slot] = append(slots[slot], p)
	}
	if len(slots) == 1 {
		q.send(batch)
		return
	}
	q.pipeline(slots)
}

func requestsOf(batch []*pending) (requests []*backend.Request, at int64) {
	requests = make([]*backend.Request, len(batch))
	for i, p := range batch {
		requests[i] = &p.request
		at = max(at, p.at)
	}
	return requests, at
}

// send settles requests by one call.
func (q *queue) send(batch []*pending) {
	requests, at := requestsOf(batch)
	c := calls.Get().(*call)
	err := q.store.take(context.Background(), at, c, requests...)
	c.release()
	for _, p := range batch {
		p.finish(err)
	}
}

// pipeline settles the requests of each slot by a call, and sends all calls to one node together.
func (q *queue) pipeline(slots map[uint16][]*pending) {
	s := q.store
	ctx, cancel := s.bound(context.Background())
	defer cancel()
	type flying struct {
		batch    []*pending
		requests []*backend.Request
		at       int64
		call     *call
		cmd      *goredis.ZeroCopyStringCmd
	}
	pipe := s.opts.Client.Pipeline()
	var all []flying
	for _, batch := range slots {
		f := flying{batch: batch, call: calls.Get().(*call)}
		f.requests, f.at = requestsOf(batch)
		if err := f.call.pack(max(f.at+s.ahead.Load(), 1), true, 0, f.requests...); err != nil {
			f.call.release()
			for _, p := range batch {
				p.finish(err)
			}
			continue
		}
		f.cmd = f.call.command(ctx, "evalsha", f.call.script.Hash)
		_ = pipe.Process(ctx, f.cmd)
		all = append(all, f)
	}
	_, _ = pipe.Exec(ctx) // each command has its own error
	for _, f := range all {
		err := f.cmd.Err()
		if err == nil {
			f.call.reply = f.cmd.Bytes()
			if len(f.call.reply) < 8 {
				err = errReply
			}
		}
		switch {
		case err == nil:
			if _, _, wanted := f.call.again(); !wanted {
				_, err = f.call.settle()
				break
			}
			err = s.take(ctx, f.at, f.call, f.requests...) // the script did nothing and asks for other arguments
		case goredis.HasErrorPrefix(err, "NOSCRIPT"), goredis.HasErrorPrefix(err, noTime): // nor here
			err = s.take(ctx, f.at, f.call, f.requests...)
		default:
			err = s.failure(ctx, err)
		}
		f.call.release()
		for _, p := range f.batch {
			p.finish(err)
		}
	}
}
