package redis

import (
	"context"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/platform/async"
)

// queue lets requests that are in flight together share round trips. It adds no delay: requests that arrive during a
// flush are sent together in the next one, and requests that find no flush in flight are sent immediately. Requests of
// one batch enter the queue together, and leave it together.
//
// Workers send the flushes. A flush waits for its answer up to the store's timeout, even after its callers have left:
// each of them leaves at its deadline. So a late answer still shows that Redis works, and the connection stays open.
//
// mu guards all fields that change. The channels only wake workers up.
type queue struct {
	store *Store
	base  time.Time // times are nanoseconds after it

	mu        sync.Mutex
	state     schedule
	watched   []*inFlight // requests whose deadlines expire checks; some of them may be answered already
	ticking   bool        // whether the timer that runs expire is set
	running   int         // number of workers
	restUntil int64       // time until which no caller sends its request itself
	closed    bool

	timer   *time.Timer
	due     int64            // when the timer fires, if it is set
	late    backend.Lateness // lateness of the timer
	begun   chan struct{}    // a slot is reserved to flush the waiting requests, which are claimed
	wake    chan struct{}    // requests wait and no worker has claimed them; closed by close
	landed  chan struct{}    // a slot is free again
	workers sync.WaitGroup
	pool    sync.Pool // *inFlight
}

const (
	// expireEvery is how late a caller may notice that its deadline has passed. A timer for each caller would cost more
	// than the rest of the queue.
	expireEvery = time.Millisecond
	// expireFirst is the time of the first check of callers, if no deadline comes before and Redis answers quickly. They
	// usually have their answers by then. Even a stopped timer wakes a sleeping process, so a timer of expireEvery would
	// wake it once for each call.
	expireFirst = 20 * time.Millisecond
)

func newQueue(s *Store, connections int) *queue {
	q := &queue{
		store: s, base: time.Now(), state: newSchedule(connections),
		wake: make(chan struct{}, 1), landed: make(chan struct{}, 1),
		pool: sync.Pool{New: newInFlight},
	}
	q.begun = make(chan struct{}, q.state.most)
	q.timer = time.AfterFunc(time.Hour, q.expire)
	q.timer.Stop()
	return q
}

func (q *queue) now() int64 { return int64(time.Since(q.base)) }

// newRequest returns a copy of a caller's request. done gets its error.
func (q *queue) newRequest(ctx context.Context, at int64, r *backend.Request, done func(error)) *inFlight {
	f := q.pool.Get().(*inFlight)
	f.init(ctx, at, r, done)
	return f
}

// start sends a request to the workers. With a batch, the request enters the queue when the batch is sent.
func (q *queue) start(f *inFlight, b *backend.Batch) {
	apart := q.store.CallerClock()
	switch {
	case b != nil && !apart:
		o := q.outbox(b)
		o.requests = append(o.requests, f)
	case !q.put(apart, f):
		q.sendAfterClose(f)
	}
}

// sendAfterClose settles a request of a queue that is closed.
func (q *queue) sendAfterClose(f *inFlight) {
	f.enter(time.Now(), q.now(), 0, 0)
	async.Go(func() error { return q.store.settle(f.ctx, f.at, &f.request) }, func(err error) { q.finish(f, err) })
}

// deliver calls the callback of a request that is answered.
func (q *queue) deliver(f *inFlight) {
	done, r, err := f.callback, f.whole, f.err
	switch {
	case err == nil:
		f.copyTo(r)
	case !f.part:
		backend.Fail(r.Outcomes)
		err = q.store.failed("count in Redis", err)
	}
	q.release(f)
	done(err)
}

// put sends requests, each alone if apart is set, or lets them wait for a flush. It returns false if the queue is
// closed.
func (q *queue) put(apart bool, requests ...*inFlight) bool {
	wall := time.Now()
	now := int64(wall.Sub(q.base))
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return false
	}
	late := q.late.Now(wall)
	for _, f := range requests {
		q.watch(f, now, f.enter(wall, now, q.store.opts.Timeout, late))
	}
	if apart {
		for _, f := range requests {
			q.workers.Go(func() { q.sendApart(f) })
		}
		return true
	}
	begun := q.state.add(now, requests...)
	q.startWorkers()
	if begun {
		q.begun <- struct{}{} // has room: one element per slot
	} else {
		q.wakeWorker()
	}
	return true
}

// startWorkers makes sure that a worker is free: one may wait for a slot while the others wait for answers. Most
// replicas never have many round trips in flight. The caller holds the lock, and the queue is not closed or has a
// worker.
func (q *queue) startWorkers() {
	for ; q.running <= q.state.flushes; q.running++ {
		q.workers.Go(q.work)
	}
}

// wakeWorker wakes a worker if requests wait that no worker has claimed. The caller holds the lock.
func (q *queue) wakeWorker() {
	if q.state.claimed || q.closed || len(q.state.waiting) == 0 {
		return
	}
	select {
	case q.wake <- struct{}{}:
	default: // one is being woken
	}
}

// watch makes expire check a request whose caller leaves at until. The caller holds the lock.
func (q *queue) watch(f *inFlight, now, until int64) {
	if !f.watched {
		f.watched = true
		q.watched = append(q.watched, f)
	}
	due := now + int64(expireFirst)
	if until > 0 {
		due = min(due, until)
	}
	if soon := now + int64(expireEvery); q.state.slow || due < soon {
		due = soon
	}
	if !q.ticking || due < q.due {
		q.tick(now, due)
	}
}

// tick has expire run when it is due. The caller holds the lock.
func (q *queue) tick(now, due int64) {
	q.ticking, q.due = true, due
	q.timer.Reset(time.Duration(due - now))
}

// expire answers callers whose deadline or timeout has passed. It runs again as long as any request is watched. While
// Redis hangs, no flush drops the requests of callers that have left. So expire drops them when they are the majority.
func (q *queue) expire() {
	var expired []*inFlight
	q.mu.Lock()
	wall := time.Now()
	now := int64(wall.Sub(q.base))
	q.late.Timer(wall, time.Duration(now-q.due))
	q.watched = slices.DeleteFunc(q.watched, func(f *inFlight) bool {
		waits, call := f.expire(q.store, now)
		if f.watched = waits; call {
			expired = append(expired, f)
		}
		return !waits
	})
	if len(q.state.waiting) > 2*len(q.watched)+maxFlush {
		q.state.drop(q.release)
	}
	if q.ticking = len(q.watched) > 0; q.ticking {
		q.tick(now, now+int64(expireEvery))
	}
	q.mu.Unlock()
	for _, f := range expired {
		q.deliver(f)
	}
}

// close ends the workers after all waiting requests have been sent and answered.
func (q *queue) close() {
	q.mu.Lock()
	if !q.closed {
		q.closed = true
		close(q.wake)
	}
	q.mu.Unlock()
	q.workers.Wait()
}

// work sends requests until the queue is closed and nothing waits.
func (q *queue) work() {
	var batch []*inFlight
	timer := time.NewTimer(time.Hour)
	for open := true; open; {
		select {
		case <-q.begun:
			runtime.Gosched() // let requests that have arrived on other connections join
			batch = q.sendWaiting(batch)
		case _, open = <-q.wake:
			if q.awaitSlot(timer) {
				batch = q.sendWaiting(batch)
			}
		}
	}
	for {
		select {
		case <-q.begun:
			batch = q.sendWaiting(batch)
		default:
			return
		}
	}
}

// awaitSlot claims the requests that wait, and waits for a slot to flush them. It returns false if there is nothing to
// claim.
func (q *queue) awaitSlot(timer *time.Timer) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.state.claim() {
		return false
	}
	for !q.state.begin(q.now()) {
		var late <-chan time.Time
		// Usually a flush ends before the timer would fire, and a timer costs more than a flush. The timer is needed if Redis
		// is far away, or if one node of a cluster hangs while others answer quickly.
		if q.state.slow || q.store.cluster {
			timer.Reset(spread)
			late = timer.C
		}
		q.mu.Unlock()
		select {
		case <-q.landed:
		case <-late:
		}
		q.mu.Lock()
	}
	q.startWorkers()
	return true
}

// sendWaiting flushes until no requests wait. The worker has claimed the waiting ones, and has a slot.
func (q *queue) sendWaiting(batch []*inFlight) []*inFlight {
	q.mu.Lock()
	q.state.claimed = false
	began, hot := q.state.latest, q.state.hot
	batch = q.next(batch)
	q.mu.Unlock()
	for len(batch) > 0 {
		kept := hot && len(batch) < hotRatio // so few takes are no evidence about the counters of waiting requests
		if hot = q.flush(batch, hot); hot {
			// let requests that have arrived join first: the more there are, the less the next flush costs each of them
			runtime.Gosched()
		}
		now := q.now()
		q.mu.Lock()
		hot = hot || kept && len(q.state.waiting) > 0
		q.state.ended(began, now, hot)
		began, q.state.latest = now, now // the next flush starts in the same slot
		batch = q.next(batch)
		q.mu.Unlock()
	}
	q.signal()
	return batch
}

// next removes the requests of the next flush from the queue. Without any, it frees the slot. The caller holds the
// lock.
func (q *queue) next(batch []*inFlight) []*inFlight {
	clear(batch)
	batch = q.state.take(batch[:0], q.release)
	if len(batch) == 0 {
		q.state.free()
		q.rest()
	}
	q.wakeWorker() // another worker may send the remaining requests
	return batch
}

// rest stops the timer if no caller waits: it would wake a sleeping process. The caller holds the lock.
func (q *queue) rest() {
	if !q.ticking || !q.state.idle() {
		return
	}
	q.watched = slices.DeleteFunc(q.watched, func(f *inFlight) bool {
		f.watched = !f.isAnswered()
		return !f.watched
	})
	if len(q.watched) == 0 {
		q.ticking = !q.timer.Stop() // if it has fired, expire waits for the lock
	}
}

// signal wakes a worker that waits for a free slot.
func (q *queue) signal() {
	select {
	case q.landed <- struct{}{}:
	default: // a signal is pending already
	}
}

// sendApart settles a request with a separate call, unless its caller has left.
func (q *queue) sendApart(f *inFlight) {
	if !f.markSent() {
		q.release(f)
		return
	}
	q.finish(f, q.store.settle(context.Background(), f.at, &f.request))
}

// finish answers a request, if its caller still waits.
func (q *queue) finish(f *inFlight, err error) {
	if f.answer(err) {
		q.deliver(f)
	}
	q.release(f)
}

// release is called by each of f's two owners, the caller and the queue, when it no longer needs f.
func (q *queue) release(f *inFlight) {
	if f.owners.Add(-1) == 0 && f.forget() {
		q.pool.Put(f)
	}
}
