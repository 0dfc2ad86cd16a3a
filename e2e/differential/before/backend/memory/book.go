package memory

import (
	"github.com/ratelimitd/ratelimitd/e2e/differential/before/backend"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// book keeps the records of one counter's reservations, by id and by time. Each step costs at most the logarithm of how many
// there are. No record has a pointer.
type book struct {
	limit *descriptor.Limit // of the last reservation; Run has no other
	hash  uint64            // of the counter's key
	key   []byte

	lines  []line
	unused []int32                  // places of lines without a record
	oldest map[backend.HoldID]int32 // by id: the place of the oldest record; nil in a small book, where the lines say so
	open   queue                    // records whose expiry was not dealt with; what expires first is first
	past   queue                    // the others, kept for late commits; what is dropped first is first

	promised int // reservations of the group that is being settled

	// The memory of key, lines and open in most books, which have one record.
	short [48]byte
	one   [1]line
	only  [1]int32
}

// line is one record in a book.
type line struct {
	id      backend.HoldID
	held    backend.Reservation
	younger int32 // the next record with this id, or none
	at      int32 // place in its queue
	share   uint32
	first   bool // it is the oldest of its id: the younger ones follow it
	past    bool
	claimed bool // by a take of the group that is being settled
}

// time is what a line is ordered by in its queue.
func (l *line) time() int64 {
	if l.past {
		return l.held.Keep
	}
	return l.held.Expires
}

const none = -1

// smallBook is the number of lines up to which it is cheaper to look at all of them than to keep a map.
const smallBook = 8

func (b *book) len() int { return len(b.lines) - len(b.unused) }

// Bounds of what an empty book keeps for the next counter.
const (
	mostSpareLines  = 16
	longestSpareKey = 256 // bytes
)

// empty removes all records, and reports whether the book is worth its memory for another counter.
func (b *book) empty() bool {
	if cap(b.lines) > mostSpareLines || cap(b.key) > longestSpareKey {
		return false
	}
	if b.oldest != nil {
		clear(b.oldest)
	}
	b.limit, b.key, b.promised = nil, b.key[:0], 0
	b.lines, b.unused, b.open, b.past = b.lines[:0], b.unused[:0], b.open[:0], b.past[:0]
	return true
}

// find returns the place of the oldest record of an id, or none.
func (b *book) find(id backend.HoldID) int32 {
	if b.oldest == nil {
		for place := range b.lines {
			if l := &b.lines[place]; l.first && l.id == id {
				return int32(place)
			}
		}
		return none
	}
	if place, ok := b.oldest[id]; ok {
		return place
	}
	return none
}

// setFirst makes the record in a place the oldest of its id.
func (b *book) setFirst(place int32) {
	l := &b.lines[place]
	if l.first = true; b.oldest != nil {
		b.oldest[l.id] = place
		return
	}
	if len(b.lines) <= smallBook {
		return
	}
	b.oldest = make(map[backend.HoldID]int32)
	for place := range b.lines {
		if l := &b.lines[place]; l.first {
			b.oldest[l.id] = int32(place)
		}
	}
}

// count is the number of records of an id, and of those that are open.
func (b *book) count(id backend.HoldID) (all, open int) {
	for place := b.find(id); place != none; place = b.lines[place].younger {
		all++
		if !b.lines[place].past {
			open++
		}
	}
	return all, open
}

// add adds a record that is the youngest of its id.
func (b *book) add(id backend.HoldID, held backend.Reservation, share uint32) {
	l := line{id: id, held: held, share: share, younger: none}
	before, place := b.find(id), int32(len(b.lines))
	if last := len(b.unused) - 1; last >= 0 {
		place, b.unused = b.unused[last], b.unused[:last]
		b.lines[place] = l
	} else {
		if b.lines == nil {
			b.lines, b.open = b.one[:0], b.only[:0]
		}
		b.lines = append(b.lines, l)
	}
	if before == none {
		b.setFirst(place)
	} else {
		for b.lines[before].younger != none {
			before = b.lines[before].younger
		}
		b.lines[before].younger = place
	}
	b.open.add(b.lines, place)
}

// remove removes the record in a place.
func (b *book) remove(place int32) {
	l := &b.lines[place]
	first := l.first
	l.first = false // now: setFirst may collect the first of all ids
	switch {
	case !first:
		before := b.find(l.id)
		for b.lines[before].younger != place {
			before = b.lines[before].younger
		}
		b.lines[before].younger = l.younger
	case l.younger != none:
		b.setFirst(l.younger)
	case b.oldest != nil:
		delete(b.oldest, l.id)
	}
	b.queueOf(l).remove(b.lines, int(l.at))
	b.unused = append(b.unused, place)
}

// set changes the record in a place.
func (b *book) set(place int32, held backend.Reservation) {
	l := &b.lines[place]
	l.held = held
	b.queueOf(l).fix(b.lines, int(l.at))
}

// pass moves the record in a place to those whose expiry was dealt with.
func (b *book) pass(place int32) {
	l := &b.lines[place]
	b.open.remove(b.lines, int(l.at))
	l.past = true
	b.past.add(b.lines, place)
}

// clamp brings all records back that lie too far in the future. In a queue where the first one does, all do, and they end at the
// same time then.
func (b *book) clamp(l *descriptor.Limit, now int64) {
	for _, q := range [...]queue{b.open, b.past} {
		for _, at := range q {
			if line := &b.lines[at]; !line.held.Clamp(l, now, line.past) {
				break
			}
		}
	}
}

func (b *book) queueOf(l *line) *queue {
	if l.past {
		return &b.past
	}
	return &b.open
}

// queue is a heap of the places of lines.
type queue []int32

// first is the place of the line with the earliest time, or none.
func (q queue) first() int32 {
	if len(q) == 0 {
		return none
	}
	return q[0]
}

func (q *queue) add(lines []line, place int32) {
	*q = append(*q, place)
	q.up(lines, len(*q)-1)
}

func (q *queue) remove(lines []line, at int) {
	last := len(*q) - 1
	(*q)[at] = (*q)[last]
	*q = (*q)[:last]
	if at < last {
		lines[(*q)[at]].at = int32(at)
		q.fix(lines, at)
	}
}

// fix restores the order after the time of one line has changed.
func (q *queue) fix(lines []line, at int) {
	if !q.down(lines, at) {
		q.up(lines, at)
	}
}

func (q queue) up(lines []line, at int) {
	for at > 0 && q.before(lines, at, (at-1)/2) {
		q.swap(lines, at, (at-1)/2)
		at = (at - 1) / 2
	}
	lines[q[at]].at = int32(at)
}

func (q queue) down(lines []line, at int) (moved bool) {
	for {
		child := 2*at + 1
		if child >= len(q) {
			return moved
		}
		if child+1 < len(q) && q.before(lines, child+1, child) {
			child++
		}
		if !q.before(lines, child, at) {
			return moved
		}
		q.swap(lines, at, child)
		at, moved = child, true
	}
}

func (q queue) before(lines []line, i, j int) bool {
	return lines[q[i]].time() < lines[q[j]].time()
}

func (q queue) swap(lines []line, i, j int) {
	q[i], q[j] = q[j], q[i]
	lines[q[i]].at, lines[q[j]].at = int32(i), int32(j)
}
