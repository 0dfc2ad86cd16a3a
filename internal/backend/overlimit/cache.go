package overlimit

import (
	"context"
	"hash/maphash"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/platform/metric"
)

// Options are the settings of a Cache.
type Options struct {
	Store   backend.Store   // required
	Bytes   int             // maximum size of the denials, keys included; default 1 MiB
	Metrics metric.Registry // nil disables metrics

	// Refunded is called after hits of a counter were given back, if any were in use: other replicas may have denied a
	// request of several hits, or one of another class, long before the counter was exhausted, and can forget that now. A
	// decision waits for it. The key is valid until it returns. Default: nothing is called.
	Refunded func(key []byte)

	// Far is set if the store is in another region: far.go describes the differences. Nil if the store is in this region.
	Far *Far
}

// Cache answers takes whose denial it knows, and forwards the others to the backend.
type Cache struct {
	clock    backend.Clock
	store    backend.Store
	refunded func(key []byte)
	far      *Far  // nil if the store is near
	perShard int64 // bytes
	seed     maphash.Seed
	shards   [shardCount]shard
	pool     sync.Pool // *asked
	hits     atomic.Uint64
}

const (
	shardCount = 64
	overhead   = 128 // size of a denial without its key in bytes, approximately
)

type shard struct {
	mu      sync.Mutex
	denials map[string]denial
	bytes   int64
	// number of starts and ends of refunds: a take that started at another number may return an outdated denial
	refunds uint64
}

// earlier is the state of the cache before a take went to the backend.
type earlier struct {
	refunds uint64 // refunds of its shard
	known   bool   // the take gives hits back: a denial of the counter was known
}

// denial is a denial of a counter. A counter has one denial, although several limits (plans, overrides, classes) and
// requests of any number of hits may use it. So the denial holds the limit that denied and the number of hits, and it
// is used only for that limit and at least that many hits. Refunds are different: when hits are given back to a
// counter, its denial is removed, regardless of the limit of the refund.
type denial struct {
	until    int64 // an elapsed time: a clock that is set back does not make a denial longer
	reset    int64
	hits     int64 // the smallest number of hits that is denied
	used     int64
	kept     int64
	requests uint64 // requests, burst and classes of the limit that denied
	burst    uint64
	classes  descriptor.ClassParts // classes of the limit; the denial does not apply to another class of the counter

	overdue *overdue // nil if the store is near
}

// asked holds the takes that go to the backend.
type asked struct {
	backend.SubRequest
	earlier []earlier // one for each take

	whole  *backend.Request
	at     int64
	done   func(error) // done of Start
	resume func(error) // called with the store's answer to Start; made once
}

// New returns an empty cache in front of a backend.
func New(opts Options) *Cache {
	if opts.Bytes <= 0 {
		opts.Bytes = 1 << 20
	}
	c := &Cache{clock: backend.NewClock(), store: opts.Store, refunded: opts.Refunded, far: opts.Far,
		perShard: int64(max(opts.Bytes/shardCount, 1024)), seed: maphash.MakeSeed()}
	c.pool.New = func() any {
		a := new(asked)
		a.resume = func(err error) {
			done := a.done
			c.learn(a)
			done(err)
		}
		return a
	}
	for i := range c.shards {
		c.shards[i].denials = make(map[string]denial)
	}
	metric.Register(opts.Metrics,
		metric.Counter("ratelimitd_over_limit_cache_hits_total", "Attempts that the denial cache denied.", c.Hits))
	return c
}

// Start answers the takes that the cache can deny, and forwards the rest to the store in one call.
func (c *Cache) Start(ctx context.Context, now time.Time, b *backend.Batch, r *backend.Request,
	done func(error)) (settled bool, err error) {
	a := c.ask(now, r)
	if a == nil {
		return true, nil
	}
	a.done = done
	settled, err = c.store.Start(ctx, now, b, &a.Request, a.resume)
	if settled {
		c.learn(a)
	}
	return settled, err
}

// ask answers from the cache, and returns the takes that only the store can answer, or nil.
func (c *Cache) ask(now time.Time, r *backend.Request) *asked {
	at := c.clock.Elapsed(now)
	a := c.pool.Get().(*asked)
	a.whole, a.at = r, at
	a.Together = r.Together

	for start := 0; start < len(r.Takes); {
		end := r.Group(start)
		answered, peek := c.deny(at, r, start, end)
		if peek {
			a.Together = false // these takes only read, or are refunds, which happen regardless of the other takes
		}
		for i := start; i < end && !answered; i++ {
			if peek && !r.Outcomes[i].Allowed {
				continue
			}
			t := a.Add(i, r.Takes[i])
			if peek {
				t.Hits, t.Reservation = min(t.Hits, 0), nil
			}
			a.earlier = append(a.earlier, c.before(t))
		}
		start = end
	}
	if len(a.Takes) == 0 {
		c.release(a)
		return nil
	}
	a.Prepare()
	return a
}

// learn passes on the store's answers, and remembers denials.
func (c *Cache) learn(a *asked) {
	a.Answer(a.whole)
	for i := range a.Takes {
		c.after(a.at, &a.Takes[i], &a.Outcomes[i], a.earlier[i])
	}
	c.release(a)
}

func (c *Cache) release(a *asked) {
	a.Clear()
	a.earlier = a.earlier[:0]
	a.whole, a.done = nil, nil
	c.pool.Put(a)
}

// Peek asks the store how much is used, except for counters that are known to deny everything.
func (c *Cache) Peek(ctx context.Context, now time.Time, r *backend.Request) error {
	var a backend.SubRequest
	for i := range r.Takes {
		anything := r.Takes[i]
		anything.Hits = 0
		o := &r.Outcomes[i]
		switch {
		case !c.known(c.clock.Elapsed(now), &anything, o):
			a.Add(i, r.Takes[i])
		case r.Takes[i].Hits > int64(anything.Limit.Capacity()):
			o.RetryAfter = backend.Never
		}
	}
	if len(a.Takes) == 0 {
		return nil
	}
	a.Prepare()
	err := c.store.Peek(ctx, now, &a.Request)
	a.Answer(r)
	return err
}

// deny answers a group if the cache has denials of all its takes. For the limits of one descriptor, one known denial is
// enough if it has a vote: then the other limits count nothing. peek means that only the takes with a known denial are
// answered; the others are only read, and have an outcome that is allowed.
func (c *Cache) deny(now int64, r *backend.Request, start, end int) (answered, peek bool) {
	denied, answers, enough := 0, 0, false
	for i := start; i < end; i++ {
		if r.Takes[i].Corrects() || r.Takes[i].Settled {
			return false, false // it is carried out regardless of the others
		}
		guarded := i > start && r.Takes[i-1].Guards
		penalised := guarded && !r.Outcomes[i-1].Allowed
		if guarded && !penalised {
			// a penalty may start, even if another limit denies the group, and only the store starts penalties
			return false, false
		}
		if c.known(now, &r.Takes[i], &r.Outcomes[i]) {
			denied++
			enough = enough || r.Takes[i].Vote != backend.VoteNone
			continue
		}
		r.Outcomes[i] = backend.Outcome{Allowed: true, Cached: true}
		if penalised {
			if !outlasts(&r.Outcomes[i-1], &r.Takes[i]) {
				return false, false
			}
			answers++ // it adds nothing, regardless of its counter
		}
	}
	all := denied+answers == end-start
	if denied == 0 || !r.Together && !enough && !all {
		return false, false
	}
	if r.Together && !all {
		if !r.PeekWhenKnown || !backend.Denied(r.Takes[start:end], r.Outcomes[start:end]) {
			return false, false
		}
		peek = true
	}
	c.hits.Add(uint64(denied))
	return !peek, peek
}

// known fills the outcome of a take whose denial is known, and reports whether it is known.
func (c *Cache) known(now int64, t *backend.Take, o *backend.Outcome) bool {
	if t.Hits < 0 || t.Limit.Reservable() || t.Reservation != nil {
		return false
	}
	sh := c.shard(t.Key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	e, ok := sh.denials[string(t.Key)]
	if !ok {
		return false
	}
	if e.until <= now && c.far == nil {
		sh.forget(t.Key)
		return false
	}
	if !e.of(t.Limit) || t.Hits < e.hits {
		return false
	}
	// More hits are denied too, but may have to wait longer than these: only the store can compute how long, unless the
	// whole counter is free then.
	if c.far == nil && t.Hits > e.hits && e.until < e.reset && t.Hits <= int64(t.Limit.Capacity()) {
		return false
	}
	if e.until <= now && c.asks(sh, now, t, &e) {
		return false
	}
	*o = backend.Outcome{
		Cached: true, Before: e.used, Used: e.used, Kept: e.kept,
		RetryAfter: time.Duration(max(e.until-now, 1)) * time.Microsecond,
		ResetAfter: time.Duration(max(e.reset-now, 0)) * time.Microsecond,
	}
	if e.overdue != nil {
		o.Limit = e.overdue.limit
	}
	if o.MoreAfter = o.RetryAfter; fitsNever(t, o) {
		o.RetryAfter = backend.Never
	}
	return true
}

// givesBack reports whether hits may come back by a take: by a refund, or by a commit of fewer hits than were reserved.
func givesBack(t *backend.Take) bool {
	return t.Hits < 0 || t.Reservation != nil && t.Reservation.Op == backend.OpCommit
}

// before is called before a take goes to the backend. A take that gives hits back removes the denial of its counter
// now, and again afterwards: a take in between may have seen the counter before the refund.
func (c *Cache) before(t *backend.Take) (b earlier) {
	sh := c.shard(t.Key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if givesBack(t) {
		sh.refunds++
		b.known = sh.forget(t.Key)
	}
	b.refunds = sh.refunds
	return b
}

func (c *Cache) after(now int64, t *backend.Take, o *backend.Outcome, b earlier) {
	if givesBack(t) {
		c.refund(t, o, b)
		return
	}
	if o.Failed || o.Cached || t.Limit.Reservable() { // a denial may end when a reservation does
		return
	}
	sh := c.shard(t.Key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	c.note(sh, now, t, o, b)
}

// note records an outcome of a take that gives nothing back. The shard is locked.
func (c *Cache) note(sh *shard, now int64, t *backend.Take, o *backend.Outcome, b earlier) {
	if o.Allowed {
		if e, ok := sh.denials[string(t.Key)]; ok && e.of(t.Limit) && e.used < o.Used {
			e.used = o.Used
			sh.denials[string(t.Key)] = e
		}
		return
	}
	if sh.refunds != b.refunds || !backend.DenialLasts(t) {
		return
	}
	e := denial{
		until: now + o.RetryAfter.Microseconds(), reset: now + o.ResetAfter.Microseconds(),
		hits: t.Hits, used: o.Used, kept: o.Kept, requests: t.Limit.Requests, burst: t.Limit.Burst, classes: t.Limit.Classes,
	}
	// Where all hits become free at the same time, and denied hits were counted, everything is denied until then,
	// including peeks.
	if o.Used > int64(capacity(t, o)) && o.MoreAfter == o.ResetAfter {
		e.until, e.hits = e.reset, 0
	} else if o.RetryAfter < 0 { // more hits than the capacity: the denial is no evidence about the counter
		if c.far == nil {
			return
		}
		e.until = now + again(t)
	}
	old, ok := sh.denials[string(t.Key)]
	if ok && old.of(t.Limit) && old.hits < e.hits && now < old.until {
		return // the known denial already covers more takes
	}
	if c.far != nil {
		e.overdue = old.overdue.after(c.clock.Elapsed(time.Now()), t, o)
	}
	sh.remember(t.Key, e, c.perShard)
}

// refund removes the denial of a counter after hits were given back, even if that failed: it may have been carried out.
// Nothing is remembered of a limit with reservations, so a commit matters to no other replica, unless another limit of
// the counter was denied here.
func (c *Cache) refund(t *backend.Take, o *backend.Outcome, b earlier) {
	sh := c.shard(t.Key)
	sh.mu.Lock()
	sh.refunds++
	known := sh.forget(t.Key) || b.known
	sh.mu.Unlock()
	if c.refunded != nil && (known || t.Hits < 0 && (o.Failed || o.Before > 0)) {
		c.refunded(t.Key)
	}
}

func (e *denial) of(l *descriptor.Limit) bool {
	return e.requests == l.Requests && e.burst == l.Burst && e.classes == l.Classes
}

// forget removes the denial of a counter and reports whether there was one.
func (sh *shard) forget(key []byte) bool {
	_, ok := sh.denials[string(key)]
	if ok {
		delete(sh.denials, string(key))
		sh.bytes -= int64(len(key)) + overhead
	}
	return ok
}

func (sh *shard) remember(key []byte, e denial, bound int64) {
	size := int64(len(key)) + overhead
	if size > bound {
		return
	}
	if _, ok := sh.denials[string(key)]; !ok {
		for other := range sh.denials { // Go ranges over maps in random order
			if sh.bytes+size <= bound {
				break
			}
			delete(sh.denials, other)
			sh.bytes -= int64(len(other)) + overhead
		}
		sh.bytes += size
	}
	sh.denials[string(key)] = e
}

func (c *Cache) shard(key []byte) *shard {
	return &c.shards[maphash.Bytes(c.seed, key)%shardCount]
}

// Len is the number of denials in the cache, including those that have ended and were not looked up since.
func (c *Cache) Len() int {
	n := 0
	for i := range c.shards {
		sh := &c.shards[i]
		sh.mu.Lock()
		n += len(sh.denials)
		sh.mu.Unlock()
	}
	return n
}

// Hits is the number of takes that the cache has denied.
func (c *Cache) Hits() uint64 { return c.hits.Load() }
