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

// A store in another region takes longer than most requests wait. Leases from it (Options.Far) differ in these points:
//
//   - Only windows are leased. Their permits live until the window or sub-window ends, so no limit is tightened,
//     however long a trip is.
//   - This replica asks for permits before a request needs them: when half of a lease is used, and when a window
//     starts. These questions continue when a request times out, so the permits are there for the next one.
//   - A request is answered from permits as a whole, with all its limits and descriptors. Otherwise the store is asked
//     for the missing permits.
//   - The leases of all replicas hold up to a quarter of a limit, or the hits of one request each.
//
// The proof in the package comment still holds: a permit is charged before it is used, and used only in the window it
// was charged to.

// Far is a store in another region.
type Far struct {
	// Store answers questions for permits, and Peek. Options.Store, which may have a denial cache, answers everything
	// else.
	Store backend.Store

	// limits questions that no request causes, or that are about denied counters
	MayAsk func(now time.Time) bool
	Denied func(*backend.Take, *backend.Outcome) // receives the denials
	Waited func(attempts int, answered bool)     // counts requests that waited for permits
}

const (
	// all leases of a far counter hold at most 1/farShare of its limit, or one request's hits each
	farShare   = 4
	farTau     = 3 * time.Second        // longest tau: a lease covers half of it, which is longer than a trip
	farNearest = 500 * time.Millisecond // shortest tau: the window is ten times as long
	farLasting = time.Second            // replaces lasting
	// longest descriptor, in bytes, of a counter with permits: each counter keeps a copy
	farTexts   = 1024
	farPause   = time.Second          // pause after a question that failed or returned expired permits
	edgeMargin = 2 * time.Millisecond // delay of questions at a window's end, so that they arrive in the next window
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

// farIdle returns how long a far counter without takes is kept. It is long, because the first requests for a forgotten
// counter wait for a trip. When more than half of MaxLeases are in use, it is shorter, to make room for other counters.
func (l *Leases) farIdle(k *hotCounter) time.Duration {
	if 2*l.Len() > l.opts.MaxLeases {
		return idleLives * k.terms.tau
	}
	return min(max(k.limit.Window.Length(), idleLives*time.Second), 10*time.Minute)
}

// startFar answers a request from permits, or forwards it. It waits for pending permits.
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

// takeFar answers a request from pending permits, if there are any, or asks the store for the missing permits.
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

// holds reports whether this replica has permits of the request's counters: the forwarded request then asks for that
// many fewer hits.
func (l *Leases) holds(now time.Time, r *backend.Request) bool {
	return slices.ContainsFunc(r.Takes, func(t backend.Take) bool { return t.Limit.Lease && l.unused(&t, now) > 0 })
}

// useAll answers all takes of a request from permits, or none. If pending permits may suffice, it returns their fetch.
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
		// denied, or the store is in trouble: let the store, or the denial cache in front of it, answer
		if !used && fetch == nil {
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

// useFar answers a take from permits, and records that in c unless it is nil. If there are too few, it may ask for
// more, and returns the fetch that the request should wait for.
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
	k.touched, k.hits, k.from = now, t.Hits, t.Rule // an old rule would keep the whole tree of an earlier reload in memory
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
	if k.denied { // it stays denied until the answer arrives
		return false, nil
	}
	return false, coming
}

// unuse returns permits to their lease, because another limit of the request had too few.
func (l *Leases) unuse(p *forwardedTake) {
	p.shard.mu.Lock()
	defer p.shard.mu.Unlock()
	l.counts.used.Add(-p.aside)
	l.counts.local.Add(-1)
	p.c.count -= p.aside
	l.putBack(p)
}

// farCounter returns the hot counter of a take, or nil if the counter is not hot or is leased under another limit. The
// shard must be locked.
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

// textsOf returns the total length of a descriptor's texts, in bytes.
func textsOf(o *backend.Origin) (n int) {
	for i := range o.Entries {
		n += len(o.Entries[i].Key) + len(o.Entries[i].Value)
	}
	return n
}

// ahead asks the store for permits, at least for the hits that a request lacks, and returns the fetch. It returns nil
// if the store had none a moment ago, or must not be asked now. The shard must be locked.
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

// learn applies the answer to a question for permits. The shard must be locked.
func (l *Leases) learn(sh *shard, k *hotCounter, size int64, o *backend.Outcome, sent, now time.Time) {
	switch {
	case k.gone: // the granted permits may have been cleared
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
			l.ahead(sh, k, k.hits, now) // ask for fewer
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

// receive adds granted permits to the lease. The shard must be locked.
func (l *Leases) receive(k *hotCounter, size int64, o *backend.Outcome, sent, now time.Time) {
	l.counts.expired.Add(k.saw(o, sent))
	old, end := k.pool, k.end
	same := k.window.Sub(k.boundary).Abs() < k.terms.tau/2
	if !same {
		l.counts.expired.Add(k.drop())
		old = 0
	}
	generation := k.generation
	if k.hold(old+size, sent); same { // permits that are set aside are still valid
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
		if unlike || k.boundary.Sub(sent) <= 0 { // the home's algorithm has no windows, or counts nothing now
			k.boundary, k.waiting = time.Time{}, now.Add(farPause)
		}
	}
}

// windowEnds asks for permits of the next window, if the counter is in use.
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
	// many windows end at the same time; ahead checks MayAsk for denied counters
	case !k.denied && !l.opts.Far.MayAsk(now):
	default:
		l.ahead(sh, k, 0, now)
	}
}

// Leased reports whether this replica leases permits of a counter.
func (l *Leases) Leased(key []byte) bool {
	sh, _ := l.shard(key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	return sh.counters[string(key)] != nil
}

// Local returns the number of takes that were answered from permits.
func (l *Leases) Local() int64 { return l.counts.local.Load() }
