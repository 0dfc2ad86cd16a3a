package lease

import (
	"bytes"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/platform/async"
)

// A store in another region is further away than most callers wait. Leases of it (Options.Far) differ in this:
//
//   - Only windows are leased. Their permits live until the window or sub-window ends. So no limit has to be tightened,
//     however long a trip is.
//   - This replica asks for permits before a request needs them: when half of a lease is used, and when a window
//     begins. No caller's deadline ends such a question, so permits whose caller has left are there for the next one.
//   - A request is answered from permits as a whole, with all its limits and descriptors, or the store is asked for
//     what permits lack.
//   - The leases of all replicas hold up to a quarter of a limit, or the hits of one request each.
//
// The proof of the package comment holds: a permit is charged before it is used, and used only in the window it was
// charged to.

// Far is a store in another region.
type Far struct {
	// Store answers questions for permits, and Peek. Options.Store answers all else: it may have a denial cache.
	Store backend.Store

	// bounds questions that no request causes, or that are about denied counters
	MayAsk func(now time.Time) bool
	Denied func(*backend.Take, *backend.Outcome) // gets the denials
	Waited func(attempts int, answered bool)     // counts requests that have waited for permits
}

const (
	// all leases of a far counter hold at most 1/farShare of its limit, or one request's hits each
	farShare   = 4
	farTau     = 3 * time.Second        // the longest tau: a lease covers half of it, which is longer than a trip
	farNearest = 500 * time.Millisecond // the shortest tau: the window has ten times this
	farLasting = time.Second            // see lasting
	// bytes of a descriptor: a longer one gets no permits, because each counter keeps a copy
	farTexts   = 1024
	farPause   = time.Second          // until the next question, after one that failed or brought permits that are over
	edgeMargin = 2 * time.Millisecond // after a window's end, so that the question arrives in the next one
)

// farTerms returns the terms of a limit that another region counts.
func farTerms(t *backend.Take) terms {
	l := t.Limit
	m := terms{Permits: backend.PermitsOf(t), tau: min(l.Window.Length()/10, farTau), most: int64(l.Capacity()) / farShare}
	if m.Within > 0 {
		m.tau = min(m.tau, m.Within/10)
	}
	if !l.Lease || m.Kind != backend.PermitsOfWindow || m.tau < farNearest {
		return terms{}
	}
	return m
}

// farIdle returns how long a far counter without takes is kept: long, because the first requests for a forgotten
// counter wait for a trip; shorter if more than half of the places are taken, so that other counters find one.
func (l *Leases) farIdle(k *hotCounter) time.Duration {
	if 2*l.Len() > l.opts.MaxLeases {
		return idleLives * k.terms.tau
	}
	return min(max(k.limit.Window.Length(), idleLives*time.Second), 10*time.Minute)
}

// startFar answers a request from permits, or forwards it. It waits for permits that are on their way.
func (l *Leases) startFar(
	ctx context.Context, now time.Time, b *backend.Batch, r *backend.Request, done func(error),
) (settled bool, err error) {
	used, coming := l.useAll(now, r, true)
	switch {
	case used:
		return true, nil
	case coming == nil && !l.holds(now, r):
		return l.opts.Store.Start(ctx, now, b, r, done)
	}
	async.Go(func() error { return l.takeFar(ctx, now, r, coming) }, done)
	return false, nil
}

// takeFar answers a request from permits that are on their way, if there are any, or asks the store for what permits
// lack.
func (l *Leases) takeFar(ctx context.Context, now time.Time, r *backend.Request, coming *fetch) error {
	if coming == nil {
		return l.take(ctx, now, r)
	}
	began := time.Now()
	err := l.wait(ctx, new(forwarded), coming, began)
	l.opts.Far.Waited(len(r.Takes), err == nil)
	if err == nil {
		now = now.Add(time.Since(began))
		if used, _ := l.useAll(now, r, false); used {
			return nil
		}
		err = coming.err
	}
	if err != nil {
		backend.Fail(r.Outcomes)
		return err
	}
	return l.take(ctx, now, r)
}

// holds reports whether permits of a request's counters are held: a request that is forwarded asks for so many fewer
// hits.
func (l *Leases) holds(now time.Time, r *backend.Request) bool {
	return slices.ContainsFunc(r.Takes, func(t backend.Take) bool { return t.Limit.Lease && l.unused(&t, now) > 0 })
}

// useAll answers all takes of a request from permits, or none. If permits are on their way that may be enough, it
// returns their fetch.
func (l *Leases) useAll(now time.Time, r *backend.Request, asks bool) (used bool, coming *fetch) {
	if len(r.Takes) == 1 {
		return l.useFar(nil, &r.Takes[0], &r.Outcomes[0], now, asks)
	}
	c := l.calls.Get().(*forwarded)
	defer l.release(c)
	enough := true
	for i := range r.Takes {
		used, fetch := l.useFar(c, &r.Takes[i], &r.Outcomes[i], now, asks)
		if !used {
			enough, coming = false, fetch
		}
		if !used && fetch == nil { // denied, or the store is in trouble: the store, or the denial cache before it, answers
			break
		}
	}
	for k := range c.takes {
		if !enough {
			l.unuse(&c.takes[k])
		}
	}
	return enough, coming
}

// useFar answers a take from permits, and notes that in c if there is one. If there are too few, it may ask for more,
// and returns the fetch that its request should wait for.
func (l *Leases) useFar(c *forwarded, t *backend.Take, o *backend.Outcome, now time.Time,
	asks bool) (used bool, coming *fetch) {
	if !t.Limit.Lease || t.Hits <= 0 || t.Settled || t.Guards || t.Origin == nil {
		return false, nil
	}
	sh, hash := l.shard(t.Key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	k := l.farCounter(sh, hash, t, now)
	if k == nil {
		return false, nil
	}
	k.touched, k.hits, k.from = now, t.Hits, t.Rule // a rule from before a reload would keep the whole old tree in memory
	if used = l.use(k, t, o, now); used {
		if c != nil {
			c.takes = append(c.takes, forwardedTake{shard: sh, c: k, aside: t.Hits, generation: k.generation})
		}
		if 2*k.pool <= k.size || k.pool <= t.Hits { // half is used, or the next request may find none
			l.ahead(sh, k, 0, now)
		}
		return true, nil
	}
	if asks {
		coming = l.ahead(sh, k, t.Hits-k.alive(now), now)
	}
	if k.denied { // it stays denied until the answer
		return false, nil
	}
	return false, coming
}

// unuse gives permits back to the lease that they are from: another limit of their request had too few.
func (l *Leases) unuse(p *forwardedTake) {
	p.shard.mu.Lock()
	defer p.shard.mu.Unlock()
	l.counts.used.Add(-p.aside)
	l.counts.local.Add(-1)
	p.c.count -= p.aside
	l.putBack(p)
}

// farCounter returns the counter of a take, if it is hot and under the same limit; else nil. The shard is locked.
func (l *Leases) farCounter(sh *shard, hash uint64, t *backend.Take, now time.Time) *hotCounter {
	if k := sh.counters[string(t.Key)]; k != nil {
		if k.of(t.Limit) {
			return k
		}
		return nil
	}
	m := farTerms(t)
	if m.Kind == backend.NoPermits || textsOf(t.Origin) > farTexts {
		return nil
	}
	k := l.counter(sh, hash, t, &m, now)
	if k != nil {
		k.key, k.from, k.origin = bytes.Clone(t.Key), t.Rule, &backend.Origin{
			Domain: strings.Clone(t.Origin.Domain), Entries: descriptor.CloneEntries(t.Origin.Entries),
		}
	}
	return k
}

// textsOf is how many bytes the texts of a descriptor have.
func textsOf(o *backend.Origin) (n int) {
	for i := range o.Entries {
		n += len(o.Entries[i].Key) + len(o.Entries[i].Value)
	}
	return n
}

// ahead asks the store for permits, at least for the hits that a request lacks, and returns the fetch. It returns nil
// if the store was asked a moment ago and had none, or must not be asked now. The shard is locked.
func (l *Leases) ahead(sh *shard, k *hotCounter, lacks int64, now time.Time) *fetch {
	switch {
	case k.fetch != nil:
		return k.fetch
	case before(now, k.waiting), l.closed.Load(), lacks > int64(k.limit.Capacity()), k.denied && !l.opts.Far.MayAsk(now):
		return nil
	}
	size := max(k.want(now, int(l.replicas.Load())), lacks, min(k.hits, k.terms.most), 1)
	k.fetch = &fetch{done: make(chan struct{})}
	l.asking.Add(1)
	go l.askFar(sh, k, k.from, size, now)
	return k.fetch
}

// askFar asks the store for permits of a counter, and waits for the answer.
func (l *Leases) askFar(sh *shard, k *hotCounter, rule *descriptor.Rule, size int64, sent time.Time) {
	defer l.asking.Done()
	ctx, cancel := context.WithTimeout(context.Background(), l.opts.Timeout)
	defer cancel()
	began := time.Now()
	r := backend.Request{
		Takes:    []backend.Take{{Key: k.key, Limit: &k.limit, Rule: rule, Hits: size, Origin: k.origin}},
		Outcomes: make([]backend.Outcome, 1),
	}
	err := backend.Await(ctx, l.opts.Far.Store, sent, &r)
	o := &r.Outcomes[0]
	if !o.Failed && !o.Allowed {
		l.opts.Far.Denied(&r.Takes[0], o)
	}
	sh.mu.Lock()
	defer sh.mu.Unlock()
	f := k.fetch
	f.err, k.fetch = err, nil
	close(f.done)
	l.learn(sh, k, size, o, sent, sent.Add(time.Since(began)))
}

// learn takes in the answer to a question for permits. The shard is locked.
func (l *Leases) learn(sh *shard, k *hotCounter, size int64, o *backend.Outcome, sent, now time.Time) {
	switch {
	case k.gone: // what it brings may have been cleared
		if o.Allowed {
			l.counts.leased.Add(size)
			l.counts.expired.Add(size)
		}
		return
	case o.Failed:
		l.counts.failed.Add(1)
		k.waiting = now.Add(farPause)
	case !o.Allowed:
		l.counts.denied.Add(1)
		l.counts.expired.Add(k.saw(o, sent))
		if k.remaining >= k.hits && size > k.hits {
			l.ahead(sh, k, k.hits, now) // for fewer
			break
		}
		k.denied, k.waiting = true, sent.Add(max(o.RetryAfter, edgeMargin))
	default:
		l.counts.granted.Add(1)
		l.counts.leased.Add(size)
		l.receive(k, size, o, sent, now)
	}
	if k.edge == nil && before(now, k.boundary) {
		k.edge = time.AfterFunc(k.boundary.Sub(now)+edgeMargin, func() { l.windowEnds(sh, k) })
	}
}

// receive makes permits that the store has granted a part of the lease. The shard is locked.
func (l *Leases) receive(k *hotCounter, size int64, o *backend.Outcome, sent, now time.Time) {
	l.counts.expired.Add(k.saw(o, sent))
	old, end := k.pool, k.end
	same := k.window.Sub(k.boundary).Abs() < k.terms.tau/2
	if !same {
		l.counts.expired.Add(k.drop())
		old = 0
	}
	generation := k.generation
	if k.hold(old+size, sent); same { // permits that are set aside are still good
		k.generation = generation
	}
	k.end = sent.Add(shortened(k.boundary.Sub(sent)))
	if old > 0 && end.Before(k.end) {
		k.end = end
	}
	k.live = k.end
	k.denied = k.denied && 2*k.remaining < k.capacity()
	if unlike := o.Limit != nil && o.Limit.Algorithm != k.limit.Algorithm; unlike || !before(now, k.end) {
		l.counts.expired.Add(k.drop())
		if unlike || k.boundary.Sub(sent) <= 0 { // what the home counts by has no windows, or nothing is counted now
			k.boundary, k.waiting = time.Time{}, now.Add(farPause)
		}
	}
}

// windowEnds asks for permits of the next window, if the counter was in use.
func (l *Leases) windowEnds(sh *shard, k *hotCounter) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	k.edge = nil
	now := time.Now()
	if k.gone {
		return
	}
	l.counts.expired.Add(k.expire(now))
	switch {
	case now.Sub(k.touched) >= l.farIdle(k):
	case !k.denied && !l.opts.Far.MayAsk(now): // many windows end at once; for denied counters, ahead asks whether it may
	default:
		l.ahead(sh, k, 0, now)
	}
}

// Leased reports whether permits of a counter are asked for.
func (l *Leases) Leased(key []byte) bool {
	sh, _ := l.shard(key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	return sh.counters[string(key)] != nil
}

// Local is the number of takes that were answered from permits.
func (l *Leases) Local() int64 { return l.counts.local.Load() }
