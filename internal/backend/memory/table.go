package memory

import (
	"bytes"
	"encoding/binary"

	"github.com/ratelimitd/ratelimitd/internal/backend"
)

// table keeps counters by key, and nothing else of a take: several rules and limits may use one. It has no pointer for
// a counter, only for each chunk of many: with millions of counters, the garbage collector has next to nothing to look
// at. A tail is the exception: few algorithms have one, and it is long.
type table struct {
	index   index
	records arena
	tails   tails
}

// record is a counter in a table: its numbers, the length of its key, and its key, so that most takes read one place in
// memory. Bytes behind the key belong to others.
type record []byte

// Where a number is in a record.
const (
	recordStart   = 0
	recordCount   = 8
	recordPrev    = 16
	recordExpires = 24
	recordShare   = 32 // number of the share that the counter belongs to
	recordTail    = 36 // number of the tail of its state, plus 1; 0 without one
	recordKey     = 40
)

// counter is a counter in no table: a shared one, one that is not added yet, or a copy.
type counter struct {
	state   backend.State
	expires int64 // when the state is equivalent to an unused one, as an elapsed time
}

func (r record) expires() int64 { return int64(binary.LittleEndian.Uint64(r[recordExpires:])) }

func (r record) share() uint32 { return binary.LittleEndian.Uint32(r[recordShare:]) }

func (r record) tail() uint32 { return binary.LittleEndian.Uint32(r[recordTail:]) }

func (r record) setTail(tail uint32) { binary.LittleEndian.PutUint32(r[recordTail:], tail) }

// has reports whether the record has this key.
func (r record) has(key []byte) bool {
	if len(key) >= 0x80 {
		return r.hasLong(key)
	}
	b := r[recordKey:] // its first byte is the whole length
	return int(b[0]) == len(key) && string(b[1:1+len(key)]) == string(key)
}

func (r record) hasLong(key []byte) bool {
	length, prefix := binary.Uvarint(r[recordKey:])
	return length == uint64(len(key)) && bytes.HasPrefix(r[recordKey+prefix:], key)
}

// whole returns the record without the bytes after it.
func (r record) whole() record {
	length, prefix := binary.Uvarint(r[recordKey:])
	return r[:recordKey+prefix+int(length)]
}

func (t *table) len() int { return t.index.used }

// find returns the counter of a key, or nil. It is valid until one is added.
func (t *table) find(hash uint64, key []byte) record {
	r, _ := t.search(hash, key)
	return r
}

func (t *table) search(hash uint64, key []byte) (r record, slot uint32) {
	tag := tag(hash)
	for from := tag; ; from = slot + 1 {
		place, at, ok := t.index.next(tag, from)
		if !ok {
			return nil, 0
		}
		if r, slot = t.records.at(place), at; r.has(key) {
			return r, slot
		}
	}
}

// load reads the state of a counter.
func (t *table) load(r record, s *backend.State) {
	n := (*[recordKey]byte)(r)
	s.Start = int64(binary.LittleEndian.Uint64(n[recordStart:]))
	s.Count = int64(binary.LittleEndian.Uint64(n[recordCount:]))
	s.Prev = int64(binary.LittleEndian.Uint64(n[recordPrev:]))
	s.Tail = nil
	if tail := r.tail(); tail > 0 {
		s.Tail = *t.tails.at(tail - 1)
	}
}

// store writes the state of a counter.
func (t *table) store(r record, s *backend.State, expires int64) {
	n := (*[recordKey]byte)(r)
	binary.LittleEndian.PutUint64(n[recordStart:], uint64(s.Start))
	binary.LittleEndian.PutUint64(n[recordCount:], uint64(s.Count))
	binary.LittleEndian.PutUint64(n[recordPrev:], uint64(s.Prev))
	binary.LittleEndian.PutUint64(n[recordExpires:], uint64(expires))
	if s.Tail != nil || r.tail() > 0 {
		t.storeTail(r, s)
	}
}

func (t *table) storeTail(r record, s *backend.State) {
	switch tail := r.tail(); {
	case tail > 0 && s.Tail == nil:
		t.tails.remove(tail - 1)
		r.setTail(0)
	case tail > 0:
		*t.tails.at(tail - 1) = s.Tail
	case s.Tail != nil:
		r.setTail(t.tails.add(s.Tail) + 1)
	}
}

// add adds a counter. The table must not have the key.
func (t *table) add(hash uint64, key []byte, share uint32, c *counter) {
	if t.records.wasteful() { // without this, resets could make it grow until the next sweep
		t.copy()
	}
	var length [binary.MaxVarintLen64]byte
	prefix := binary.PutUvarint(length[:], uint64(len(key)))
	piece, place := t.records.add(recordKey + prefix + len(key))
	r := record(piece)
	binary.LittleEndian.PutUint32(r[recordShare:], share)
	copy(r[recordKey:], length[:prefix])
	copy(r[recordKey+prefix:], key)
	t.store(r, &c.state, c.expires)
	t.index.add(tag(hash), place)
}

// remove removes the counter of a key, if there is one.
func (t *table) remove(hash uint64, key []byte) {
	if r, slot := t.search(hash, key); r != nil {
		t.drop(r, slot)
	}
}

// expire removes all counters that have expired at now, and reports the share of each.
func (t *table) expire(now int64, dropped func(share uint32)) {
	for slot := 0; slot < len(t.index.slots); {
		place, ok := t.index.place(slot)
		if !ok {
			slot++
			continue
		}
		r := record(t.records.at(place))
		if r.expires() > now {
			slot++
			continue
		}
		share := r.share()
		t.drop(r, uint32(slot)) // another counter may move to this slot
		dropped(share)
	}
}

func (t *table) drop(r record, slot uint32) {
	t.records.waste += len(r.whole())
	if tail := r.tail(); tail > 0 {
		t.tails.remove(tail - 1)
	}
	t.index.remove(slot)
}

// shrink gives back the memory that removed counters needed, if that is worth copying the others.
func (t *table) shrink() {
	switch {
	case t.len() == 0:
		*t = table{}
	case t.records.wasteful():
		t.copy()
	}
}

// copy copies all counters, without the waste between them.
func (t *table) copy() {
	var fresh table
	fresh.index.reset(t.len())
	for slot := range t.index.slots {
		place, ok := t.index.place(slot)
		if !ok {
			continue
		}
		old := record(t.records.at(place)).whole()
		piece, place := fresh.records.add(len(old))
		copy(piece, old)
		if tail := old.tail(); tail > 0 {
			record(piece).setTail(fresh.tails.add(*t.tails.at(tail - 1)) + 1)
		}
		fresh.index.add(uint32(t.index.slots[slot]>>placeBits), place)
	}
	*t = fresh
}
