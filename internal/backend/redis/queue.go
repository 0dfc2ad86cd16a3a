package redis

import (
	"context"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend"
)

// queue lets requests that are in flight together share round trips. There is no delay: whatever has come while the
// last flush was under way goes as one. While nothing is under way a request goes at once.
//
// A flush is sent by a goroutine of the queue and waits for its answer as long as the store's timeout says, whatever its callers do: each
// of them leaves at its own deadline. So an answer that comes late still shows that Redis is well, and its connection stays.
type queue struct {
	store *Store

	few, most int32        // flushes that may be under way: at any rate, and spread in time
	flying    atomic.Int32 // flushes that are
	base      time.Time
	latest    atomic.Int64  // when the latest one began, in nanoseconds after base
	slow      atomic.Bool   // the last one that ended took longer than spread
	alike     atomic.Bool   // most takes of the last full one were alike: of one hot counter, or of a few
	landed    chan struct{} // one is over

	pendings sync.Pool
	look     *time.Timer // runs expire

	mu      sync.Mutex
	waiting []*pending
	listed  []*pending // whose time is looked after: those that wait, those that are in a flush, and some that have an answer
	looking bool       // the timer is set
	started bool
	closed  bool
	queued  atomic.Int32  // how many wait: who comes then waits too, and goes with them
	awaited bool          // a goroutine waits until it may flush what waits
	wake    chan struct{} // something is waiting, and nobody waits to flush it; closed by close
	alone   chan *pending // requests that go by themselves; their flush has begun
	running sync.WaitGroup
}

const (
	// flushers is how many flushes may be under way: with two, one is prepared while the other is on its way.
	flushers = 2
	// maxFlushers is how many there may be if Redis is far away, one more for each spread that passes, and no more than
	// there are connections: who comes while two are under way would else wait for half a round trip, and then have not
	// enough time left for one of their own.
	maxFlushers = 16
	spread      = time.Millisecond
	// maxFlush is how many takes go in one flush, about: Redis does nothing else meanwhile. Takes that are alike go to Redis
	// as one, so there may be more of them: the more wait for one counter, the less each costs.
	maxFlush      = 64
	maxFlushAlike = 512
	// hot is how many takes that are alike, for each that is sent, make a counter hot. Then flushes go one at a time: a
	// second one beside the first would take half of those that wait for the same counter along, and cost Redis as much.
	hot = 4
	// expireEvery is how late a caller may learn that its time is up. A timer for each would cost more than all else here.
	expireEvery = time.Millisecond
)

func newQueue(s *Store, connections int) *queue {
	most := int32(min(maxFlushers, max(connections, 1)))
	q := &queue{
		store: s, few: min(flushers, most), most: most, base: time.Now(), landed: make(chan struct{}, most), wake: make(chan struct{}, 1),
		alone:    make(chan *pending, most),
		pendings: sync.Pool{New: newPending},
	}
	q.look = time.AfterFunc(time.Hour, q.expire)
	q.look.Stop()
	return q
}

// now is the time in nanoseconds after base.
func (q *queue) now() int64 { return int64(time.Since(q.base)) }

// begin says whether another flush may be under way now, and if so takes it for begun.
func (q *queue) begin(now int64) bool {
	for {
		n := q.flying.Load()
		if n >= q.most {
			return false
		}
		few := q.few
		if q.alike.Load() {
			few = 1
		}
		if n >= few && now-q.latest.Load() < int64(spread) {
			return false
		}
		if q.flying.CompareAndSwap(n, n+1) {
			q.latest.Store(now)
			return true
		}
	}
}

// took notes how long a flush took that is over, and returns the time.
func (q *queue) took(began int64) (now int64) {
	now = q.now()
	if slow := now-began >= int64(spread); slow != q.slow.Load() {
		q.slow.Store(slow)
	}
	return now
}

// end lets another flush begin.
func (q *queue) end() {
	q.flying.Add(-1)
	select {
	case q.landed <- struct{}{}:
	default:
	}
}

// take settles a request: alone if nothing is under way or it is to go apart, else with the others that wait.
func (q *queue) take(ctx context.Context, at int64, apart bool, r *backend.Request) error {
	if err := ctx.Err(); err != nil {
		return q.store.failure(ctx, err)
	}
	p := q.pendings.Get().(*pending)
	p.begin(ctx, at, q.now(), q.store.opts.Timeout, r)
	if !q.put(p, apart) {
		c := calls.Get().(*call)
		defer c.release()
		return q.store.take(ctx, at, c, r)
	}
	<-p.done
	err := p.err
	if err == nil {
		copy(r.Outcomes, p.request.Outcomes)
	}
	q.drop(p)
	return err
}

// put sends a request, or lets it wait for a flush, unless there will be none any more.
func (q *queue) put(p *pending, apart bool) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return false
	}
	if !p.listed {
		p.listed = true
		q.listed = append(q.listed, p)
	}
	if !q.looking {
		q.looking = true
		q.look.Reset(expireEvery)
	}
	if apart {
		q.running.Go(func() { q.sendApart(p) })
		return true
	}
	if !q.started {
		q.started = true
		for range q.most + 1 { // one may wait for its turn while the others are on their way
			q.running.Go(q.run)
		}
	}
	if len(q.waiting) == 0 && q.begin(p.began) {
		q.alone <- p
		return true
	}
	q.waiting = append(q.waiting, p)
	q.queued.Store(int32(len(q.waiting)))
	q.alert()
	return true
}

// expire lets callers go whose time is up. It looks again as long as anybody waits.
func (q *queue) expire() {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := q.now()
	q.listed = slices.DeleteFunc(q.listed, func(p *pending) bool {
		p.listed = p.expire(q.store, now)
		return !p.listed
	})
	if q.looking = len(q.listed) > 0; q.looking {
		q.look.Reset(expireEvery)
	}
}

// alert tells a flusher that something is waiting, unless one waits for it already. The queue is locked.
func (q *queue) alert() {
	if q.awaited {
		return
	}
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

// run sends what there is, until the queue is closed and nothing waits.
func (q *queue) run() {
	var batch []*pending
	patience := time.NewTimer(time.Hour)
	for open := true; open; {
		select {
		case p := <-q.alone:
			q.sendAlone(p)
		case _, open = <-q.wake:
			if open && q.await(patience) {
				batch = q.sendAll(batch)
			}
		}
	}
	for {
		select {
		case p := <-q.alone:
			q.sendAlone(p)
		default:
			return
		}
	}
}

// sendAll flushes until nothing waits.
func (q *queue) sendAll(batch []*pending) []*pending {
	began := q.latest.Load()
	for batch = q.next(batch[:0], true); len(batch) > 0; batch = q.next(batch[:0], false) {
		q.flush(batch)
		if q.alike.Load() { // requests that are here go first: the more of them there are, the less the next flush costs each
			runtime.Gosched()
		}
		began = q.took(began) // and the next one begins
		q.latest.Store(began)
	}
	q.end()
	return batch
}

// sendAlone settles a request by itself.
func (q *queue) sendAlone(p *pending) {
	began := p.began // sendApart gives p away
	q.sendApart(p)
	q.took(began)
	if q.alike.Load() && q.queued.Load() == 0 { // nobody came meanwhile
		q.alike.Store(false)
	}
	q.end()
}

// sendApart settles a request by itself, unless its caller has left.
func (q *queue) sendApart(p *pending) {
	if !p.flush() {
		q.drop(p)
		return
	}
	c := calls.Get().(*call)
	err := q.store.take(context.Background(), p.at, c, &p.request)
	c.release()
	q.finish(p, err)
}

// await waits until a flush of what waits has begun. It returns false if nothing waits, or another goroutine waits here.
func (q *queue) await(patience *time.Timer) bool {
	q.mu.Lock()
	mine := !q.awaited && len(q.waiting) > 0
	q.awaited = q.awaited || mine
	q.mu.Unlock()
	if !mine {
		return false
	}
	for {
		if q.begin(q.now()) {
			return true
		}
		var late <-chan time.Time
		// One will land before the timer would ring, and a timer costs more than a flush, unless Redis is far away; or a node
		// of a cluster hangs, however quick the flushes were that did not ask it.
		if q.slow.Load() || q.store.cluster {
			patience.Reset(spread)
			late = patience.C
		}
		select {
		case <-q.landed:
		case <-late:
		}
	}
}

// next takes the requests of the next flush off the queue. awaited says that the goroutine has waited for them.
func (q *queue) next(batch []*pending, awaited bool) []*pending {
	q.mu.Lock()
	defer q.mu.Unlock()
	if awaited {
		q.awaited = false
	}
	most := maxFlush
	if q.alike.Load() {
		most = maxFlushAlike
	}
	takes, n := 0, 0
	for ; n < len(q.waiting) && takes < most; n++ {
		p := q.waiting[n]
		if !p.flush() {
			q.drop(p)
			continue
		}
		takes += len(p.request.Takes)
		batch = append(batch, p)
	}
	rest := copy(q.waiting, q.waiting[n:])
	clear(q.waiting[rest:])
	q.waiting = q.waiting[:rest]
	q.queued.Store(int32(rest))
	if rest > 0 && !q.closed { // for another flusher
		q.alert()
	}
	return batch
}

// finish hands the outcomes over, if somebody still wants them.
func (q *queue) finish(p *pending, err error) {
	p.mu.Lock()
	p.settle(err)
	p.mu.Unlock()
	q.drop(p)
}

// drop is what each of p's owners does when it is done with it.
func (q *queue) drop(p *pending) {
	if p.owners.Add(-1) > 0 {
		return
	}
	if cap(p.keys) > keepRoom || cap(p.request.Takes) > 1024 {
		return
	}
	clear(p.request.Takes)
	p.mu.Lock()
	p.ctx = nil
	p.mu.Unlock()
	q.pendings.Put(p)
}
