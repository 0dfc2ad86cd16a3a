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
	closed  bool
	wake    chan struct{} // something is waiting; closed by close
	running sync.WaitGroup
}

const (
	// flushers is how many flushes may be under way: with two, one is prepared while the other is on its way.
	flushers = 2
	// maxFlush is how many takes go in one flush, about: Redis does nothing else meanwhile.
	maxFlush = 64
)

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
	if !q.put(p) {
		p.release()
		c := calls.Get().(*call)
		defer c.release()
		return q.store.take(ctx, at, c, r)
	}

	timeout := q.store.opts.Timeout
	var timedOut <-chan time.Time
	if timeout > 0 {
		p.timer.Reset(timeout)
		timedOut = p.timer.C
	}
	// After leave or release, p is no longer this goroutine's: its timer is stopped before.
	select {
	case <-p.done:
		p.timer.Stop()
		err := p.err
		if err == nil {
			copy(r.Outcomes, p.request.Outcomes)
		}
		p.release()
		return err
	case <-ctx.Done():
		p.timer.Stop()
		p.leave()
		return q.store.failure(ctx, ctx.Err())
	case <-timedOut:
		p.leave()
		return fmt.Errorf("%w: no answer within %s", backend.ErrUnavailable, timeout)
	}
}

// put lets a request wait for a flush, unless there will be none any more.
func (q *queue) put(p *pending) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return false
	}
	q.waiting = append(q.waiting, p)
	if !q.started {
		q.started = true
		for range flushers {
			q.running.Go(q.run)
		}
	}
	q.alert()
	return true
}

// alert tells a flusher that something is waiting. The queue is locked.
func (q *queue) alert() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// close ends the flushers when all that waits is flushed.
func (q *queue) close() {
	q.mu.Lock()
	if !q.closed {
		q.closed = true
		close(q.wake)
	}
	q.mu.Unlock()
	q.running.Wait()
}

// run flushes what waits, until the queue is closed and nothing does.
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
	if rest > 0 && !q.closed { // for the other flusher
		q.alert()
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
	at := latest(batch)
	m := q.store.terms(at, true, 0)
	c := calls.Get().(*call)
	slots := make(map[uint16][]*pending)
	for _, p := range batch {
		key, _ := c.keyOf(&p.request.Takes[0], &m)
		slot := slotOf(key)
		slots[slot] = append(slots[slot], p)
	}
	c.release()
	if len(slots) == 1 && !m.lyft {
		q.send(batch)
		return
	}
	q.pipeline(slots, at, m)
}

func requestsOf(batch []*pending) []*backend.Request {
	requests := make([]*backend.Request, len(batch))
	for i, p := range batch {
		requests[i] = &p.request
	}
	return requests
}

// latest is the time of the newest request.
func latest(batch []*pending) (at int64) {
	for _, p := range batch {
		at = max(at, p.at)
	}
	return at
}

// send settles requests by one call.
func (q *queue) send(batch []*pending) {
	c := calls.Get().(*call)
	err := q.store.take(context.Background(), latest(batch), c, requestsOf(batch)...)
	c.release()
	for _, p := range batch {
		p.finish(err)
	}
}

// pipeline settles the requests of each slot by a call, and sends all calls to one node together. The slots are those of
// the terms.
func (q *queue) pipeline(slots map[uint16][]*pending, at int64, m terms) {
	s := q.store
	ctx, cancel := s.bound(context.Background())
	defer cancel()
	type flying struct {
		batch    []*pending
		requests []*backend.Request
		call     *call
		cmd      *goredis.ZeroCopyStringCmd
	}
	pipe := s.opts.Client.Pipeline()
	var all []flying
	for _, batch := range slots {
		f := flying{batch: batch, requests: requestsOf(batch), call: calls.Get().(*call)}
		if err := f.call.pack(m, f.requests...); err != nil {
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
			now, _, wanted := f.call.again()
			if wanted { // the script did nothing and asks for other arguments
				s.ahead.Store(now - at)
				q.each(ctx, at, f.call, f.batch)
				continue
			}
			if now, err = f.call.settle(); err == nil && f.call.calendar {
				s.ahead.Store(now - at)
			}
		case goredis.HasErrorPrefix(err, "NOSCRIPT"), goredis.HasErrorPrefix(err, noTime): // nor here
			q.each(ctx, at, f.call, f.batch)
			continue
		default:
			err = s.failure(ctx, err)
		}
		f.call.release()
		for _, p := range f.batch {
			p.finish(err)
		}
	}
}

// each settles requests again whose keys were in one slot. With the time in their keys they may be in several by now, so
// that each goes by itself.
func (q *queue) each(ctx context.Context, at int64, c *call, batch []*pending) {
	defer c.release()
	if !q.store.opts.LyftKeys {
		err := q.store.take(ctx, at, c, requestsOf(batch)...)
		for _, p := range batch {
			p.finish(err)
		}
		return
	}
	for _, p := range batch {
		p.finish(q.store.take(ctx, at, c, &p.request))
	}
}
