package lease

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/backend/memory"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// holding returns leases with one hot counter, "k", under a limit of 1200 a minute, with permits held since noon.
func holding(t *testing.T, l descriptor.Limit, permits int64) (*Leases, *shard, *hotCounter) {
	t.Helper()
	k := hot(t, l)
	if k.terms.Kind == backend.PermitsOfWindow {
		k.boundary = ms(60_000)
	}
	k.hold(permits, noon)
	k.remaining, k.touched = 1200, noon
	all := New(Options{Store: memory.New(memory.Options{})})
	sh, _ := all.shard([]byte("k"))
	sh.counters["k"] = k
	all.held.Add(1)
	return all, sh, k
}

func (c *counts) String() string {
	return fmt.Sprintf("leased %d, used %d, returned %d, expired %d; local %d; granted %d, denied %d, failed %d", c.leased.Load(), c.used.Load(), c.returned.Load(),
		c.expired.Load(), c.local.Load(), c.granted.Load(), c.denied.Load(), c.failed.Load())
}

// counted checks the totals that are not 0.
func (c *counts) counted(t *testing.T, what string, leased, used, returned, expired int64) {
	t.Helper()
	if c.leased.Load() != leased || c.used.Load() != used || c.returned.Load() != returned || c.expired.Load() != expired {
		t.Errorf("%s: %s, want %d, %d, %d and %d", what, c, leased, used, returned, expired)
	}
}

// The store's answer moves permits that were set aside for a take. Clients see unused permits of this replica as
// unused.
func TestTheStoreAnswersATake(t *testing.T) {
	for _, c := range []struct {
		name                    string
		p                       forwardedTake
		o                       backend.Outcome
		denied                  bool // the group was denied
		countDenied, counts     bool // count_denied in the request, and in the rule
		before, after           int64
		pool                    int64 // permits in the pool: 10, less those set aside
		used, returned, expired int64
		rate                    int64 // hits that count towards the rate of use
	}{
		{"allowed", forwardedTake{hits: 7, aside: 4, unused: 10}, backend.Outcome{Allowed: true, Before: 100, Used: 103}, false, false, false, 90, 97, 6, 4, 0, 0, 7},
		{"allowed, but another of its group is not", forwardedTake{hits: 7, aside: 4, unused: 10}, backend.Outcome{Allowed: true, Before: 100, Used: 100}, true, false, false,
			90, 90, 10, 0, 0, 0, 0},
		{"allowed, but another of its group is not, although denied hits count", forwardedTake{hits: 7, aside: 4, unused: 10}, backend.Outcome{Allowed: true, Before: 100, Used: 100},
			true, true, true, 90, 90, 10, 0, 0, 0, 0},
		{"no answer about one permit", forwardedTake{hits: 7, aside: 1, unused: 10}, backend.Outcome{Failed: true}, false, false, false, 0, 0, 10, 0, 0, 0, 0},
		{"denied", forwardedTake{hits: 7, aside: 4, unused: 10}, backend.Outcome{Before: 1200, Used: 1200}, false, false, false, 1190, 1190, 10, 0, 0, 0, 0},
		{"denied, and denied hits count", forwardedTake{hits: 7, aside: 4, unused: 10}, backend.Outcome{Before: 1100, Used: 1103}, true, true, true, 1090, 1097, 6, 4, 0, 0, 0},
		{"denied, and denied hits of the request would count", forwardedTake{hits: 7, aside: 4, unused: 10}, backend.Outcome{Before: 1200, Used: 1200}, false, true, false,
			1190, 1190, 10, 0, 0, 0, 0},
		{"denied, and denied hits of the rule would count", forwardedTake{hits: 7, aside: 4, unused: 10}, backend.Outcome{Before: 1200, Used: 1200}, false, false, true,
			1190, 1190, 10, 0, 0, 0, 0},
		{"denied, and more than the limit is used then", forwardedTake{hits: 7, aside: 4, unused: 10}, backend.Outcome{Before: 1200, Used: 1203}, true, true, true,
			1190, 1197, 3, 4, 0, 3, 0},
		{"less is used than this process holds", forwardedTake{hits: 7, aside: 4, unused: 10}, backend.Outcome{Allowed: true, Before: 2, Used: 5}, false, false, false, 0, 0, 6, 4, 0, 0, 7},
		{"a peek", forwardedTake{unused: 6}, backend.Outcome{Allowed: true, Before: 100, Used: 100}, false, false, false, 94, 94, 10, 0, 0, 0, 0},
		{"a refund", forwardedTake{hits: -5, back: 4, unused: 4}, backend.Outcome{Allowed: true, Before: 100, Used: 91}, false, false, false, 96, 91, 6, 0, 4, 0, 0},
		{"a refund that the store dropped", forwardedTake{hits: -5, back: 4, unused: 4}, backend.Outcome{Allowed: true, Before: 3, Used: 3}, false, false, false, 0, 0, 10, 0, 0, 0, 0},
		{"no answer", forwardedTake{hits: 7, aside: 4, unused: 10}, backend.Outcome{Failed: true}, false, false, false, 0, 0, 10, 0, 0, 0, 0},
		{"no answer to a refund, which may have happened", forwardedTake{hits: -5, back: 4, unused: 4}, backend.Outcome{Failed: true}, false, false, false, 0, 0, 6, 0, 0, 4, 0},
		{"a denial from memory", forwardedTake{hits: 7, aside: 4, unused: 10}, backend.Outcome{Cached: true, Before: 1300, Used: 1300}, false, false, false, 1290, 1290, 10, 0, 0, 0, 0},
	} {
		algorithm := descriptor.SlidingWindow
		if c.counts {
			algorithm = descriptor.FixedWindow
		}
		all, sh, k := holding(t, descriptor.Limit{Requests: 1200, Window: window(1, descriptor.Minute), Algorithm: algorithm}, 10)
		p := c.p
		p.shard, p.c, p.terms, p.generation = sh, k, k.terms, k.generation
		k.pool -= p.aside + p.back
		o := c.o
		all.settle(&p, &backend.Take{Limit: &k.limit, Hits: p.hits - p.aside, CountDenied: c.countDenied}, &o, c.denied, noon)
		if o.Before != c.before || o.Used != c.after || k.pool != c.pool || k.count != c.rate {
			t.Errorf("%s: %d and %d are used, %d permits are left, and %d count for the rate; want %d, %d, %d and %d", c.name, o.Before, o.Used, k.pool, k.count, c.before, c.after,
				c.pool, c.rate)
		}
		all.counts.counted(t, c.name, 0, c.used, c.returned, c.expired)
		if known := k.used == c.o.Used; known != (!o.Failed && !o.Cached) && c.o.Used != 0 {
			t.Errorf("%s: the counter knows that %d are used", c.name, k.used)
		}
	}
	all, _, _ := holding(t, descriptor.Limit{}, 10)
	o := backend.Outcome{Before: 5, Used: 6}
	all.settle(&forwardedTake{hits: 1, terms: terms{gap: 10}}, &backend.Take{Hits: 1}, &o, false, noon)
	if o.Before != 15 || o.Used != 16 {
		t.Errorf("of a bucket that is smaller by 10, %d and %d are used, want 15 and 16", o.Before, o.Used)
	}
	o = backend.Outcome{Failed: true}
	all.settle(&forwardedTake{hits: 1}, &backend.Take{Hits: 1}, &o, false, noon)
	all.counts.counted(t, "a take without a lease", 0, 0, 0, 0)
}

// tardy is the context of a caller whose deadline has passed, but whose timer has not fired.
type tardy struct{ context.Context }

func (tardy) Deadline() (time.Time, bool) { return time.Now().Add(-time.Second), true }

// How the store's answer changes a lease, the old permits and the take that asked.
func TestTheStoreAnswersAnAcquisition(t *testing.T) {
	gone, cancel := context.WithCancel(context.Background())
	cancel()
	later, stop := context.WithTimeout(context.Background(), time.Hour)
	defer stop()
	lost := errors.New("lost")
	for _, c := range []struct {
		name                  string
		ctx                   context.Context //nolint:containedctx // context of the case
		live                  bool            // 10 permits were still usable
		others                int64           // permits that other calls returned since
		hits, ask             int64
		o                     backend.Outcome
		err                   error
		gone                  bool
		answered              bool
		pool, aside           int64
		generation            uint64
		leased, used, expired int64
		granted, denied, lost int64
		shared                bool // the waiting takes share the error
	}{
		{name: "granted", live: true, hits: 2, ask: 30, o: backend.Outcome{Allowed: true, Before: 100, Used: 130, ResetAfter: time.Minute},
			answered: true, pool: 38, generation: 2, leased: 30, used: 2, granted: 1},
		{name: "granted, and others brought some back", live: true, others: 3, hits: 2, ask: 30, o: backend.Outcome{Allowed: true, Before: 100, Used: 130, ResetAfter: time.Minute},
			answered: true, pool: 41, generation: 2, leased: 30, used: 2, granted: 1},
		{name: "granted, with dormant permits", hits: 2, ask: 30, o: backend.Outcome{Allowed: true, Before: 100, Used: 130, ResetAfter: time.Minute},
			answered: true, pool: 38, generation: 2, leased: 30, used: 2, granted: 1},
		{name: "granted in another window", live: true, hits: 2, ask: 30, o: backend.Outcome{Allowed: true, Before: 0, Used: 30, ResetAfter: 30 * time.Second},
			answered: true, pool: 28, generation: 2, leased: 30, used: 2, expired: 10, granted: 1},
		{name: "granted, and reset meanwhile", live: true, gone: true, hits: 2, ask: 30, o: backend.Outcome{Allowed: true, Before: 0, Used: 30, ResetAfter: time.Minute},
			answered: true, generation: 2, leased: 30, used: 2, expired: 38, granted: 1},
		{name: "denied, but the old permits suffice", live: true, hits: 10, ask: 30, o: backend.Outcome{Before: 1200, Used: 1200, ResetAfter: time.Minute},
			answered: true, pool: 0, generation: 1, used: 10, denied: 1},
		{name: "denied, and dormant permits are revived", hits: 2, ask: 30, o: backend.Outcome{Before: 1200, Used: 1200, ResetAfter: time.Minute},
			answered: true, pool: 8, generation: 2, used: 2, denied: 1},
		{name: "denied, and the old permits do not suffice", live: true, hits: 11, ask: 30, o: backend.Outcome{Before: 1200, Used: 1200, ResetAfter: time.Minute},
			pool: 0, aside: 10, generation: 1, denied: 1},
		{name: "denied in another window", hits: 2, ask: 30, o: backend.Outcome{Before: 1200, Used: 1200, ResetAfter: 30 * time.Second}, generation: 1, expired: 10, denied: 1},
		{name: "denied from memory: dormant permits stay as they are", hits: 2, ask: 30, o: backend.Outcome{Cached: true}, pool: 10, generation: 1},
		{name: "denied from memory: live ones are used", live: true, hits: 2, ask: 30, o: backend.Outcome{Cached: true}, answered: true, pool: 8, generation: 1, used: 2, denied: 1},
		{name: "no answer", live: true, hits: 2, ask: 30, o: backend.Outcome{Failed: true}, err: lost, answered: true, pool: 10, generation: 1, lost: 1, shared: true},
		{name: "no answer in time", ctx: later, hits: 2, ask: 30, o: backend.Outcome{Failed: true}, err: lost, answered: true, pool: 10, generation: 1, lost: 1, shared: true},
		{name: "the caller is gone", ctx: gone, hits: 2, ask: 30, o: backend.Outcome{Failed: true}, err: lost, answered: true, pool: 10, generation: 1, lost: 1},
		{name: "the caller's time is over", ctx: tardy{context.Background()}, hits: 2, ask: 30, o: backend.Outcome{Failed: true}, err: lost, answered: true, pool: 10, generation: 1, lost: 1},
		{name: "the store gave up a moment before", ctx: later, hits: 2, ask: 30, o: backend.Outcome{Failed: true}, err: context.DeadlineExceeded, answered: true, pool: 10, generation: 1,
			lost: 1},
	} {
		all, sh, k := holding(t, descriptor.Limit{}, 10)
		f := &fetch{done: make(chan struct{})}
		k.fetch, k.gone = f, c.gone
		p := forwardedTake{hits: c.hits, shard: sh, c: k, terms: k.terms, lead: true, live: c.live, aside: k.pool, unused: k.pool, generation: k.generation}
		k.pool = c.others
		if c.ctx == nil {
			c.ctx = context.Background()
		}
		o := c.o
		answered := all.settleLease(&p, &backend.Take{Hits: c.ask}, &o, reply{noon, ms(10), shared(c.ctx, c.err)})
		if answered != c.answered || k.pool != c.pool || p.aside != c.aside || c.lost == 0 && p.unused != c.aside || k.generation != c.generation || p.lead || k.fetch != nil {
			t.Errorf("%s: answered %v, %d permits are held, %d set aside (%d unused), lease %d; want %v, %d, %d, %d", c.name, answered, k.pool, p.aside, p.unused, k.generation, c.answered,
				c.pool, c.aside, c.generation)
		}
		all.counts.counted(t, c.name, c.leased, c.used, 0, c.expired)
		if n := &all.counts; n.granted.Load() != c.granted || n.denied.Load() != c.denied || n.failed.Load() != c.lost {
			t.Errorf("%s: %s", c.name, n)
		}
		select {
		case <-f.done:
		default:
			t.Errorf("%s: others still wait", c.name)
		}
		if errors.Is(f.err, lost) != c.shared || (f.err != nil) != c.shared {
			t.Errorf("%s: those that wait share %v", c.name, f.err)
		}
		if (c.lost > 0) != k.waiting.Equal(ms(510)) {
			t.Errorf("%s: no lease is asked for until %s", c.name, k.waiting)
		}
		if c.answered && !o.Failed && (!o.Allowed || o.Used-o.Before != c.hits) {
			t.Errorf("%s: the caller sees %+v", c.name, o)
		}
		if c.aside > 0 && (p.generation != k.generation || !p.until.Equal(k.live)) {
			t.Errorf("%s: what is set aside is of lease %d until %s", c.name, p.generation, p.until)
		}
	}
}

// A take asks for a lease if that pays off and is possible, otherwise for its own hits. Live permits are set aside for
// it.
func TestWhatATakeAsksFor(t *testing.T) {
	for _, c := range []struct {
		name        string
		hits        int64
		ms          float64
		change      func(*Leases, *hotCounter)
		lead        bool
		ask         int64 // hits asked of the store
		aside, pool int64
		unused      int64
	}{
		{"a lease", 1, 100, nil, true, 25, 10, 0, 10},
		{"a lease, with dormant permits", 1, 1000, nil, true, 15, 10, 0, 10}, // 25 less 10 that still count
		{"a large take asks for what is missing", 40, 100, nil, false, 30, 10, 0, 10},
		{"and shows what dormant permits are worth", 40, 1000, nil, true, 40, 10, 0, 10},
		{"in trouble", 15, 100, func(_ *Leases, k *hotCounter) { k.waiting = ms(101) }, false, 5, 10, 0, 10},
		{"after trouble", 15, 100, func(_ *Leases, k *hotCounter) { k.waiting = ms(100) }, true, 25, 10, 0, 10},
		{"while another take asks", 15, 100, func(_ *Leases, k *hotCounter) { k.fetch = &fetch{} }, false, 5, 10, 0, 10},
		{"more than the limit", 1201, 100, nil, false, 1201, 0, 10, 10},
		{"more than the limit, with dormant permits", 1201, 1000, nil, false, 1201, 0, 10, 10},
		{"all of the limit", 1200, 1000, nil, true, 1200, 10, 0, 10},
		{"when the process ends", 15, 100, func(all *Leases, _ *hotCounter) { all.closed.Store(true) }, false, 5, 10, 0, 10},
		{"permits that end before the answer are not set aside", 15, 480, func(_ *Leases, k *hotCounter) { k.waiting = ms(1000) }, false, 15, 0, 10, 10},
		{"others are", 15, 474, func(_ *Leases, k *hotCounter) { k.waiting = ms(1000) }, false, 5, 10, 0, 10},
		{"no more than it needs", 3, 100, func(_ *Leases, k *hotCounter) { k.waiting = ms(1000) }, false, 0, 3, 7, 10},
		{"what is over is dropped", 15, 60_000, nil, true, 25, 0, 0, 0},
		{"of what three processes may have", 15, 100, func(all *Leases, k *hotCounter) { all.SetReplicas(3); k.rate = 1000 }, true, 20, 10, 0, 10},
	} {
		all, sh, k := holding(t, descriptor.Limit{}, 10)
		k.rate, k.since = 100, ms(c.ms)
		if c.ms == 60_000 {
			k.boundary = ms(120_000)
		}
		if c.change != nil {
			c.change(all, k)
		}
		call := all.calls.Get().(*forwarded)
		all.prepare(call, sh, k, &backend.Take{Key: []byte("k"), Limit: &k.rule, Hits: c.hits, CountDenied: true}, 0, ms(c.ms))
		p, asked := &call.takes[0], &call.request.Takes[0]
		if p.lead != c.lead || call.leads != c.lead || asked.Hits != c.ask || p.aside != c.aside || k.pool != c.pool || p.unused != c.unused || asked.CountDenied == c.lead || p.hits != c.hits {
			t.Errorf("%s: leads %v, asks for %+v; %d permits are set aside and %d left, %d unused; want %v, %d, %d, %d, %d", c.name, p.lead, asked.Hits, p.aside, k.pool, p.unused, c.lead,
				c.ask, c.aside, c.pool, c.unused)
		}
		if p.generation != k.generation || c.lead && (k.fetch == nil || p.live == (c.ms == 1000)) {
			t.Errorf("%s: of lease %d, live %v", c.name, p.generation, p.live)
		}
		if expired := all.counts.expired.Load(); (expired == 10) != (c.ms == 60_000) {
			t.Errorf("%s: %d permits have expired", c.name, expired)
		}
	}
}

// Takes that leases cannot answer go to the store: groups ask for fewer hits by the permits of the lease, refunds
// return them too, and peeks count them as unused.
func TestWhatLeasesCannotAnswer(t *testing.T) {
	for _, c := range []struct {
		name         string
		hits         int64
		ms           float64
		change       func(*Leases, *backend.Take)
		ask          int64
		aside, back  int64
		unused, pool int64
		expired      int64
	}{
		{"a part of a group", 15, 100, nil, 5, 10, 0, 10, 0, 0},
		{"one hit of a group", 1, 100, nil, 0, 1, 0, 10, 9, 0},
		{"a peek", 0, 100, nil, 0, 0, 0, 10, 10, 0},
		{"a peek at dormant permits", 0, 1000, nil, 0, 0, 0, 10, 10, 0},
		{"a peek when they are over", 0, 60_000, nil, 0, 0, 0, 0, 0, 10},
		{"a refund", -5, 100, nil, -15, 0, 10, 10, 0, 0},
		{"a refund that may be carried out in another window", -5, 1000, nil, -5, 0, 0, 0, 0, 10},
		{"a refund as large as there are", 5 - backend.MaxHits, 100, nil, -backend.MaxHits, 0, 5, 5, 0, 5},
		{"of a limit without leases", 15, 100, func(_ *Leases, t *backend.Take) { t.Limit = &descriptor.Limit{Requests: 1200} }, 15, 0, 0, 0, 10, 0},
		{"of a limit that is too small", 15, 100, func(_ *Leases, t *backend.Take) { t.Limit = &descriptor.Limit{Requests: 2, Lease: true} }, 15, 0, 0, 0, 10, 0},
		{"of another counter", 15, 100, func(_ *Leases, t *backend.Take) { t.Key = []byte("other") }, 15, 0, 0, 0, 10, 0},
		{"of another limit", 15, 100, func(_ *Leases, t *backend.Take) {
			other := *t.Limit
			other.Requests++
			t.Limit = &other
		}, 15, 0, 0, 0, 10, 0},
	} {
		all, _, k := holding(t, descriptor.Limit{}, 10)
		all.opts.ReturnWithin = 59 * time.Second // but not after a second
		take := backend.Take{Key: []byte("k"), Limit: &k.rule, Hits: c.hits}
		if c.change != nil {
			c.change(all, &take)
		}
		call := all.calls.Get().(*forwarded)
		all.pass(call, &backend.Request{Takes: []backend.Take{take}}, 0, ms(c.ms))
		p, asked := &call.takes[0], &call.request.Takes[0]
		if asked.Hits != c.ask || p.aside != c.aside || p.back != c.back || p.unused != c.unused || k.pool != c.pool || p.hits != c.hits || p.lead {
			t.Errorf("%s: asks for %d; %d set aside, %d to give back, %d unused, %d left; want %d, %d, %d, %d, %d", c.name, asked.Hits, p.aside, p.back, p.unused, k.pool, c.ask, c.aside,
				c.back, c.unused, c.pool)
		}
		if p.c != nil && p.generation != k.generation && c.hits != 0 {
			t.Errorf("%s: of lease %d", c.name, p.generation)
		}
		all.counts.counted(t, c.name, 0, 0, 0, c.expired)
	}
}

// Permits that were set aside and not used return to their lease, but not to another one.
func TestPermitsReturnToTheirLease(t *testing.T) {
	for _, c := range []struct {
		name          string
		change        func(*hotCounter)
		pool, expired int64
	}{
		{"the same", func(*hotCounter) {}, 10, 0},
		{"the next", func(k *hotCounter) { k.generation++ }, 6, 4},
		{"a counter that was reset", func(k *hotCounter) { k.gone = true }, 6, 4},
	} {
		all, _, k := holding(t, descriptor.Limit{}, 6)
		p := forwardedTake{c: k, aside: 4, back: 3, generation: k.generation}
		c.change(k)
		all.putBack(&p)
		if k.pool != c.pool || p.aside != 0 || p.back != 0 {
			t.Errorf("%s: %d permits, want %d; %d are still set aside and %d to be given back", c.name, k.pool, c.pool, p.aside, p.back)
		}
		all.counts.counted(t, c.name, 0, 0, 0, c.expired)
	}
}

// When a call ends before the store was asked, permits that were set aside or about to be returned go back to the
// lease. All takes have failed.
func TestACallThatAsksNothing(t *testing.T) {
	all, sh, k := holding(t, descriptor.Limit{}, 5)
	take := backend.Take{Key: []byte("k"), Limit: &k.rule, Hits: 1}
	r := backend.Request{Takes: []backend.Take{take, take, take, take}, Outcomes: make([]backend.Outcome, 4)}
	call := all.calls.Get().(*forwarded)
	call.forward(0, forwardedTake{hits: 1}, &take)
	call.forward(1, forwardedTake{hits: 4, shard: sh, c: k, aside: 3, generation: k.generation}, &take)
	call.forward(2, forwardedTake{hits: -1, shard: sh, c: k, back: 2, generation: k.generation}, &take)
	all.abandon(call, &r, 3)
	if k.pool != 10 {
		t.Errorf("%d permits are held, want 10", k.pool)
	}
	for i, o := range r.Outcomes {
		if !o.Failed {
			t.Errorf("take %d has not failed", i)
		}
	}
	all.counts.counted(t, "a call that asks nothing", 0, 0, 0, 0)
}

// A group fails if permits that were set aside for it expired before the answer.
func TestPermitsThatEndBeforeTheAnswer(t *testing.T) {
	for _, c := range []struct {
		name string
		p    forwardedTake
		late bool
	}{
		{"in time", forwardedTake{aside: 1, until: ms(1)}, false},
		{"too late", forwardedTake{aside: 1, until: ms(0)}, true},
		{"nothing was set aside", forwardedTake{until: ms(0)}, false},
		{"an acquisition knows what still counts", forwardedTake{aside: 1, until: ms(0), lead: true}, false},
	} {
		for _, others := range [][2]int{{0, 1}, {1, 0}} {
			call := &forwarded{takes: make([]forwardedTake, 3)}
			call.request.Outcomes = make([]backend.Outcome, 3)
			call.takes[1+others[0]] = c.p
			if got := call.late(1, 3, noon); got != c.late {
				t.Errorf("%s: late is %v", c.name, got)
			}
			if o := call.request.Outcomes; o[0].Failed || o[1].Failed != c.late || o[2].Failed != c.late {
				t.Errorf("%s: %+v", c.name, o)
			}
		}
	}
}

// A denied lease tells nothing about the hits of the take itself: a second call asks for these, less the permits of the
// replica. A call with several takes only repeats those without an answer.
func TestADeniedLeaseIsFollowedByTheTake(t *testing.T) {
	for _, c := range []struct {
		hits    int64
		allowed bool
		used    int64
	}{{12, true, 1197}, {15, true, 1200}, {16, false, 1195}} {
		all, _, k := holding(t, descriptor.Limit{}, 10)
		k.rate, k.since = 100, ms(100)
		store := all.opts.Store
		charge := func(key string, hits int64) backend.Outcome {
			r := backend.Request{Takes: []backend.Take{{Key: []byte(key), Limit: &k.rule, Hits: hits}}, Outcomes: make([]backend.Outcome, 1)}
			if err := backend.Await(t.Context(), store, ms(100), &r); err != nil {
				t.Fatal(err)
			}
			return r.Outcomes[0]
		}
		charge("k", 1195)
		r := backend.Request{
			Takes:    []backend.Take{{Key: []byte("other"), Limit: &k.rule, Hits: 1}, {Key: []byte("k"), Limit: &k.rule, Hits: c.hits, Member: 1}},
			Outcomes: make([]backend.Outcome, 2),
		}
		if err := backend.Await(t.Context(), all, ms(100), &r); err != nil {
			t.Fatal(err)
		}
		if !k.touched.Equal(ms(100)) {
			t.Errorf("%d hits: the counter was used last at %s", c.hits, k.touched)
		}
		if c.allowed && r.Outcomes[1].Before != 1185 {
			t.Errorf("%d hits: the caller sees %d used before, want 1185: 10 are its own permits", c.hits, r.Outcomes[1].Before)
		}
		if r.Outcomes[0].Used != 1 || r.Outcomes[1].Allowed != c.allowed || charge("k", 0).Used != c.used || charge("other", 0).Used != 1 {
			t.Errorf("%d hits, with 10 permits and 5 left: %+v, and then %d are used, want %v and %d", c.hits, r.Outcomes, charge("k", 0).Used, c.allowed, c.used)
		}
	}
}

// Buckets are counted under their tightened limit even before they are hot.
func TestColdBucketsAreTightened(t *testing.T) {
	for hits, allowed := range map[int64]bool{1190: true, 1191: false} {
		all, _, k := holding(t, descriptor.Limit{Requests: 1200, Window: window(1, descriptor.Minute), Algorithm: descriptor.TokenBucket}, 0)
		o := one(t, all, backend.Take{Key: []byte("cold"), Limit: &k.rule, Hits: hits})
		if o.Allowed != allowed || allowed && o.Used != 1200 {
			t.Errorf("%d of 1200 tokens, of which 10 are held back: %+v", hits, o)
		}
	}
}

// A single dormant permit is treated like many: it is part of the question, and revived by the denial of another lease.
func TestOneDormantPermit(t *testing.T) {
	all, sh, k := holding(t, descriptor.Limit{}, 1)
	call := all.calls.Get().(*forwarded)
	all.prepare(call, sh, k, &backend.Take{Key: []byte("k"), Limit: &k.rule, Hits: 1}, 0, ms(1000))
	p := &call.takes[0]
	if !p.lead || p.live || p.aside != 1 {
		t.Fatalf("%+v", p)
	}
	o := backend.Outcome{Before: 1200, Used: 1200, ResetAfter: 59 * time.Second}
	if !all.settleLease(p, &call.request.Takes[0], &o, reply{sent: ms(1000), now: ms(1001)}) || !o.Allowed || k.generation != 2 || k.pool != 0 {
		t.Errorf("%+v of lease %d, %d permits are left", o, k.generation, k.pool)
	}
}

// After a call it leads no acquisitions. A second call works the same way.
func TestACallAfterACall(t *testing.T) {
	all, sh, k := holding(t, descriptor.Limit{}, 10)
	k.rate, k.since = 100, ms(100)
	full := backend.Request{Takes: []backend.Take{{Key: []byte("k"), Limit: &k.rule, Hits: 1200}}, Outcomes: make([]backend.Outcome, 1)}
	if err := backend.Await(t.Context(), all.opts.Store, ms(100), &full); err != nil {
		t.Fatal(err)
	}
	call := all.calls.Get().(*forwarded)
	call.request.Together, call.request.PeekWhenKnown = true, true
	r := backend.Request{Takes: []backend.Take{{Key: []byte("k"), Limit: &k.rule, Hits: 12}}, Outcomes: make([]backend.Outcome, 1)}
	all.prepare(call, sh, k, &r.Takes[0], 0, ms(100))
	if now := ms(100); !call.leads || all.send(t.Context(), &now, call, &r) != nil {
		t.Fatal("the call does not ask for a lease")
	}
	if call.leads || len(call.takes) != 1 || call.request.Takes[0].Hits != 2 || !call.request.Together || !call.request.PeekWhenKnown {
		t.Errorf("the next call is %+v", call)
	}
}

// Calls measure how late timers are.
func TestTimersLearn(t *testing.T) {
	var l timers
	if l.now(noon) != 0 {
		t.Error("a timer is late before one was seen")
	}
	if l.fired(noon, 20*time.Millisecond); l.now(noon) == 0 {
		t.Error("no timer was late")
	}
}
