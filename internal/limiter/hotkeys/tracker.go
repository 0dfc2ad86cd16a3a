package hotkeys

import (
	"context"
	"hash/maphash"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/platform/metric"
)

const (
	length = time.Minute      // time that a report covers
	step   = 10 * time.Second // length of a sub-window
)

// Overflow is the name of the list that rules share when all lists are in use.
const Overflow = "overflow"

// Options are the settings of a Tracker.
type Options struct {
	// Keys is the number of keys that can be tracked at the same time; default 32,768. A list has 128 of them. A busy rule
	// has, for each of its lanes, one list of uses and one of denials. A key takes 213 bytes, and up to 224 more for each
	// of six sub-windows in which its rule was busy.
	Keys int

	Metrics metric.Registry // if nil, metrics are counted but not registered
}

// Tracker tracks the hot keys of all rules.
type Tracker struct {
	seed  maphash.Seed
	width uint32 // most lanes of a rule
	most  int64  // lists

	lists   atomic.Int64 // number of lists in use
	opened  atomic.Pointer[board]
	dropped atomic.Uint64 // uses that were not counted
	shared  atomic.Uint64 // uses that were counted under overflow

	overflow *Rule

	mu     sync.Mutex // guards the fields below, and board.past
	rules  map[Name]*Rule
	boards []*board
	since  time.Time   // start of the current sub-window
	past   []time.Time // starts of the remembered sub-windows before it
	spare  []*summary
}

// New returns a tracker that starts counting at now. Run, or calls of Rotate, end its sub-windows.
func New(now time.Time, o Options) *Tracker {
	if o.Keys <= 0 {
		o.Keys = 32_768
	}
	t := &Tracker{
		seed:  maphash.MakeSeed(),
		width: uint32(min(runtime.GOMAXPROCS(0), mostLanes)),
		most:  int64(max(o.Keys/slots, 1)),
		since: now,
		rules: make(map[Name]*Rule),
	}
	t.overflow = t.newRule(Name{Domain: Overflow, Rule: Overflow})
	b := newBoard(t.overflow)
	b.free = true
	t.overflow.board.Store(b)
	t.boards = append(t.boards, b)
	metric.Register(o.Metrics,
		metric.Counter("ratelimitd_hot_keys_dropped_total", "Uses not tracked.",
			t.dropped.Load),
		metric.Counter("ratelimitd_hot_keys_overflow_total", "Uses tracked in the shared list.",
			t.shared.Load))
	return t
}

func (t *Tracker) newRule(name Name) *Rule {
	r := &Rule{tracker: t}
	r.name.Store(&name)
	return r
}

// Rules returns a handle for each name, in the same order, for the rules that are active from now on. A rule that was
// active before keeps its counts. All other rules stop counting.
func (t *Tracker) Rules(names []Name) []*Rule {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.collect()
	for _, b := range t.boards { // including boards of rules that are no longer active
		t.rules[b.rule.id()] = b.rule
	}
	handles := make([]*Rule, len(names))
	rules := make(map[Name]*Rule, len(names))
	for i, name := range names {
		id := Name{Domain: name.Domain, Rule: name.Rule}
		r := rules[id]
		if r == nil {
			if r = t.rules[id]; r == nil {
				r = t.newRule(name)
			}
			rules[id] = r
		}
		if r.name.Load().Shadow != name.Shadow {
			r.name.Store(&name)
		}
		handles[i] = r
	}
	t.rules = rules
	return handles
}

// reserve takes a list from the budget. It returns false if all are in use.
func (t *Tracker) reserve() bool {
	if t.lists.Load() >= t.most {
		return false // checked first, because a failed Add would invalidate a cache line that all processors read
	}
	if t.lists.Add(1) > t.most {
		t.lists.Add(-1)
		return false
	}
	return true
}

// Run ends a sub-window every ten seconds until ctx is done.
func (t *Tracker) Run(ctx context.Context) error {
	ticker := time.NewTicker(step)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case now := <-ticker.C:
			t.Rotate(now)
		}
	}
}

// Rotate ends the current sub-window and drops old ones. Decisions do not wait for it.
func (t *Tracker) Rotate(now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.collect()
	kept := t.boards[:0]
	for _, b := range t.boards {
		w := t.harvest(b)
		w.from = t.since
		if w.used.hits > 0 || w.denied.hits > 0 || w.dropped > 0 {
			b.past = append(b.past, w)
		}
		b.forget(now)
		if len(b.past) > 0 || b.free || !t.close(b) {
			kept = append(kept, b)
		}
		if !b.deniedLately() {
			t.releaseDenied(b)
		}
	}
	clear(t.boards[len(kept):])
	t.boards = kept
	t.past = append(t.past, t.since)
	t.forget(now)
	t.since = now
}

// collect adds the boards that were opened since its last call.
func (t *Tracker) collect() {
	for b := t.opened.Swap(nil); b != nil; {
		next := b.next
		b.next = nil
		t.boards = append(t.boards, b)
		b = next
	}
}

// harvest removes the counts from a board and returns them.
func (t *Tracker) harvest(b *board) subWindow {
	var used, denied []keyHits
	take := func(l *lane, s **summary, into *[]keyHits) {
		fresh := t.fresh()
		l.mu.Lock()
		full := *s
		if full == nil || full.hits == 0 {
			l.mu.Unlock()
			t.spare = append(t.spare, fresh)
			return
		}
		*s = fresh
		l.mu.Unlock()
		*into = append(*into, full.list())
		full.reset()
		t.spare = append(t.spare, full)
	}
	for i := range b.width.Load() {
		l := &b.lanes[i]
		take(l, &l.used, &used)
		take(l, &l.denied, &denied)
	}
	dropped := b.dropped.Load()
	w := subWindow{used: sum(used), denied: sum(denied), dropped: dropped - b.pastDropped}
	b.pastDropped = dropped
	return w
}

// fresh returns an empty summary, a spare one if there is any.
func (t *Tracker) fresh() *summary {
	if n := len(t.spare); n > 0 {
		s := t.spare[n-1]
		t.spare = t.spare[:n-1]
		return s
	}
	return newSummary()
}

// forget drops sub-windows that started more than length before now.
func (b *board) forget(now time.Time) {
	b.past = slices.DeleteFunc(b.past, func(w subWindow) bool { return now.Sub(w.from) > length })
}

func (t *Tracker) forget(now time.Time) {
	t.past = slices.DeleteFunc(t.past, func(from time.Time) bool { return now.Sub(from) > length })
}

func (b *board) deniedLately() bool {
	for i := range b.past {
		if b.past[i].denied.hits > 0 {
			return true
		}
	}
	return false
}

// close takes the board from an idle rule and returns its lists to the budget. It returns false if the rule is in use.
func (t *Tracker) close(b *board) bool {
	locked := b.lanes[:]
	idle := true
	for i := range locked {
		l := &locked[i]
		l.mu.Lock()
		idle = idle && (l.used == nil || l.used.hits == 0)
	}
	if idle {
		b.rule.board.Store(nil)
	}
	for i := range locked {
		l := &locked[i]
		if idle {
			for _, s := range []*summary{l.used, l.denied} {
				if s != nil {
					t.lists.Add(-1)
				}
			}
			l.used, l.denied, l.closed = nil, nil, true
		}
		l.mu.Unlock()
	}
	return idle
}

// releaseDenied returns empty lists of denials to the budget.
func (t *Tracker) releaseDenied(b *board) {
	for i := range b.lanes {
		l := &b.lanes[i]
		l.mu.Lock()
		if l.denied != nil && l.denied.hits == 0 {
			l.denied = nil
			if !b.free {
				t.lists.Add(-1)
			}
		}
		l.mu.Unlock()
	}
}
