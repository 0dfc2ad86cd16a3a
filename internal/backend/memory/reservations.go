package memory

import (
	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// reservations are the reservations of one counter, by id and by time. Each operation costs at most the logarithm of
// how many there are. No slot has a pointer.
type reservations struct {
	// limit is the limit of the last reservation. The rules of a counter have the same `reservations`, but their limits
	// may differ.
	limit *descriptor.Limit
	hash  uint64 // hash of the counter's key
	key   []byte

	slots  []slot
	unused []int32 // places of free slots
	// by id: the place of the oldest reservation; nil while there are few, which are found by a search of the slots
	oldest map[backend.ReservationID]int32
	open   queue // reservations whose expiry is still to be settled, the next to expire first
	past   queue // the others, kept for late commits, the next to be dropped first

	promised int // reservations of the group that is being settled

	// The memory of key, slots and open for most counters, which have one reservation.
	short [48]byte
	one   [1]slot
	only  [1]int32
}

// slot has one reservation.
type slot struct {
	id      backend.ReservationID
	state   backend.ReservationState
	younger int32 // the next reservation with this id, or none
	at      int32 // place in its queue
	share   uint32
	first   bool // it is the oldest of its id: the younger ones follow it
	past    bool
	claimed bool // a take of the group that is being settled uses it
}

// time returns the time by which the queue of a slot is ordered.
func (l *slot) time() int64 {
	if l.past {
		return l.state.Keep
	}
	return l.state.Expires
}

const none = -1

// fewReservations is the number of slots up to which it is cheaper to look at all of them than to keep a map.
const fewReservations = 8

func (b *reservations) len() int { return len(b.slots) - len(b.unused) }

// Bounds of the memory that is reused for the next counter.
const (
	mostSpareSlots  = 16
	longestSpareKey = 256 // bytes
)

// empty removes all reservations, and reports whether b is small enough to be reused for another counter.
func (b *reservations) empty() bool {
	if cap(b.slots) > mostSpareSlots || cap(b.key) > longestSpareKey {
		return false
	}
	if b.oldest != nil {
		clear(b.oldest)
	}
	b.limit, b.key, b.promised = nil, b.key[:0], 0
	b.slots, b.unused, b.open, b.past = b.slots[:0], b.unused[:0], b.open[:0], b.past[:0]
	return true
}

// find returns the place of the oldest reservation of an id, or none.
func (b *reservations) find(id backend.ReservationID) int32 {
	if b.oldest == nil {
		for place := range b.slots {
			if l := &b.slots[place]; l.first && l.id == id {
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

// setFirst makes the reservation in a place the oldest of its id.
func (b *reservations) setFirst(place int32) {
	l := &b.slots[place]
	if l.first = true; b.oldest != nil {
		b.oldest[l.id] = place
		return
	}
	if len(b.slots) <= fewReservations {
		return
	}
	b.oldest = make(map[backend.ReservationID]int32)
	for place := range b.slots {
		if l := &b.slots[place]; l.first {
			b.oldest[l.id] = int32(place)
		}
	}
}

// count is the number of reservations of an id, and of those that are open.
func (b *reservations) count(id backend.ReservationID) (all, open int) {
	for place := b.find(id); place != none; place = b.slots[place].younger {
		all++
		if !b.slots[place].past {
			open++
		}
	}
	return all, open
}

// add adds a reservation that is the youngest of its id.
func (b *reservations) add(id backend.ReservationID, state backend.ReservationState, share uint32) {
	l := slot{id: id, state: state, share: share, younger: none}
	before, place := b.find(id), int32(len(b.slots))
	if last := len(b.unused) - 1; last >= 0 {
		place, b.unused = b.unused[last], b.unused[:last]
		b.slots[place] = l
	} else {
		if b.slots == nil {
			b.slots, b.open = b.one[:0], b.only[:0]
		}
		b.slots = append(b.slots, l)
	}
	if before == none {
		b.setFirst(place)
	} else {
		for b.slots[before].younger != none {
			before = b.slots[before].younger
		}
		b.slots[before].younger = place
	}
	b.open.add(b.slots, place)
}

// remove removes the reservation in a place.
func (b *reservations) remove(place int32) {
	l := &b.slots[place]
	first := l.first
	l.first = false // now: setFirst may collect the first of all ids
	switch {
	case !first:
		before := b.find(l.id)
		for b.slots[before].younger != place {
			before = b.slots[before].younger
		}
		b.slots[before].younger = l.younger
	case l.younger != none:
		b.setFirst(l.younger)
	case b.oldest != nil:
		delete(b.oldest, l.id)
	}
	b.queueOf(l).remove(b.slots, int(l.at))
	b.unused = append(b.unused, place)
}

// set changes the reservation in a place.
func (b *reservations) set(place int32, state backend.ReservationState) {
	l := &b.slots[place]
	l.state = state
	b.queueOf(l).fix(b.slots, int(l.at))
}

// pass moves the reservation in a place to those whose expiry was dealt with.
func (b *reservations) pass(place int32) {
	l := &b.slots[place]
	b.open.remove(b.slots, int(l.at))
	l.past = true
	b.past.add(b.slots, place)
}

// clamp brings all reservations back that lie too far in the future. In a queue where the first one does, all do, and
// they end at the same time then.
func (b *reservations) clamp(l *descriptor.Limit, now int64) {
	for _, q := range [...]queue{b.open, b.past} {
		for _, at := range q {
			if slot := &b.slots[at]; !slot.state.Clamp(l, now, slot.past) {
				break
			}
		}
	}
}

func (b *reservations) queueOf(l *slot) *queue {
	if l.past {
		return &b.past
	}
	return &b.open
}

// queue is a heap of the places of slots.
type queue []int32

// first is the place of the slot with the earliest time, or none.
func (q queue) first() int32 {
	if len(q) == 0 {
		return none
	}
	return q[0]
}

func (q *queue) add(slots []slot, place int32) {
	*q = append(*q, place)
	q.up(slots, len(*q)-1)
}

func (q *queue) remove(slots []slot, at int) {
	last := len(*q) - 1
	(*q)[at] = (*q)[last]
	*q = (*q)[:last]
	if at < last {
		slots[(*q)[at]].at = int32(at)
		q.fix(slots, at)
	}
}

// fix restores the order after the time of one slot has changed.
func (q *queue) fix(slots []slot, at int) {
	if !q.down(slots, at) {
		q.up(slots, at)
	}
}

func (q queue) up(slots []slot, at int) {
	for at > 0 && q.before(slots, at, (at-1)/2) {
		q.swap(slots, at, (at-1)/2)
		at = (at - 1) / 2
	}
	slots[q[at]].at = int32(at)
}

func (q queue) down(slots []slot, at int) (moved bool) {
	for {
		child := 2*at + 1
		if child >= len(q) {
			return moved
		}
		if child+1 < len(q) && q.before(slots, child+1, child) {
			child++
		}
		if !q.before(slots, child, at) {
			return moved
		}
		q.swap(slots, at, child)
		at, moved = child, true
	}
}

func (q queue) before(slots []slot, i, j int) bool {
	return slots[q[i]].time() < slots[q[j]].time()
}

func (q queue) swap(slots []slot, i, j int) {
	q[i], q[j] = q[j], q[i]
	slots[q[i]].at, slots[q[j]].at = int32(i), int32(j)
}
