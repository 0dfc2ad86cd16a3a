package hotkeys

import (
	"hash/maphash"
	"sync"
	"sync/atomic"
	"time"
)

// Name identifies a rule.
type Name struct {
	Domain string `json:"domain"`
	Rule   string `json:"rule"`        // path of the rule; Overflow and similar names are for several rules
	Shadow bool   `json:"shadow_mode"` // denials are measured, not enforced
}

// Rule counts the keys of one rule. Handles are resolved when rules are loaded. Several rules can use one counter: it
// then has a line under each of them, with the hits of that rule.
type Rule struct {
	tracker *Tracker
	name    atomic.Pointer[Name] // its shadow may change
	board   atomic.Pointer[board]
}

// id returns the name without Shadow, which may change.
func (r *Rule) id() Name {
	n := r.name.Load()
	return Name{Domain: n.Domain, Rule: n.Rule}
}

const mostLanes = 8

// board holds the counts of a rule while it is busy.
type board struct {
	rule    *Rule
	free    bool // its summaries do not count against the budget
	width   atomic.Uint32
	dropped atomic.Uint64 // hits that were not counted
	lanes   [mostLanes]lane
	next    *board // next in the list of boards that the tracker has not picked up yet

	// Under Tracker.mu.
	past        []subWindow
	pastDropped uint64 // the part of dropped that is in past
}

// lane is a part of a board. One decision uses it at a time.
type lane struct {
	mu     sync.Mutex
	closed bool
	used   *summary // nil until it is needed
	denied *summary

	_ [64 - 8 - 8 - 2*8]byte // keeps two lanes out of one cache line
}

// subWindow holds the counts of one sub-window.
type subWindow struct {
	from         time.Time
	used, denied keyHits
	dropped      uint64 // hits
}

// Count counts a use of a counter: the requested hits, and whether they were denied. It ignores hits that are not
// positive. Concurrent decisions should pass different lanes. The key is copied.
func (r *Rule) Count(lane uint32, key []byte, hits int64, denied bool) {
	if hits <= 0 {
		return
	}
	hash := maphash.Bytes(r.tracker.seed, key)
	for range 2 { // a board may be closed between Load and its use
		b := r.board.Load()
		if b == nil {
			if b = r.open(); b == nil {
				r.tracker.shared.Add(1)
				r.tracker.overflow.board.Load().count(lane, hash, key, uint64(hits), denied)
				return
			}
		}
		if b.count(lane, hash, key, uint64(hits), denied) {
			return
		}
	}
	r.tracker.dropped.Add(1)
}

// open gives the rule a board. It returns nil if the budget is used up.
func (r *Rule) open() *board {
	t := r.tracker
	if !t.reserve() {
		return nil
	}
	b := newBoard(r)
	b.lanes[0].used = newSummary()
	if !r.board.CompareAndSwap(nil, b) {
		t.lists.Add(-1)
		return r.board.Load()
	}
	for {
		b.next = t.opened.Load()
		if t.opened.CompareAndSwap(b.next, b) {
			return b
		}
	}
}

func newBoard(r *Rule) *board {
	b := &board{rule: r}
	b.width.Store(1)
	return b
}

// count counts in a lane that no other decision is using. It returns false if the board is closed.
func (b *board) count(at uint32, hash uint64, key []byte, hits uint64, denied bool) bool {
	width := b.width.Load()
	if width == 1 {
		at = 0 // saves a division for most rules
	} else {
		at %= width
	}
	for range width {
		l := &b.lanes[at%mostLanes]
		if l.mu.TryLock() {
			done := l.count(b, hash, key, hits, denied)
			l.mu.Unlock()
			return done
		}
		if at++; at == width {
			at = 0
		}
	}
	t := b.rule.tracker
	if width < t.width && b.width.CompareAndSwap(width, width+1) {
		l := &b.lanes[width%mostLanes]
		if l.mu.TryLock() {
			done := l.count(b, hash, key, hits, denied)
			l.mu.Unlock()
			return done
		}
	}
	b.dropped.Add(hits)
	t.dropped.Add(1)
	return true
}

// count counts in this lane, which must be locked. It returns false if the board is closed.
func (l *lane) count(b *board, hash uint64, key []byte, hits uint64, denied bool) bool {
	if l.closed {
		return false
	}
	if !b.ensure(&l.used) {
		b.dropped.Add(hits)
		b.rule.tracker.dropped.Add(1)
		return true
	}
	l.used.add(hash, key, hits)
	switch {
	case !denied:
	case b.ensure(&l.denied):
		l.denied.add(hash, key, hits)
	default:
		t := b.rule.tracker
		t.shared.Add(1)
		t.overflow.board.Load().countDenied(hash, key, hits)
	}
	return true
}

// ensure makes sure that a lane has a summary, and returns false if the budget is used up.
func (b *board) ensure(s **summary) bool {
	if *s == nil && (b.free || b.rule.tracker.reserve()) {
		*s = newSummary()
	}
	return *s != nil
}

// countDenied counts a denial whose use was counted in another board.
func (b *board) countDenied(hash uint64, key []byte, hits uint64) {
	l := &b.lanes[0]
	if !l.mu.TryLock() {
		b.dropped.Add(hits)
		return
	}
	if b.ensure(&l.denied) {
		l.denied.add(hash, key, hits)
	}
	l.mu.Unlock()
}
