package overlimit

import (
	"bytes"
	"context"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// A trip to a store in another region takes longer than most clients wait. So a denied counter stays denied until an
// answer of the store says otherwise, even after its retry-after. Then one question goes to the store, and requests are
// denied until the answer arrives. If hits fit again, this replica lets its part of them through, and asks again. A
// counter without an answer for the length of its window is removed, and the next request waits for the store.
//
// A request for more hits than the limit, such as any request of a blocked customer, can never pass. Its denial is
// cached too: otherwise each such request would wait for a trip.
//
// A retry-after counts from the time at which its question was sent. So the next question is early by half a trip, and
// arrives when the retry-after ends.

// Far are the settings of a cache in front of a store that is far away.
type Far struct {
	Store backend.Starter // is asked the questions

	// Askers returns how many caches ask the same store. The remaining hits of a counter are divided by this number.
	Askers func() int

	// Leased reports whether leases ask the store for permits of a counter. The cache then sends no questions about it.
	// Nil means that no counter is leased.
	Leased func(key []byte) bool

	mu     sync.Mutex
	second int64 // the present second, since 1970
	sent   int   // questions in this second
}

const (
	mostQuestions = 1000             // questions in a second
	coldAfter     = 10 * time.Second // the least time without an answer after which a counter is forgotten
)

// overdue is the state of a denied counter after its retry-after.
type overdue struct {
	limit  *descriptor.Limit // the numbers that denied, if they are not the take's
	window int64
	heard  int64 // when the latest answer came
	room   int64 // hits that may still go to the store
	asking bool
}

// after returns the state after another denial.
func (d *overdue) after(now int64, t *backend.Take, o *backend.Outcome) *overdue {
	next := &overdue{limit: o.Limit, window: t.Limit.Window.Length().Microseconds(), heard: now}
	if d != nil {
		next.asking = d.asking
	}
	return next
}

func capacity(t *backend.Take, o *backend.Outcome) uint64 {
	if o.Limit != nil {
		return o.Limit.Capacity()
	}
	return t.Limit.Capacity()
}

// fitsNever reports whether a take has more hits than its limit ever allows.
func fitsNever(t *backend.Take, o *backend.Outcome) bool {
	return t.Hits > 0 && uint64(t.Hits) > capacity(t, o)
}

// again is after how long the store is asked again about hits that never fit: before the counter is forgotten.
func again(t *backend.Take) int64 { return t.Limit.Window.Length().Microseconds() / 2 }

// asks reports whether a take goes to the store although its counter was denied. If not, asks may send a question. The
// shard is locked.
func (c *Cache) asks(sh *shard, now int64, t *backend.Take, e *denial) bool {
	d := e.overdue
	switch {
	case now-d.heard > max(d.window, coldAfter.Microseconds()):
		sh.forget(t.Key)
		return true
	case t.Hits <= d.room:
		d.room -= t.Hits
		return true
	case !d.asking && t.Origin != nil && (c.far.Leased == nil || !c.far.Leased(t.Key)) && c.far.mayAsk(now):
		d.asking = true
		c.question(t)
	}
	return false
}

// MayAsk counts a question, if it may be sent.
func (f *Far) MayAsk(now time.Time) bool { return f.mayAsk(now.UnixMicro()) }

func (f *Far) mayAsk(now int64) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if second := now / time.Second.Microseconds(); second != f.second {
		f.second, f.sent = second, 0
	}
	f.sent++
	return f.sent <= mostQuestions
}

// question asks the store how many hits of a counter are left.
func (c *Cache) question(t *backend.Take) {
	limit, origin := *t.Limit, *t.Origin
	origin.Domain, origin.Entries = strings.Clone(origin.Domain), descriptor.CloneEntries(origin.Entries)
	r := &backend.Request{
		Takes:    []backend.Take{{Key: bytes.Clone(t.Key), Limit: &limit, Rule: t.Rule, Origin: &origin}},
		Outcomes: make([]backend.Outcome, 1),
	}
	go func() {
		sent := time.Now()
		done := func(error) { c.told(c.clock.Elapsed(sent), &r.Takes[0], &r.Outcomes[0]) }
		if settled, err := c.far.Store.Start(context.Background(), sent, nil, r, done); settled {
			done(err)
		}
	}()
}

// told applies the answer to a question that was sent at sent.
func (c *Cache) told(sent int64, t *backend.Take, o *backend.Outcome) {
	sh := c.shard(t.Key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	e, ok := sh.denials[string(t.Key)]
	if !ok || e.overdue == nil || !e.of(t.Limit) {
		return
	}
	d := e.overdue
	if d.asking = false; o.Failed {
		return
	}
	d.heard, d.limit, d.room = c.clock.Elapsed(time.Now()), o.Limit, 0
	e.used, e.kept, e.reset = o.Used, o.Kept, sent+o.ResetAfter.Microseconds()
	size := capacity(t, o)
	free := int64(o.Remaining(size))
	switch {
	case uint64(max(e.hits, 1)) > size:
		e.until = sent + again(t)
	case free > 0 && uint64(free) >= size-uint64(free):
		sh.forget(t.Key) // it is not exhausted any more
		return
	case free < max(e.hits, 1):
		e.until = sent + max(o.MoreAfter.Microseconds(), 1)
	default:
		d.room = c.far.part(free)
	}
	sh.denials[string(t.Key)] = e
}

// part is a part of some hits for this cache: on average, all caches together get all of them.
func (f *Far) part(free int64) int64 {
	n := int64(max(f.Askers(), 1))
	part := free / n
	if rand.Int64N(n) < free%n {
		part++
	}
	return part
}

// Learn records an outcome that came after its caller had left.
func (c *Cache) Learn(t *backend.Take, o *backend.Outcome) {
	if givesBack(t) || t.Guards || o.Cached || t.Limit.Reservable() {
		return
	}
	sh := c.shard(t.Key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	c.note(sh, c.clock.Elapsed(time.Now()), t, o, earlier{refunds: sh.refunds})
}
